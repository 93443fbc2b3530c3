package constants

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// leavingContext ends when its Done is asked for: a call that looks at Err before has
// begun then, and waits.
type leavingContext struct {
	context.Context
	leave func()
}

func (c leavingContext) Done() <-chan struct{} { c.leave(); return c.Context.Done() }

// T7: a caller that leaves before it is answered has no hold on what it would have
// waited for.
func TestLeavingBeforeTheAnswer(t *testing.T) {
	_, e := open(t, Config{})
	o := add(t, e, "k", 1, Options{})
	goOn := stall(e)
	ctx, leave := context.WithCancel(context.Background())
	_, err := e.GetOrAdd(leavingContext{ctx, leave}, key("k"), 1, Options{})
	goOn()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("who left: %v", err)
	}
	freed := make(chan struct{})
	l, err := o.Fulfil("v", 1, func() { close(freed) })
	if err != nil {
		t.Fatal(err)
	}
	if there, err := e.Remove(context.Background(), key("k")); !there || err != nil {
		t.Errorf("removed %v, %v", there, err)
	}
	l.End()
	select {
	case <-freed:
	case <-time.After(10 * time.Second):
		t.Error("held by one who left")
	}
}

// T3, T6: the context to compute under ends with the ownership, however that ends.
func TestContextEndsWithTheOwnership(t *testing.T) {
	_, e := open(t, Config{})
	for how, end := range map[string]func(*Promise) error{
		"fulfilled": func(o *Promise) error {
			l, err := o.Fulfil("v", 1, nil)
			if err == nil {
				l.End()
			}
			return err
		},
		"failed":    func(o *Promise) error { o.Fail(errors.New("no")); return nil },
		"abandoned": func(o *Promise) error { o.Abandon(); return nil },
	} {
		o := add(t, e, how, 1, Options{})
		ctx := o.Context()
		if err := ctx.Err(); err != nil {
			t.Errorf("%s: ended before: %v", how, err)
		}
		if err := end(o); err != nil || !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("%s: %v, then its context says %v", how, err, ctx.Err())
		}
	}
}

// hostile is a context whose Done panics or blocks from some moment on.
type hostile struct {
	context.Context
	panics *atomic.Bool
	blocks *atomic.Pointer[chan struct{}]
}

func newHostile(ctx context.Context) hostile {
	return hostile{ctx, new(atomic.Bool), new(atomic.Pointer[chan struct{}])}
}

func (h hostile) Done() <-chan struct{} {
	if h.panics.Load() {
		panic("user's context")
	}
	if until := h.blocks.Load(); until != nil {
		<-*until
	}
	return h.Context.Done()
}

// T6: an owner whose context panics in Fulfil has ended its ownership all the same:
// the key is not blocked.
func TestFulfilUnderAPanickingContext(t *testing.T) {
	_, e := open(t, Config{})
	inner, cancel := context.WithCancel(context.Background())
	defer cancel()
	ctx := newHostile(inner)
	out, err := e.GetOrAdd(ctx, key("k"), 1, Options{})
	if err != nil || out.Owner == nil {
		t.Fatal(out, err)
	}
	answered := make(chan error, 1)
	go func() {
		out, err := e.GetOrAdd(context.Background(), key("k"), 1, Options{CanOwn: true})
		if out.Lease != nil {
			out.Lease.End()
		}
		answered <- err
	}()
	waitFor(t, func() bool { return waiting(out.Owner) == 1 })
	ctx.panics.Store(true)
	func() {
		defer func() { _ = recover() }()
		if l, err := out.Owner.Fulfil(1, 1, nil); err == nil {
			l.End()
		}
	}()
	if err := <-answered; err != nil || e.Reserved() != 0 {
		t.Errorf("who waited: %v; %d bytes stay reserved", err, e.Reserved())
	}
}

// F6, F8: a context that blocks holds up its own caller, not the answers of others
// when the engine closes.
func TestCloseUnderABlockingContext(t *testing.T) {
	_, e := open(t, Config{})
	inner, cancel := context.WithCancel(context.Background())
	defer cancel()
	ctx := newHostile(inner)
	if out, err := e.GetOrAdd(ctx, key("blocks"), 1, Options{}); err != nil || out.Owner == nil {
		t.Fatal(out, err)
	}
	const others = 16
	answers := make(chan error, others)
	for i := range others {
		id := fmt.Sprint(i)
		o := add(t, e, id, 1, Options{})
		go func() {
			_, err := e.GetOrAdd(context.Background(), key(id), 1, Options{})
			answers <- err
		}()
		waitFor(t, func() bool { return waiting(o) == 1 })
	}
	until := make(chan struct{})
	ctx.blocks.Store(&until)
	defer close(until)
	go e.Close(context.Background())
	for range others {
		if err := <-answers; !errors.Is(err, fault.ErrClosed) {
			t.Error(err)
		}
	}
}

// F4: a computation that ends with its caller's deadline tells of that.
func TestDeadlineOfAComputation(t *testing.T) {
	_, e := open(t, Config{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, _, err := e.Get(ctx, key("k"), 1, Options{}, func(own context.Context) (Value, error) {
		<-own.Done()
		return Value{}, own.Err()
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}
