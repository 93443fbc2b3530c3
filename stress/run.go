package stress

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/touched"
)

// Config of a run.
type Config struct {
	Seed     uint64
	Duration time.Duration // of each scenario; at least 1 ms
	Scenario string        // one of Scenarios; empty = each in turn
	Workers  int           // goroutines of a scenario; 0 = 8
}

// Report is what a run found.
type Report struct {
	Seed       uint64   `json:"seed"`
	Operations int64    `json:"operations"`
	Violations []string `json:"violations"`
	Notes      []string `json:"notes,omitempty"` // figures of a scenario that measures
}

// scenario sets something up; the actor it returns does one random operation,
// and end closes everything and checks what must hold at last.
type scenario struct {
	name string
	open func(r *run) (act func(ctx context.Context, random *rand.Rand) error, end func(ctx context.Context) error, err error)
}

var scenarios = []scenario{{"artefacts", openArtefacts}, {"sessions", openSessions}, {"constants", openConstants}, {"churn", openChurn}, {"storm", openStorm}, {"deadlines", openDeadlines}}

// Scenarios lists the names.
func Scenarios() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

const (
	defaultWorkers = 8
	mostViolations = 32 // that a report lists: the first ones tell
)

// Run runs the scenarios until their time is over or ctx ends. The error is about
// the config; violations are in the report.
func Run(ctx context.Context, cfg Config) (Report, error) {
	report := Report{Seed: cfg.Seed, Violations: []string{}}
	if cfg.Scenario != "" && !slices.Contains(Scenarios(), cfg.Scenario) {
		return report, fault.Invalidf("stress: run", "scenario %q, want one of %v", cfg.Scenario, Scenarios())
	}
	if cfg.Duration < time.Millisecond || cfg.Workers < 0 {
		return report, fault.Invalidf("stress: run", "%v with %d workers, want at least 1ms and 0 or more", cfg.Duration, cfg.Workers)
	}
	if cfg.Workers == 0 {
		cfg.Workers = defaultWorkers
	}
	for _, s := range scenarios {
		if cfg.Scenario != "" && cfg.Scenario != s.name {
			continue
		}
		r := &run{name: s.name, seed: cfg.Seed, duration: cfg.Duration}
		if err := r.drive(ctx, cfg, s); err != nil {
			return report, fmt.Errorf("%s: %w", s.name, err)
		}
		report.Operations += r.operations.Load()
		report.Violations = append(report.Violations, r.mu.violations...)
		report.Notes = append(report.Notes, r.mu.notes...)
	}
	return report, nil
}

// run is one scenario in progress.
type run struct {
	name       string
	seed       uint64
	duration   time.Duration
	operations atomic.Int64
	values     ledger
	mu         struct {
		sync.Mutex
		violations []string
		notes      []string
	}
}

// noted notes a figure for the report.
func (r *run) noted(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.notes = append(r.mu.notes, r.name+": "+fmt.Sprintf(format, args...))
}

// turns judges what the turns of the rooms given touched at most (SPEC F6): a turn that
// touches more would be as long as its room is large.
func (r *run) turns(most ...int64) {
	if n := slices.Max(most); n > touched.Most {
		r.violated("a turn touched %d things, more than %d", n, touched.Most)
	}
}

// within judges a gauge.
func (r *run) within(what string, n, most int64) {
	if n < 0 || n > most {
		r.violated("%s: %d, want 0 to %d", what, n, most)
	}
}

// violated notes a violation.
func (r *run) violated(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.violations) < mostViolations {
		r.mu.violations = append(r.mu.violations, r.name+": "+fmt.Sprintf(format, args...))
	}
}

func (r *run) drive(ctx context.Context, cfg Config, s scenario) error {
	before := settled()
	act, end, err := s.open(r)
	if err != nil {
		return err
	}
	until, cancel := context.WithTimeout(ctx, cfg.Duration)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { r.watch(until, cfg.Duration) })
	for w := range cfg.Workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(cfg.Seed, uint64(w)))
			for until.Err() == nil {
				asked, cancel := sometimes(until, random)
				if err := act(asked, random); !expected(err) && until.Err() == nil {
					r.violated("%v", err)
				}
				cancel()
				r.operations.Add(1)
			}
		})
	}
	wg.Wait()
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer stop()
	if err := end(closing); err != nil {
		r.violated("close: %v", err)
	}
	r.values.settle(r)
	for wait := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(wait); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		r.violated("%d goroutines before, %d after Close\n%s", before, n, goroutines())
	}
	return nil
}

// settled is the number of goroutines after those that are about to end have ended.
func settled() int {
	n := runtime.NumGoroutine()
	for range 50 {
		time.Sleep(time.Millisecond)
		n = min(n, runtime.NumGoroutine())
	}
	return n
}

// goroutines are the stacks of all, alike ones together.
func goroutines() string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
	return all.String()
}

// value is a cached thing that knows its key and whether it was freed.
type value struct {
	key   string
	freed atomic.Int32
}

// ledger counts what was made and freed.
type ledger struct {
	made, freed atomic.Int64
	living      sync.Map // of *value
}

func (l *ledger) make(key string) *value {
	l.made.Add(1)
	v := &value{key: key}
	l.living.Store(v, nil)
	return v
}

// free is the finaliser of a value.
func (r *run) free(v *value) func() {
	return func() {
		r.values.freed.Add(1)
		r.values.living.Delete(v)
		if n := v.freed.Add(1); n != 1 {
			r.violated("value of %s freed %d times", v.key, n)
		}
	}
}

// check looks at a value on which the caller holds a lease, and which has one of
// these keys.
func (r *run) check(got any, keys ...string) {
	v, ok := got.(*value)
	switch {
	case !ok:
		r.violated("asked for %s, got a %T", keys[0], got)
	case !slices.Contains(keys, v.key):
		r.violated("asked for %s, got %s", keys[0], v.key)
	case v.freed.Load() != 0:
		r.violated("value of %s freed while leased", v.key)
	}
}

// settle waits for the last values to be freed and compares the sums.
func (l *ledger) settle(r *run) {
	for wait := time.Now().Add(20 * time.Second); l.made.Load() != l.freed.Load() && time.Now().Before(wait); {
		time.Sleep(time.Millisecond)
	}
	if made, freed := l.made.Load(), l.freed.Load(); made != freed {
		var keys []string
		l.living.Range(func(v, _ any) bool {
			keys = append(keys, v.(*value).key)
			return len(keys) < mostViolations
		})
		r.violated("%d values made, %d freed; living: %q", made, freed, keys)
	}
}
