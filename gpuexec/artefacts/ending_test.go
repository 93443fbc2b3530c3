package artefacts_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// F4: a waiter, and the one who started it, leave alone.
func TestLeaveAlone(t *testing.T) {
	for _, starter := range []bool{false, true} {
		bubble(t, entries(4), func(t *testing.T, c room) {
			g := gate()
			ctx, cancel := context.WithCancel(background)
			first, second := background, ctx
			if starter {
				first, second = ctx, background
			}
			a := c.calls(first, 1, "k", maker{value: "v", wait: g})
			b := c.calls(second, 1, "k", maker{})
			cancel()
			synctest.Wait()
			want(t, "aborted", c.count(c.mu.aborted, "k"), 0)
			want(t, "len", c.Len(), 1)
			close(g)
			if starter {
				want(t, "starter", <-a, "error canceled")
				want(t, "waiter", <-b, "v by=joined")
			} else {
				want(t, "starter", <-a, "v by=miss")
				want(t, "waiter", <-b, "error canceled")
			}
			want(t, "get", c.get("k", maker{}), "v by=hit")
		})
	}
}

// F4: nobody is left. The place is free before the creator is told to end.
func TestDeserted(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		ctx, cancel := context.WithCancel(background)
		a := c.calls(ctx, 3, "k", maker{wait: gate()})
		cancel()
		want(t, "callers", all(a, 3)["error canceled"], 3)
		synctest.Wait()
		want(t, "len", c.Len(), 0)
		want(t, "aborted", c.count(c.mu.aborted, "k"), 1)
		want(t, "again", c.get("k", maker{value: "v2"}), "v2 by=miss")
	})
}

// F4, F9: the places of its parts are free then as well, but for those that
// somebody else wants.
func TestDesertedWithParts(t *testing.T) {
	for range 100 { // outside of a bubble: the parts' creators are to be late
		c := open(t, entries(4))
		c.mu.rules["a"], c.mu.rules["b"] = maker{nest: []string{"b"}}, maker{wait: gate()}
		ctx, cancel := context.WithCancel(background)
		done := make(chan string, 1) // one answer
		go func() { done <- c.getIn(ctx, "whole", maker{nest: []string{"a"}}) }()
		for c.count(c.mu.creations, "b") == 0 {
			runtime.Gosched()
		}
		want(t, "len", c.Len(), 3)
		cancel()
		want(t, "caller", <-done, "error canceled")
		eventually(t, "len", c.Len, 0)
		c.close()
	}
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		c.mu.rules["a"], c.mu.rules["b"] = maker{nest: []string{"b"}}, maker{wait: g}
		ctx, cancel := context.WithCancel(background)
		whole := c.calls(ctx, 1, "whole", maker{nest: []string{"a"}})
		part := c.calls(background, 1, "b", maker{})
		cancel()
		want(t, "caller", <-whole, "error canceled")
		synctest.Wait()
		want(t, "len", c.Len(), 1)
		close(g)
		want(t, "part", <-part, "b by=joined")
		want(t, "len", c.Len(), 1)
	})
}

// F1, F4: a deserted creator that heeds no context; no second one starts beside it,
// and what it makes is kept. If it fails, that is nothing to callers who came late.
func TestDesertedAndStubborn(t *testing.T) {
	for _, fails := range []string{"", "E"} {
		bubble(t, entries(4), func(t *testing.T, c room) {
			g := gate()
			ctx, cancel := context.WithCancel(background)
			a := c.calls(ctx, 1, "k", maker{value: "old", wait: g, stubborn: true, fail: fails})
			cancel()
			want(t, "caller", <-a, "error canceled")
			synctest.Wait()
			want(t, "len while it runs", c.Len(), 0)
			b := c.calls(background, 2, "k", maker{value: "new"})
			want(t, "creations", c.count(c.mu.creations, "k"), 1)
			close(g)
			got := all(b, 2)
			if fails == "" {
				want(t, "joined", got["old by=joined"], 2)
				want(t, "kept", c.get("k", maker{}), "old by=hit")
			} else {
				want(t, "miss", got["new by=miss"], 1)
				want(t, "others", got["new by=joined"]+got["new by=hit"], 1)
			}
			want(t, "len", c.Len(), 1)
		})
	}
}

