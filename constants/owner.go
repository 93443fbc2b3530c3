package constants

import (
	"container/list"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Promise is the duty of an owner to deliver a tensor. The owner must call one of
// Fulfil, Fail and Abandon; the first call wins. The end of the context that was
// given to GetOrAdd counts as Abandon. Safe for concurrent use.
type Promise struct {
	engine  *Engine
	pending *pending
	flight  *flight.Flight[*node]
	asked   context.Context         // what the tensor was asked for with
	ctx     context.Context         // of asked, with the flight's identity
	cancel  context.CancelCauseFunc // ends ctx
	watched bool                    // the end of asked ends the ownership
	stop    func() bool             // ends that watch; nil = it has not begun
	over    atomic.Bool
	refused bool // there was no device memory; set before its end
	memory  *memory
}

// memory is what Config.Reserve gave for one tensor. It is apart from the
// Promise, which a tensor must not keep: it holds the context of a request.
type memory struct{ free atomic.Pointer[func()] }

// release gives it back, once. What Reserve gave is user code, whose panic goes no
// further.
func (m *memory) release(e *Engine) {
	if free := m.free.Swap(nil); free != nil {
		e.discard(*free)
	}
}

// promise is what the caller delivers by, should it become the owner of p. It is
// made on the caller's goroutine: ctx is user code.
func (e *Engine) promise(ctx context.Context, p *pending) *Promise {
	f := flight.New[*node](ctx, e, p.key.ID)
	o := &Promise{engine: e, pending: p, flight: f, asked: ctx, memory: new(memory)}
	o.ctx, o.cancel = context.WithCancelCause(context.WithoutCancel(f.Own(ctx))) // so that no turn calls user code by cancel
	p.owner = o
	return o
}

// Context is the one to compute under. A creator that comes to wait for this very
// tensor with it gets ErrCycle instead of waiting for ever. It ends with the
// ownership, and when the engine closes.
func (o *Promise) Context() context.Context { return o.ctx }

// Fulfil delivers the tensor: its value, its size in bytes, and the function that
// frees it after its last use (nil = nothing to free). The lease is the owner's
// own. On an error the value stays the caller's: ErrSize if bytes is not the
// declared size, ErrInvalid if the ownership is over.
func (o *Promise) Fulfil(value any, bytes int64, free func()) (*Lease, error) {
	if !o.finish() {
		return nil, fault.Invalidf("constants: fulfil", "the ownership is over")
	}
	defer o.unwatch()
	if bytes != o.pending.bytes {
		err := &fault.Error{Op: "constants: fulfil", Key: o.pending.key.ID, Err: fmt.Errorf("%w: %d bytes, and %d were declared", fault.ErrSize, bytes, o.pending.bytes)}
		o.engine.tell(endMsg{owner: o, err: err})
		o.memory.release(o.engine)
		return nil, err
	}
	n := o.engine.shell.state.newNode(o.pending)
	n.Value.value = value
	n.Value.cell.Init(o.freeing(n, free))
	o.engine.cache.cfg.memory.Add(bytes)
	n.Value.cell.Pin() // the owner's lease
	if o.pending.callback != nil {
		n.Value.calls.add(o.pending.callback)
	}
	// Waits until it is resident, so that the next lookup hits.
	_, err := actors.Ask(context.WithoutCancel(o.ctx), o.engine.ref, func(r actors.Reply[struct{}]) message {
		return fulfilMsg{o, n, r}
	})
	if err != nil { // closed: nobody else has it, the owner still does
		n.Value.gone.Store(true)
		n.Value.cell.Unpin()
	}
	return newLease(n), nil
}

// freeing is what frees the tensor: user code, whose panic goes no further. It does
// not keep o.
func (o *Promise) freeing(n *node, free func()) func() {
	e, reserved := o.engine, o.memory
	return func() {
		defer e.cache.cfg.memory.Add(-n.Value.bytes)
		if n.Value.apart.Load() {
			e.tell(forgetMsg{n})
		}
		defer reserved.release(e)
		e.discard(free)
	}
}

// Fail ends the ownership with an error. Waiters get it, wrapped.
func (o *Promise) Fail(err error) {
	if err == nil {
		err = fault.ErrAbandoned
	}
	if o.finish() {
		defer o.unwatch()
		o.end(err)
	}
}

func (o *Promise) end(err error) {
	o.engine.tell(endMsg{owner: o, err: o.failure(err)})
	o.memory.release(o.engine)
}

// failure is the error that waiters get.
func (o *Promise) failure(err error) error {
	return &fault.Error{Op: "constants: get", Key: o.pending.key.ID, Err: err}
}

// watch has the end of the context that the tensor was asked for with count as
// Abandon. It comes before the owner gets the promise.
func (o *Promise) watch() {
	o.stop = context.AfterFunc(guard.Context(o.asked), func() { // perhaps before watch returns: stop is not for it
		if o.finish() {
			o.end(fault.ErrAbandoned)
		}
	})
}

// unwatch ends that. It calls user code, the context's, so it comes after all else.
func (o *Promise) unwatch() {
	if o.stop != nil {
		o.stop()
	}
}

// cancelAfter cancels the computation when ctx has ended and the linger time is over,
// unless stop is called or the ownership ends before that.
func (o *Promise) cancelAfter(ctx context.Context, linger time.Duration) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		rest := time.AfterFunc(linger, func() { o.cancel(context.Cause(ctx)) })
		context.AfterFunc(o.ctx, func() { rest.Stop() })
	})
}

// Abandon ends the ownership without a value; waiters get ErrAbandoned.
func (o *Promise) Abandon() { o.Fail(fault.ErrAbandoned) }

func (o *Promise) finish() bool {
	if !o.over.CompareAndSwap(false, true) {
		return false
	}
	o.cancel(nil)
	return true
}

// waiter is a caller that waits for a tensor, whoever owns it, and can compute it.
type waiter struct {
	asked *pending      // what it would own
	line  *line         // the actor's
	place *list.Element // there; the actor's

	called chan struct{} // closed after one of these is set, when its turn has come
	owner  *Promise      // it has become
	bypass Bypass        // or why it has not
}
