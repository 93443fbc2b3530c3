package constants

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/flight"
)

// F3, T6: the context of an owner that panics, or has no error when it has ended, ends
// the ownership and not the process; the next owner is not held up.
func TestForeignContext(t *testing.T) {
	for _, harm := range []func(){func() { panic("context") }, func() {}} {
		_, e := open(t, Config{})
		ctx := actorstest.NewForeign(harm)
		out, err := e.GetOrAdd(ctx, key("k"), 8, Options{})
		if err != nil || out.Owner == nil {
			t.Fatal(out, err)
		}
		ctx.End()
		<-out.Owner.Context().Done()
		if _, err := out.Owner.Fulfil("v", 8, nil); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("delivered by an owner whose context has ended: %v", err)
		}

		ctx = actorstest.NewForeign(harm)
		_, _, err = e.Get(ctx, key("k"), 8, Options{}, func(own context.Context) (Value, error) {
			ctx.End()
			<-own.Done()
			return Value{}, own.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
		l, cached, err := e.Get(context.Background(), key("k"), 8, Options{}, func(context.Context) (Value, error) {
			return Value{Any: "v", Bytes: 8}, nil
		})
		if err != nil || !cached {
			t.Fatal(err)
		}
		l.End()
	}
}

// F3: an owner's context that ends its goroutine when it is asked ends no other.
func TestContextThatEndsItsGoroutine(t *testing.T) {
	_, e := open(t, Config{})
	ctx := actorstest.NewForeign(runtime.Goexit)
	out, err := e.GetOrAdd(ctx, key("k"), 8, Options{})
	if err != nil || out.Owner == nil {
		t.Fatal(out, err)
	}
	ctx.End()
	left := make(chan struct{})
	go func() { // it takes back its watch, which asks the context
		defer close(left)
		if l, err := out.Owner.Fulfil("v", 8, nil); err == nil {
			l.End()
		}
	}()
	<-left
	if err := e.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// F3, T6: an owner whose context ends the goroutine, or panics, in any call has given
// up: nobody waits for it for ever.
func TestContextThatEndsTheOwner(t *testing.T) {
	compute := func(context.Context) (Value, error) { return Value{Bytes: 8}, nil }
	for what, ask := range map[string]func(e *Engine, ctx context.Context){
		"GetOrAdd": func(e *Engine, ctx context.Context) {
			if out, err := e.GetOrAdd(ctx, key("k"), 8, Options{CanOwn: true}); err == nil && out.Owner != nil {
				out.Owner.Abandon()
			}
		},
		"Get": func(e *Engine, ctx context.Context) {
			if l, _, err := e.Get(ctx, key("k"), 8, Options{}, compute); err == nil {
				l.End()
			}
		},
	} {
		for _, harm := range []func(){func() { panic("context") }, runtime.Goexit} {
			for n, done := int64(1), false; !done; n++ {
				_, e := open(t, Config{})
				base, cancel := context.WithCancel(context.Background())
				ctx := actorstest.NewMoody(base, n, harm)
				actorstest.Apart(func() { ask(e, ctx) })
				done = !ctx.Harmed() // it was not called so often
				waitFor(t, func() bool { return e.Reserved() == 0 })
				cancel()
				if t.Failed() {
					t.Fatalf("%s, call %d", what, n)
				}
			}
		}
	}
}

// T6: a waiter whose context panics has left: the ownership is not handed over to it.
func TestWaiterWhoseContextPanics(t *testing.T) {
	for _, canOwn := range []bool{true, false} {
		_, e := open(t, Config{})
		o := add(t, e, "k", 8, Options{})
		ctx := actorstest.NewForeign(func() { panic("context") })
		left := make(chan struct{})
		go func() {
			defer close(left)
			defer func() { _ = recover() }()
			_, _ = e.GetOrAdd(ctx, key("k"), 8, Options{CanOwn: canOwn})
		}()
		waitFor(t, func() bool { return waiting(o) == 1 })
		ctx.End()
		<-left
		o.Abandon()
		add(t, e, "k", 8, Options{}).Abandon()
	}
}

// F5: what is asked for and comes to another's leaves no edge behind on the flight of
// the creator that asked.
func TestUnusedPromisesLeaveNoEdges(t *testing.T) {
	_, e := open(t, Config{})
	creator := flight.New[int](context.Background(), "creator", "c")
	gone := func(what string) {
		t.Log(what)
		waitFor(t, func() bool { return !creator.HasEdges() })
	}
	ask := func(what string, canOwn, leaves bool, owner func(o *Promise)) {
		o := add(t, e, what, 8, Options{})
		ctx, cancel := context.WithCancel(creator.Context())
		defer cancel()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			out, _ := e.GetOrAdd(ctx, key(what), 8, Options{CanOwn: canOwn})
			switch {
			case out.Lease != nil:
				out.Lease.End()
			case out.Owner != nil:
				out.Owner.Abandon()
			}
		}()
		waitFor(t, func() bool { return waiting(o) == 1 })
		if leaves {
			cancel()
			<-asked
		}
		owner(o)
		<-asked
		gone(what)
	}
	fulfil := func(o *Promise) {
		if l, err := o.Fulfil("v", 8, nil); err == nil {
			l.End()
		}
	}
	ask("joined", true, false, fulfil)
	ask("joined and cannot", false, false, fulfil)
	ask("left", true, true, fulfil)
	ask("left and cannot", false, true, fulfil)
	ask("failed", false, false, (*Promise).Abandon)
	ask("inherited", true, false, (*Promise).Abandon)
	e.GetOrAdd(creator.Context(), key("joined"), 8, Options{}) // a hit
	gone("hit")
	e.Close(context.Background())
	if _, err := e.GetOrAdd(creator.Context(), key("closed"), 8, Options{}); !errors.Is(err, fault.ErrClosed) {
		t.Error(err)
	}
	gone("closed")
}