// F4: what nobody waits for any more is kept when it is made all the same.
func TestLateSuccessIsKept(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		ctx, cancel := context.WithCancel(background)
		a := c.calls(ctx, 1, "k", maker{value: "v", wait: g, stubborn: true})
		cancel()
		want(t, "caller", <-a, "error canceled")
		close(g)
		synctest.Wait()
		want(t, "len", c.Len(), 1)
		want(t, "get", c.get("k", maker{}), "v by=hit")
		want(t, "creations", c.count(c.mu.creations, "k"), 1)
	})
}

// C4: an evicted flight stays joinable, counts as nothing, blocks nobody, and is
// resident when it ends as a new entry would be.
func TestEvictedFlight(t *testing.T) {
	bubble(t, entries(1), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k1", maker{value: "v1", wait: g})
		b := c.calls(background, 2, "k1", maker{value: "w"})
		want(t, "k2", c.get("k2", maker{}), "k2 by=miss")
		late := c.calls(background, 1, "k1", maker{value: "x"})
		want(t, "k2", c.has("k2"), 1)
		want(t, "len", c.Len(), 1)
		close(g)
		want(t, "first", <-a, "v1 by=miss")
		want(t, "others", all(b, 2)["v1 by=joined"], 2)
		want(t, "late", <-late, "v1 by=joined")
		want(t, "k1", c.has("k1"), 1)
		want(t, "k2", c.has("k2"), 0)
		want(t, "len", c.Len(), 1)
		c.eventuallyFreed("k2", 1)
	})
}

// C4, F2: an evicted flight that fails.
func TestEvictedFlightFails(t *testing.T) {
	bubble(t, entries(1), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k1", maker{fail: "E", wait: g})
		want(t, "k2", c.get("k2", maker{}), "k2 by=miss")
		close(g)
		want(t, "k1", <-a, "error failed E")
		want(t, "k2", c.has("k2"), 1)
		want(t, "len", c.Len(), 1)
		want(t, "k1 again", c.get("k1", maker{}), "k1 by=miss")
	})
}

// F7: capacity 0 while it runs, and more again before it ends.
func TestCapacityZeroDuringFlight(t *testing.T) {
	for _, again := range []bool{false, true} {
		bubble(t, entries(8), func(t *testing.T, c room) {
			g := gate()
			a := c.calls(background, 1, "k", maker{value: "v", wait: g})
			b := c.calls(background, 1, "k", maker{})
			c.setEntries(0)
			if again {
				c.setEntries(4)
			}
			close(g)
			want(t, "first", <-a, "v by=miss")
			want(t, "other", <-b, "v by=joined")
			c.setEntries(4)
			want(t, "len", c.Len(), 0)
			want(t, "has", c.has("k"), 0)
			want(t, "again", c.get("k", maker{value: "v2"}), "v2 by=miss")
		})
	}
}

// F7, C10
func TestOwnerDroppedDuringFlight(t *testing.T) {
	for _, shared := range []bool{false, true} {
		bubble(t, entries(8), func(t *testing.T, c room) {
			g := gate()
			a := c.calls(background, 1, "k", maker{owner: "O", wait: g})
			if shared {
				c.calls(background, 1, "k", maker{owner: "P"})
			}
			if err := c.Reset("O"); err != nil {
				t.Error(err)
			}
			close(g)
			want(t, "get", <-a, "k by=miss")
			left := 0
			if shared {
				left = 1
			}
			want(t, "has", c.has("k"), left)
			want(t, "len", c.Len(), left)
		})
	}
}

// F8
func TestCloseDuringFlights(t *testing.T) {
	bubble(t, entries(64), func(t *testing.T, c room) {
		a := c.calls(background, 4, "k", maker{wait: gate()})
		f := make(chan error, 1)
		go func() {
			_, _, err := c.Force(background, c.request(c.Cache, "k", maker{wait: gate()}))
			f <- err
		}()
		synctest.Wait()
		c.close()
		want(t, "callers", all(a, 4)["error closed"], 4)
		if err := <-f; !errors.Is(err, fault.ErrClosed) {
			t.Errorf("force: %v", err)
		}
		want(t, "aborted", c.count(c.mu.aborted, "k"), 2)
		c.close()
		want(t, "get", c.get("k", maker{}), "error closed")
		want(t, "peek", c.peek("k"), "error closed")
		want(t, "len", c.Len(), 0)
		for _, err := range []error{c.SetCapacity(limit.Of(1), limit.Limit{}), c.Reset("o"), c.Settle(background)} {
			if !errors.Is(err, fault.ErrClosed) {
				t.Errorf("after close: %v", err)
			}
		}
	})
}

