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
	idle   chan work     // unbuffered: a send succeeds only into a parked worker
	quit   chan struct{} // closed when the last user has gone
	parked atomic.Int32
	users  int       // under poolMu
	wakes  sync.Pool // channels that replies signal on: drained, capacity 1
}

// work is what a worker runs: fn, then what the actor that ran in fn left for
// this goroutine.
type work struct {
	fn   func()
	lent bool      // fn retains the pool until it has ended
	left *leftover // nil = nothing can be left
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
		current = &pool{idle: make(chan work), quit: make(chan struct{})}
		current.wakes.New = func() any { return make(chan struct{}, 1) }
	}
	current.users++
	return current
}

// retain is for one who has retained it already and uses it once more.
func (p *pool) retain() {
	poolMu.Lock()
	p.users++
	poolMu.Unlock()
}

func (p *pool) release() {
	poolMu.Lock()
	defer poolMu.Unlock()
	p.users--
	if p.users == 0 {
		close(p.quit)
		current = nil
	}
}

// mostParked bounds the workers kept for later; a burst beyond it ends.
func mostParked() int32 { return int32(2*runtime.GOMAXPROCS(0) + 6) }

// run has a worker do w soon, on a goroutine of its own.
func (p *pool) run(w work) {
	select {
	case p.idle <- w:
	default:
		go p.work(w)
	}
}

func (p *pool) do(w work) {
	if w.lent {
		defer p.release()
	}
	w.fn()
}

func (p *pool) work(w work) {
	for {
		p.do(w) // runtime.Goexit in here ends this worker, which is all it may end
		if w.left != nil {
			if fn := w.left.take(); fn != nil {
				p.do(work{fn: fn, lent: true})
			}
		}
		if p.parked.Add(1) > mostParked() {
			p.parked.Add(-1)
			return
		}
		select {
		case w = <-p.idle:
			p.parked.Add(-1)
		case <-p.quit:
			p.parked.Add(-1)
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
	return int(current.parked.Load())
}
