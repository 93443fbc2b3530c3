package actors

import (
	"context"
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/fault"
)

// Errors that requests end with.
var (
	ErrClosed     = fault.ErrClosed
	ErrOverloaded = fault.ErrOverloaded
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
	ch    chan answer[T] // capacity 1: the one answer
}

type answer[T any] struct {
	value T
	err   error
}

func newReply[T any]() Reply[T] {
	return Reply[T]{&slot[T]{ch: make(chan answer[T], 1)}}
}

// Send answers with a value. It reports whether the asker will see it: a false
// means that it has left or was answered before, and whatever the value carries
// (a lease) is still the sender's to release.
func (r Reply[T]) Send(value T) bool { return r.answer(value, nil) }

// Fail answers with an error; it reports the same as Send.
func (r Reply[T]) Fail(err error) bool {
	var zero T
	return r.answer(zero, err)
}

func (r Reply[T]) answer(value T, err error) bool {
	if r.slot == nil || !r.slot.state.CompareAndSwap(replyOpen, replySent) {
		return false
	}
	r.slot.ch <- answer[T]{value, err}
	return true
}

// wait gives the answer, the context's error, or ErrClosed once stopped is closed.
func (r Reply[T]) wait(ctx context.Context, stopped <-chan struct{}) (T, error) {
	var cause error
	select {
	case a := <-r.slot.ch:
		return a.value, a.err
	case <-ctx.Done():
		cause = ctx.Err()
	case <-stopped:
		cause = ErrClosed
	}
	if r.slot.state.CompareAndSwap(replyOpen, replyAbandoned) {
		var zero T
		return zero, cause
	}
	a := <-r.slot.ch // it was being answered at that moment: take what it carries
	return a.value, a.err
}
