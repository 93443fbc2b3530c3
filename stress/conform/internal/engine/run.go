package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
)

// Limits of a statement, unless within= says otherwise.
const (
	statementLimit = 10 * time.Second
	processLimit   = 60 * time.Second // of await, for a process
	counterLimit   = 2 * time.Second  // for which counters are read again
	eventsKept     = 40
)

// Failure says where a case failed and why.
type Failure struct {
	Line      int
	Got, Want string
	Events    []string // what led there, oldest first
}

// run is one case in one process.
type run struct {
	engine *Engine
	file   string
	world  *outside.World
	ctx    context.Context
	cancel context.CancelFunc
	tell   func(message) // in a script's process: to the one that started it
	failed chan struct{} // closed at the first failure
	quiet  chan struct{} // closed when threads have nothing more to do and watching has to end
	start  time.Time
	base   int          // goroutines when the case began
	own    atomic.Int64 // goroutines of the runner itself
	tasks  sync.WaitGroup

	sharing sync.Mutex // held while one of shared is opened
	shared  []*slot

	slots      outside.Register[string, *slot]
	leases     outside.Register[string, Lease]
	identities outside.Register[string, any] // keys and blob ids
	medians    outside.Register[string, time.Duration]
	processes  outside.Register[string, *processes]

	mu struct {
		sync.Mutex
		failure *Failure
		opened  []*slot
		groups  map[string]*group
		history []string        // statements that a later process has to know
		watches []chan struct{} // each closed when its watching has ended
		events  []event         // the latest
	}
}

// slot is a component with what the script attached to its name. It stays when
// the component is closed, since scripts go on asking it.
type slot struct {
	name      string
	component Component
	tally     outside.Tally
	creators  outside.Register[string, outside.Creator]
}

type event struct {
	at   time.Duration
	who  string
	line int
	text string
	got  string
}

func (e event) String() string {
	who := e.who
	if who != "" {
		who += ": "
	}
	return fmt.Sprintf("%10s  line %d  %s%s => %s", e.at.Round(time.Microsecond), e.line, who, e.text, e.got)
}

func newRun(e *Engine, file, dir string) *run {
	r := &run{engine: e, file: file, failed: make(chan struct{}), quiet: make(chan struct{}), start: time.Now()}
	r.base = settled() - e.parked()
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.world = outside.New(r.ctx, dir)
	r.world.Files.Locate = r.locate
	r.mu.groups = map[string]*group{}
	return r
}

// settled is the number of goroutines once it has stopped falling, so that what
// an earlier case left to end is not credited to the next.
func settled() int {
	n := runtime.NumGoroutine()
	for calm := 0; calm < 3; {
		time.Sleep(time.Millisecond)
		now := runtime.NumGoroutine()
		if now >= n {
			calm++
		} else {
			calm = 0
		}
		n = now
	}
	return n
}

// leaks is how many goroutines there are above the case's start. The runner's
// own do not count, nor those that a pool keeps for later.
func (r *run) leaks() int {
	return max(0, runtime.NumGoroutine()-r.engine.parked()-r.base-int(r.own.Load()))
}

func (e *Engine) parked() int {
	if e.Parked == nil {
		return 0
	}
	return e.Parked()
}

// spawn runs fn in a goroutine that the case's end waits for. A panic or Goexit
// in it fails the case.
func (r *run) spawn(fn func()) {
	r.own.Add(1)
	r.tasks.Go(func() {
		returned := false
		defer func() {
			if v := recover(); v != nil {
				r.fail(0, fmt.Sprintf("panic: %v\n%s", v, debug.Stack()), "no panic")
			} else if !returned {
				r.fail(0, "a component called runtime.Goexit", "an answer")
			}
			r.own.Add(-1)
		}()
		fn()
		returned = true
	})
}

// fail ends the case; only the first failure counts.
func (r *run) fail(line int, got, want string) { r.failWith(Failure{Line: line, Got: got, Want: want}) }

func (r *run) failWith(f Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.failure != nil {
		return
	}
	for _, e := range r.mu.events {
		f.Events = append(f.Events, e.String())
	}
	r.mu.failure = &f
	close(r.failed)
	if r.tell != nil {
		r.tell(message{Failure: &f})
	}
}

func (r *run) stopped() bool { return closed(r.failed) }

// closed tells whether a channel that is only ever closed is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closes tells whether it is within a time.
func closes(c <-chan struct{}, within time.Duration) bool {
	select {
	case <-c:
		return true
	case <-time.After(within):
		return false
	}
}

func (r *run) note(e event) {
	e.at = time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.events = append(r.mu.events[max(0, len(r.mu.events)+1-eventsKept):], e)
}

func (r *run) locate(component, key string) (dir string, known bool, err error) {
	s := r.slots.Get(component)
	if s == nil {
		return "", false, nil
	}
	k, ok := s.component.(Keeper)
	if !ok {
		return "", true, fmt.Errorf("%s keeps no files", component)
	}
	dir, err = k.Folder(key)
	return dir, true, err
}

// finish ends what the case has begun: threads first, since their expectations
// count, then processes, leases, and components in the reverse of their order.
func (r *run) finish() {
	r.drain()
	if r.stopped() {
		r.cancel()
	}
	r.endWatches()
	r.endProcesses()
	r.world.Faults.Off()
	for _, l := range r.leases.All() {
		l.End()
	}
	r.leases.Empty()
	r.mu.Lock()
	opened := r.mu.opened
	r.mu.Unlock()
	for _, s := range slices.Backward(opened) {
		r.closeSlot(s)
	}
	for _, s := range r.shared {
		r.closeSlot(s)
	}
	r.cancel()
	done := make(chan struct{})
	go func() { r.tasks.Wait(); close(done) }()
	if !closes(done, statementLimit) {
		r.fail(0, "a statement did not end with its case", "every statement to end")
	}
}

// closeSlot closes within the limit; what hangs fails the case and is left behind.
func (r *run) closeSlot(s *slot) {
	ctx, cancel := context.WithTimeout(context.Background(), statementLimit)
	defer cancel()
	done := make(chan struct{})
	r.spawn(func() {
		defer close(done)
		_ = s.component.Close(ctx) // what it says was for the script to ask
	})
	if !closes(done, statementLimit+time.Second) {
		r.fail(0, "close of "+s.name+" did not return", "an end")
	}
}

// tempDir makes a case's directory, with room beside it.
func tempDir() (dir string, remove func(), err error) {
	around, err := os.MkdirTemp("", "kiln-conform-")
	if err == nil {
		dir = filepath.Join(around, "case")
		err = os.Mkdir(dir, 0o700)
	}
	return dir, func() { _ = os.RemoveAll(around) }, err
}
