package actors

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// pool lends goroutines that keep their grown stacks. Work goes to a parked
// worker if there is one, else to a new one, so nothing ever queues behind a
// worker that blocks. Workers end with the last user of the pool.
//
// A fixed pool would be starved by two blocking actors; a goroutine for every
// wake-up pays for growing its stack again: the elastic form was measured five
// times cheaper than that.
type pool struct {
	most  int          // workers kept for later; a burst beyond it ends
	users atomic.Int64 // from 0 to 1 under poolMu only
	wakes sync.Pool    // channels that replies signal on: drained, capacity 1

	mu struct {
		sync.Mutex
		parked []chan work // each has room for one work: the last one parked is the warmest
		ended  bool        // the last user has gone
	}
}

// work is what a worker runs.
type work struct {
	fn   func()
	lent bool // fn retains the pool until it has ended
}

var (
	poolMu  sync.Mutex
	current *pool
)

// retainPool gives the running pool, or a new one if nobody uses one. A pool
// belongs to its users alone, so one that was made inside a synctest bubble
// never outlives it.
func retainPool() *pool {
	poolMu.Lock()
	defer poolMu.Unlock()
	if current == nil {
		current = &pool{most: 2*runtime.GOMAXPROCS(0) + 6}
		current.wakes.New = func() any { return make(chan struct{}, 1) }
	}
	current.users.Add(1)
	return current
}

func (p *pool) release() {
	if p.users.Add(-1) > 0 {
		return
	}
	poolMu.Lock()
	defer poolMu.Unlock()
	if p != current || p.users.Load() > 0 {
		return // somebody came in between, and may have gone again
	}
	current = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.ended = true
	for _, worker := range p.mu.parked {
		close(worker)
	}
	p.mu.parked = nil
}

// run has a worker do w soon, on a goroutine of its own.
func (p *pool) run(w work) {
	p.mu.Lock()
	last := len(p.mu.parked) - 1
	if last < 0 {
		p.mu.Unlock()
		go p.work(w)
		return
	}
	worker := p.mu.parked[last]
	p.mu.parked = p.mu.parked[:last]
	p.mu.Unlock()
	worker <- w
}

// park keeps a worker for later and reports false if it is to end.
func (p *pool) park(worker chan work) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.ended || len(p.mu.parked) == p.most {
		return false
	}
	p.mu.parked = append(p.mu.parked, worker)
	return true
}

func (p *pool) do(w work) {
	if w.lent {
		defer p.release()
	}
	w.fn()
}

func (p *pool) work(w work) {
	next := make(chan work, 1)
	for more := true; more; w, more = <-next {
		p.do(w) // runtime.Goexit in here ends this worker, which is all it may end
		if !p.park(next) {
			return
		}
	}
}

// Go runs fn on a lent goroutine and returns at once. fn may block, panic in a
// guarded way or call runtime.Goexit; an unguarded panic ends the process as
// in any goroutine. The caller must have a way to wait for fn's end.
func Go(fn func()) {
	retainPool().run(work{fn: fn, lent: true})
}

// GoOn is Go for a loop over user code. Where that ends the goroutine with
// runtime.Goexit, fn is run again on another one, until it returns.
func GoOn(fn func()) {
	Go(func() {
		returned := false
		defer func() {
			if !returned {
				GoOn(fn)
			}
		}()
		fn()
		returned = true
	})
}

// Idle reports whether nobody uses lent goroutines: no actor runs and no
// function given to Go does. For tests.
func Idle() bool {
	poolMu.Lock()
	defer poolMu.Unlock()
	return current == nil
}

// Parked is how many lent goroutines wait for the next work: they are kept on
// purpose and end with the last user of the pool. For tests that count
// goroutines.
func Parked() int {
	poolMu.Lock()
	defer poolMu.Unlock()
	if current == nil {
		return 0
	}
	current.mu.Lock()
	defer current.mu.Unlock()
	return len(current.mu.parked)
}

// dispatcher has the library run an actor's mailbox on the pool.
type dispatcher struct{ pool *pool }

// Schedule implements the library's dispatcher.
func (d dispatcher) Schedule(fn func()) { d.pool.run(work{fn: fn}) }

// Throughput is how many messages an actor may handle before it yields: about as many
// as take the time slice of the scheduler. Where all cores are busy, who yields waits
// for a slice of everybody else.
func (d dispatcher) Throughput() int { return 10_000 }
