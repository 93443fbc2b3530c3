package constants

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"weak"

	"github.com/kiln-cache/kiln/fault"
)

// T7: a hit that is found in a turn, for a caller who has left, is given back.
func TestHitForOneWhoLeft(t *testing.T) {
	_, e := open(t, Config{})
	owner := add(t, e, "k", 8, Options{})
	goOn := stall(e)
	queued := e.ref.Queued()
	var freed atomic.Bool
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		if l, err := owner.Fulfil("v", 8, func() { freed.Store(true) }); err != nil {
			t.Error(err)
		} else {
			l.End()
		}
	}()
	waitFor(t, func() bool { return e.ref.Queued() == queued+1 })
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		_, err := e.GetOrAdd(ctx, key("k"), 8, Options{})
		left <- err
	}()
	waitFor(t, func() bool { return e.ref.Queued() == queued+2 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	goOn()
	<-delivered
	if there, err := e.Remove(context.Background(), key("k")); !there || err != nil {
		t.Fatal(there, err)
	}
	waitFor(t, freed.Load)
}

// T3: device memory that comes when the owner was cancelled meanwhile goes back.
func TestMemoryForOneWhoWasCancelled(t *testing.T) {
	var e *Engine
	ctx, cancel := context.WithCancel(context.Background())
	var back atomic.Int32
	_, e = open(t, Config{Reserve: func(Kind, int, int64) (func(), error) {
		cancel()
		waitFor(t, func() bool { return e.Reserved() == 0 })
		return func() { back.Add(1) }, nil
	}})
	out, err := e.GetOrAdd(ctx, key("k"), 8, Options{})
	if err != nil || out.Owner == nil {
		t.Fatal(out, err)
	}
	waitFor(t, func() bool { return back.Load() == 1 })
	if _, err := out.Owner.Fulfil("v", 8, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("fulfilled after its end: %v", err)
	}
	if back.Load() != 1 {
		t.Errorf("given back %d times", back.Load())
	}
}

// F3, T7: callbacks and frees that end their goroutine keep nobody else waiting.
func TestCallbackThatEndsItsGoroutine(t *testing.T) {
	c, e := open(t, Config{})
	fired, freed := make(chan string, 6), make(chan string, 3) // one of each
	for _, id := range []string{"a", "b", "c"} {
		put(t, e, id, mib, Options{Removed: func(Removal) {
			fired <- id
			runtime.Goexit()
		}}, func() {
			freed <- id
			runtime.Goexit()
		})
		l, _ := e.Lookup(key(id))
		var ref *Held
		var ok bool
		ref, ok = l.Hold(func(Removal) {
			fired <- id
			ref.Drop()
		})
		if !ok {
			t.Fatal("no reference")
		}
		l.End()
	}
	if err := c.Close(context.Background()); err != nil { // which waits for them
		t.Fatal(err)
	}
	if len(fired) != 6 || len(freed) != 3 {
		t.Errorf("%d of 6 callbacks, %d of 3 frees", len(fired), len(freed))
	}
}

// T8: a reference that was dropped leaves nothing behind in the tensor, however
// often it is held.
func TestHoldAndDrop(t *testing.T) {
	_, e := open(t, Config{})
	put(t, e, "k", 8, Options{}, nil)
	l, _ := e.Lookup(key("k"))
	defer l.End()
	for range 1000 {
		h, ok := l.Hold(func(Removal) { t.Error("told about a reference that was dropped") })
		if !ok {
			t.Fatal("a resident tensor cannot be held")
		}
		h.Drop()
	}
	if n := l.lease.Value().Value.calls.mu.list.Len(); n != 0 {
		t.Errorf("%d callbacks are left, want 0", n)
	}
	if _, err := e.Remove(context.Background(), key("k")); err != nil {
		t.Fatal(err)
	}
}

// A tensor outlives the request that asked for it by hours: it keeps nothing of
// that request's context.
func TestTensorKeepsNoContext(t *testing.T) {
	for _, reserve := range []func(Kind, int, int64) (func(), error){
		nil,
		func(Kind, int, int64) (func(), error) { return func() {}, nil },
	} {
		_, e := open(t, Config{Reserve: reserve})
		type carried struct{ _ [1 << 16]byte }
		type name struct{}
		request := new(carried)
		seen := weak.Make(request)
		ctx, cancel := context.WithCancel(context.WithValue(context.Background(), name{}, request))
		l, _, err := e.Get(ctx, key("k"), 8, Options{}, func(context.Context) (Value, error) {
			return Value{Any: "v", Bytes: 8, Free: func() {}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
		cancel()
		ctx, request = nil, nil
		waitFor(t, func() bool { runtime.GC(); return seen.Value() == nil })
	}
}

// F6: what a caller's context does when it is asked is the caller's
// own affair: it holds up nobody else.
func TestSlowContext(t *testing.T) {
	_, e := open(t, Config{})
	held := make(chan struct{})
	slow := slowContext{context.Background(), held}
	got := make(chan error, 1)
	go func() {
		l, _, err := e.Get(slow, key("slow"), 8, Options{}, func(context.Context) (Value, error) { return Value{Bytes: 8}, nil })
		if err == nil {
			l.End()
		}
		got <- err
	}()
	put(t, e, "k", 8, Options{}, nil) // waits for a turn
	close(held)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// slowContext answers nothing until it is let go.
type slowContext struct {
	context.Context
	held chan struct{}
}

func (c slowContext) Value(any) any { <-c.held; return nil }
func (c slowContext) Err() error    { <-c.held; return nil }
