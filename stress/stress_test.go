package stress

import (
	"context"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/race"
	"github.com/kiln-cache/kiln/internal/touched"
)

// F1, F9, C2, C5, G4, G9, T4, T7: every invariant under concurrency, briefly.
func TestScenarios(t *testing.T) {
	for _, name := range Scenarios() {
		if name == "storm" {
			continue // has a test of its own
		}
		t.Run(name, func(t *testing.T) {
			report, err := Run(context.Background(), Config{Seed: 1, Duration: 300 * time.Millisecond, Scenario: name})
			if err != nil || len(report.Violations) > 0 || report.Operations == 0 {
				t.Fatalf("%d operations, violations %q, %v", report.Operations, report.Violations, err)
			}
		})
	}
}

// F9: nor does a value stay where a room lives for some milliseconds and most of its callers
// leave early: what is told of those that left comes late, and much of it at its end.
func TestShortLives(t *testing.T) {
	const lives, workers, acts = 200, 8, 20
	for _, s := range scenarios {
		if s.name == "churn" || s.name == "deadlines" {
			continue // want long ones
		}
		for i := range lives {
			seed := uint64(i)
			r := &run{name: s.name, seed: seed, duration: time.Second}
			act, end, err := s.open(r)
			if err != nil {
				t.Fatal(err)
			}
			life, cancel := context.WithTimeout(context.Background(), time.Duration(i*5)*time.Second/1000/lives)
			var callers sync.WaitGroup
			for w := range workers {
				callers.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(w)))
					for i := 0; i < acts && life.Err() == nil; i++ {
						asked, cancel := sometimes(life, random)
						_ = act(asked, random)
						cancel()
					}
				})
			}
			callers.Wait()
			cancel()
			if err := end(context.Background()); err != nil {
				t.Error(err)
			}
			r.values.settle(r)
			if len(r.mu.violations) > 0 {
				t.Fatalf("life %d: %q", i, r.mu.violations)
			}
		}
	}
}

var (
	stormFor  = flag.Duration("storm", 10*time.Second, "how long TestStorm lasts at each number of threads")
	stormSeed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "what TestStorm is made from")
)

// F1 to F9, C5, G4, G9, G12, T7, E1, P4: all rooms at once, with one thread, two and eight.
func TestStorm(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(procs)
		report, err := Run(context.Background(), Config{Seed: *stormSeed, Duration: *stormFor, Scenario: "storm"})
		if err != nil || len(report.Violations) > 0 || report.Operations == 0 {
			t.Errorf("-seed %d, GOMAXPROCS %d: %d operations, %v", *stormSeed, procs, report.Operations, err)
			for _, v := range report.Violations {
				t.Error(v)
			}
		}
	}
}

// A scenario that leaks and mixes up values is found out.
func TestViolationsAreFound(t *testing.T) {
	r := &run{name: "broken"}
	v := r.values.make("a")
	r.check(v, "b")
	r.free(v)()
	r.check(v, "a")
	r.free(v)()
	r.check("text", "a")
	if n := len(r.mu.violations); n != 4 {
		t.Errorf("%d violations found, want 4: %q", n, r.mu.violations)
	}
	leak := scenario{"leak", func(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
		quit := make(chan struct{})
		t.Cleanup(func() { close(quit) })
		go func() { <-quit }()
		return func(context.Context, *rand.Rand) error { return nil }, func(context.Context) error { return nil }, nil
	}}
	r = &run{name: "leak"}
	if err := r.drive(context.Background(), Config{Duration: time.Millisecond, Workers: 1}, leak); err != nil || len(r.mu.violations) != 1 {
		t.Errorf("a leaked goroutine: %q, %v", r.mu.violations, err)
	}
	const whole = settles
	var heap [][]byte
	hoard := scenario{"hoard", func(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
		begun := time.Now()
		return func(context.Context, *rand.Rand) error {
			for len(heap) < int(128*time.Since(begun)/whole) {
				heap = append(heap, make([]byte, 1<<20))
			}
			runtime.GC()
			return nil
		}, func(context.Context) error { return nil }, nil
	}}
	r = &run{name: "hoard"}
	if err := r.drive(context.Background(), Config{Duration: whole, Workers: 1}, hoard); err != nil || len(r.mu.violations) != 1 {
		t.Errorf("a heap that grew by %d MiB: %q, %v", len(heap), r.mu.violations, err)
	}
	if _, err := Run(context.Background(), Config{Scenario: "none", Duration: time.Second}); err == nil {
		t.Error("an unknown scenario must be refused")
	}
}

// F6: answers that come late are found out, beside an idle actor that answers at once.
func TestLateAnswersAreFound(t *testing.T) {
	if race.Enabled {
		t.Skip("times are not the program's own")
	}
	answers := func(what string, took ...time.Duration) *times {
		of := &times{what: what}
		for range 2 * enough {
			of.add(time.Millisecond)
		}
		for _, d := range took {
			of.add(d)
		}
		return of
	}
	slow := 2 * gateP99
	for asked, late := range map[*times]bool{
		answers("quick", slow, slow):            false, // one in a hundred
		answers("slow", slow, slow, slow, slow): true,
		answers("once", 2*gateWorst):            true,
	} {
		d := &deadlines{run: new(run), asked: []*times{answers("idle"), asked}}
		d.judge()
		if len(d.mu.violations) > 0 != late || len(d.mu.notes) != 2 {
			t.Errorf("%s: %q, notes %q", asked.what, d.mu.violations, d.mu.notes)
		}
	}
}

// F6: a scenario fails where a turn touched more than it may.
func TestLongTurns(t *testing.T) {
	r := &run{name: "test"}
	if r.turns(1, touched.Most, 7); len(r.mu.violations) != 0 {
		t.Error(r.mu.violations)
	}
	if r.turns(1, touched.Most+1, 7); len(r.mu.violations) != 1 {
		t.Error("a long turn is no violation")
	}
}

// F3: the storm goes on where a context panics on a goroutine of the context package.
func TestMoodyContextAtItsDeadline(t *testing.T) {
	for calls := range int64(12) {
		life, end := context.WithCancel(context.Background())
		ctx, cancel := shortly(&moody{Context: life, calls: 1 + calls})
		<-ctx.Done()
		if ctx.Err() == nil {
			t.Errorf("a panic at call %d: the context is done and has no error", 1+calls)
		}
		cancel()
		end()
	}
}