// F8: Close(ctx) stops waiting for a creator that heeds nothing, not for ever.
func TestCloseStopsWaiting(t *testing.T) {
	bubble(t, entries(64), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{wait: g, stubborn: true})
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		want(t, "caller", <-a, "error closed")
		want(t, "freed", c.count(c.mu.freed, "k"), 0)
		close(g)
		c.close()
		c.eventuallyFreed("k", 1)
	})
}

// F8: a close whose caller waits for nothing is carried out all the same: the
// bubble would report a goroutine that is left.
func TestCloseGoesOn(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		d := newDevice()
		c, err := artefacts.Open(artefacts.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := room{c, d, t}
		a := r.calls(background, 1, "k", maker{wait: gate()})
		ctx, cancel := context.WithCancel(background)
		cancel()
		if err := c.Close(ctx); err != nil && !errors.Is(err, context.Canceled) { // nil if it was the faster
			t.Errorf("close: %v", err)
		}
		want(t, "caller", <-a, "error closed")
	})
}

// F3, C12: a Free that ends its goroutine takes nothing else with it.
func TestFreeThatEndsItsGoroutine(t *testing.T) {
	c := open(t, entries(4))
	for _, k := range []string{"a", "b", "c"} {
		c.get(k, maker{kernel: "of " + k, free: runtime.Goexit})
	}
	l, _, err := c.Get(background, c.request(c.Cache, "leased", maker{kernel: "own", free: runtime.Goexit}))
	if err != nil {
		t.Fatal(err)
	}
	c.setEntries(0)
	for _, k := range []string{"a", "b", "c"} {
		c.eventuallyFreed(k, 1)
		c.eventuallyFreed("kernel:of "+k, 1)
	}
	want(t, "still leased", c.count(c.mu.freed, "leased"), 0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.End()
	}()
	<-ended
	c.eventuallyFreed("leased", 1)
	c.eventuallyFreed("kernel:own", 1)
	want(t, "leased bytes", c.LeasedBytes(), 0)
	c.close() // which would wait for the freeing
}

// F3, F8: nor does the Free of a creator that reported bytes that cannot be.
func TestFreeOfAnUnfitThatEndsItsGoroutine(t *testing.T) {
	c := open(t, entries(4))
	want(t, "get", c.get("k", maker{bytes: -1, free: runtime.Goexit}), "error invalid")
	c.close()
	c.eventuallyFreed("k", 1)
}

// F3, F8: nor does that of a kernel which only a creator that fails held: its caller is
// answered, its other kernels are freed, and the cache closes.
func TestFreeOfAKernelThatEndsItsCreator(t *testing.T) {
	c := open(t, entries(4))
	got := said(c.Get(background, artefacts.Request{Key: "p", Create: func(ctx context.Context) (artefacts.Built, error) {
		for _, k := range []string{"x", "y"} {
			if _, err := c.Kernel(ctx, artefacts.Request{Key: k, Create: func(context.Context) (artefacts.Built, error) {
				return artefacts.Built{Free: func() { c.grow(c.mu.freed, k); runtime.Goexit() }}, nil
			}}); err != nil {
				return artefacts.Built{}, err
			}
		}
		c.setEntries(0) // nobody else holds them
		return artefacts.Built{}, errors.New("no")
	}}))
	want(t, "get", got, "error failed no")
	c.eventuallyFreed("x", 1)
	c.eventuallyFreed("y", 1)
	c.close()
}

// F8: a caller that leaves while the cache closes does not read how its flight
// failed from under the creator: the race detector would say so.
func TestOutcomeOfAFlightThatWasClosed(t *testing.T) {
	for range 200 {
		c := open(t, entries(4))
		ctx, cancel := context.WithCancel(background)
		begun := make(chan struct{})
		r := artefacts.Request{Key: "k", Create: func(ctx context.Context) (artefacts.Built, error) {
			close(begun)
			<-ctx.Done()
			return artefacts.Built{}, &fault.Error{Op: "test", Reason: fault.Degraded, Err: errDriver}
		}}
		left := make(chan artefacts.Outcome, 1)
		go func() {
			_, o, _ := c.Get(ctx, r)
			left <- o
		}()
		<-begun
		go cancel()
		c.close()
		if o := <-left; o.Reason != "" && o.Reason != fault.Degraded {
			t.Errorf("reason %q", o.Reason)
		}
		cancel()
	}
}
