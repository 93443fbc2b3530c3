package actors

import (
	"context"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

const (
	replyOpen      = iota
	replySent      // an answer is in the channel or about to be
	replyAbandoned // the asker has left
)

// Reply is the one-shot answer slot of a request. It may be copied. The zero
// Reply takes nothing. Safe for concurrent use; only the first answer counts.
type Reply[T any] struct{ slot *slot[T] }

type slot[T any] struct {
	state atomic.Int32
	value T
	err   error
	wake  chan struct{} // the one signal that value and err are there; lent by a pool
}

func newReply[T any](p *pool) Reply[T] {
	return Reply[T]{&slot[T]{wake: p.wakes.Get().(chan struct{})}}
}

// Send answers with a value. It reports whether the asker will see it: a false
// means that it has left or was answered before, and whatever the value carries
// (a lease) is still the sender's to release.
func (r Reply[T]) Send(value T) bool { return r.Answer(value, nil) }

// Fail answers with an error; it reports the same as Send.
func (r Reply[T]) Fail(err error) bool {
	var zero T
	return r.Answer(zero, err)
}

// Answer answers with both, either of which may be zero; it reports the same as
// Send.
func (r Reply[T]) Answer(value T, err error) bool {
	s := r.slot
	if s == nil || !s.state.CompareAndSwap(replyOpen, replySent) {
		return false
	}
	s.value, s.err = value, err
	s.wake <- struct{}{}
	return true
}

// wait gives the answer, the context's error, or ErrClosed once stopped is
// closed. INVARIANT: the state says whether a signal comes: once it was awaited
// or can come no more, the channel goes back.
func (r Reply[T]) wait(ctx context.Context, done, stopped <-chan struct{}, p *pool) (T, error) {
	s := r.slot
	left := false
	select {
	case <-s.wake:
		p.wakes.Put(s.wake)
		return s.value, s.err
	case <-done:
		left = true
	case <-stopped:
	}
	if !s.state.CompareAndSwap(replyOpen, replyAbandoned) {
		<-s.wake // it was being answered at that moment: take what it carries
		p.wakes.Put(s.wake)
		return s.value, s.err
	}
	p.wakes.Put(s.wake) // no signal comes any more
	var zero T
	if left {
		return zero, guard.Ended(ctx) // user code: after everything else
	}
	return zero, fault.ErrClosed
}
