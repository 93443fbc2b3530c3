package actors

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A miss of a cache is a turn that begins a creator, the creator, and the turn
// that takes its result in. Handing each to another goroutine costs more than
// the turns. Lend and TellLast keep them on one where nothing else waits.

// leftover is what a turn wants to be run after the actor: by the worker that
// ran it if nothing else comes, by another one before the next turn otherwise.
type leftover struct {
	some atomic.Bool // a hint, so that a turn without one takes no lock
	mu   struct {
		sync.Mutex
		fn func()
	}
}

// put leaves fn and gives what was left before, or nil.
func (l *leftover) put(fn func()) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.mu.fn
	l.mu.fn = fn
	l.some.Store(true)
	return before
}

func (l *leftover) take() func() {
	if !l.some.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fn := l.mu.fn
	l.mu.fn = nil
	l.some.Store(false)
	return fn
}

// Lend is Go for the actor's own turns: fn runs on a lent goroutine, which may
// be the one of this turn once the mailbox is empty. It waits for one more turn
// at most, never for a second fn.
func (r *Ref[M]) Lend(fn func()) {
	r.pool.retain()
	if before := r.left.put(fn); before != nil {
		r.pool.run(work{fn: before, lent: true})
	}
}

// handOver gives what is left to a worker of its own.
func (r *Ref[M]) handOver() {
	if fn := r.left.take(); fn != nil {
		r.pool.run(work{fn: fn, lent: true})
	}
}

// The states of a seat, on which TellLast offers its goroutine to the actor.
const (
	seatFree int32 = iota
	seatOffered
	seatTaken
	seatReady // fn is set
)

type seat struct {
	state atomic.Int32
	fn    func() // the actor's mailbox, to be run
}

// sit takes the seat for fn if it is offered.
func (s *seat) sit(fn func()) bool {
	if s.state.Load() != seatOffered || !s.state.CompareAndSwap(seatOffered, seatTaken) {
		return false
	}
	s.fn = fn
	s.state.Store(seatReady)
	return true
}

// TellLast is Tell as the last thing that a lent goroutine does: if the actor is
// idle, its turns run right here. The caller must hold nothing.
func (r *Ref[M]) TellLast(m M) bool {
	if !r.seat.state.CompareAndSwap(seatFree, seatOffered) {
		return r.Tell(m) // another one is about to end
	}
	sent := r.Tell(m)
	if r.seat.state.CompareAndSwap(seatOffered, seatFree) {
		return sent // the actor was running already
	}
	for r.seat.state.Load() != seatReady {
		runtime.Gosched() // whoever took the seat is two stores away
	}
	fn := r.seat.fn
	r.seat.fn = nil
	r.seat.state.Store(seatFree)
	fn()
	r.handOver() // this goroutine has a job of its own to end
	return sent
}

// dispatcher has the library run an actor's mailbox on the pool.
type dispatcher[M any] struct{ r *Ref[M] }

// Schedule implements the library's dispatcher.
func (d dispatcher[M]) Schedule(fn func()) {
	if !d.r.seat.sit(fn) {
		d.r.pool.run(work{fn: fn, left: &d.r.left})
	}
}

// Throughput is how many messages an actor may handle before it yields.
func (d dispatcher[M]) Throughput() int { return 300 }
