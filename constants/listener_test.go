package constants

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// F3, T3: a listener that ends its goroutine when it is told of a promise does not end the
// owner: that delivers.
func TestListenerThatEndsWhenToldOfAPromise(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		bg := context.Background()
		var promises atomic.Int32
		_, e := open(t, Config{Listen: func(told Event) {
			if told.Owner {
				promises.Add(1)
				runtime.Goexit()
			}
		}})
		for _, k := range []string{"a", "b"} {
			out, err := e.GetOrAdd(bg, key(k), 8, Options{})
			if err != nil || out.Owner == nil {
				t.Fatal(out, err)
			}
			synctest.Wait()
			l, err := out.Owner.Fulfil("v", 8, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.End()
		}
		if n := promises.Load(); n != 2 {
			t.Errorf("told of %d promises, want 2", n)
		}
	})
}

// F3, C5: a listener that ends its goroutine has the caller keep no lease.
func TestListenerKeepsNoLease(t *testing.T) {
	bg := context.Background()
	compute := func(freed *atomic.Int32) func(context.Context) (Value, error) {
		return func(context.Context) (Value, error) {
			return Value{Any: "v", Bytes: 8, Free: func() { freed.Add(1) }}, nil
		}
	}
	for what, ask := range map[string]func(e *Engine, freed *atomic.Int32){
		"Lookup":        func(e *Engine, _ *atomic.Int32) { e.Lookup(key("k")) },
		"GetOrAdd":      func(e *Engine, _ *atomic.Int32) { _, _ = e.GetOrAdd(bg, key("k"), 8, Options{}) },
		"Get, a hit":    func(e *Engine, freed *atomic.Int32) { _, _, _ = e.Get(bg, key("k"), 8, Options{}, compute(freed)) },
		"Get, an owner": func(e *Engine, freed *atomic.Int32) { _, _, _ = e.Get(bg, key("other"), 8, Options{}, compute(freed)) },
		"Get, not to be had": func(e *Engine, freed *atomic.Int32) {
			_, _, _ = e.Get(bg, key("large"), mib, Options{}, compute(freed))
		},
	} {
		var armed atomic.Bool
		c, e := open(t, Config{Capacity: [2]limit.Limit{limit.Of(1)}, Listen: func(told Event) {
			if armed.Load() && told.Removal == "" {
				runtime.Goexit()
			}
		}})
		var freed atomic.Int32
		put(t, e, "k", 8, Options{}, func() { freed.Add(1) })
		armed.Store(true)
		left := make(chan struct{})
		go func() {
			defer close(left)
			ask(e, &freed)
		}()
		<-left
		if err := c.Close(bg); err != nil {
			t.Fatal(err)
		}
		want := int32(1)
		if what == "Get, an owner" || what == "Get, not to be had" {
			want++
		}
		if n := freed.Load(); n != want {
			t.Errorf("%s: %d tensors of %d are freed", what, n, want)
		}
	}
}

// F6: a listener that is told of a promise, and blocks, holds up neither its owner nor those who
// wait for the tensor. A close waits for it, and it is told of no promise after that.
func TestListenerThatBlocks(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		bg := context.Background()
		var promises atomic.Int32
		goOn := make(chan struct{})
		c, e := open(t, Config{Listen: func(told Event) {
			if told.Owner {
				promises.Add(1)
				<-goOn
			}
		}})
		own := func(k string) {
			out, err := e.GetOrAdd(bg, key(k), 8, Options{})
			if err != nil || out.Owner == nil {
				t.Fatal(out, err)
			}
			go func() {
				if out, err := e.GetOrAdd(bg, key(k), 8, Options{}); err == nil {
					out.Lease.End()
				}
			}()
			synctest.Wait()
			l, err := out.Owner.Fulfil("v", 8, nil)
			if err != nil {
				t.Fatal(err)
			}
			l.End()
		}
		own("a")
		own("b")
		synctest.Wait()
		if n := promises.Load(); n != 1 {
			t.Errorf("told of %d promises while it is told of the first", n)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close(bg) }()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while the listener was told of a promise")
		default:
		}
		close(goOn)
		if err := <-closed; err != nil || promises.Load() != 2 {
			t.Errorf("closed with %v, told of %d promises, want 2", err, promises.Load())
		}
		e.event(time.Time{}, Event{Owner: true}, Outcome{Owner: new(Promise)}) // of a call that was answered before the close
		synctest.Wait()
		if n := promises.Load(); n != 2 {
			t.Error("told of a promise when all is closed")
		}
	})
}

// T7, F6: however long a listener takes when it is told of a promise, the removal of the same
// tensor comes after it, and holds up neither the callback nor the Free.
func TestRemovalIsToldAfterThePromise(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		bg := context.Background()
		var told []string // by one call at a time
		goOn := make(chan struct{})
		c, e := open(t, Config{Listen: func(of Event) {
			if of.Owner {
				<-goOn
				told = append(told, "promise of "+of.Key.ID)
			}
			if of.Removal != "" {
				told = append(told, string(of.Removal)+" "+of.Key.ID)
			}
		}})
		var called, freed atomic.Int32
		var want []string
		for _, k := range []string{"a", "b"} {
			out, err := e.GetOrAdd(bg, key(k), 8, Options{Removed: func(Removal) { called.Add(1) }})
			if err != nil || out.Owner == nil {
				t.Fatal(out, err)
			}
			l, err := out.Owner.Fulfil("v", 8, func() { freed.Add(1) })
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			if was, err := e.Remove(bg, key(k)); !was || err != nil {
				t.Fatal(was, err)
			}
			synctest.Wait()
			want = append(want, "promise of "+key(k).ID, "removed "+key(k).ID)
		}
		if len(told) > 0 || called.Load() != 2 || freed.Load() != 2 {
			t.Errorf("told %v before the first promise; %d callbacks are called and %d tensors freed, want 2", told, called.Load(), freed.Load())
		}
		close(goOn)
		if err := c.Close(bg); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
