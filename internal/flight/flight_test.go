package flight_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
)

var (
	background = context.Background()
	errCreator = errors.New("creator")
)

func begin(ctx context.Context, key string) *flight.Flight[string] {
	return flight.New[string](ctx, "room", key)
}

// ride waits on f, which the caller has boarded.
func ride(ctx context.Context, f *flight.Flight[string], take ...func(string)) error {
	_, err := flight.Ride[string](ctx, &asker{ticket: flight.Ticket[string]{Flight: f}, take: take})
	return err
}

// F1: everybody who waits takes the value before it is released, once.
func TestTakesBeforeRelease(t *testing.T) {
	f := begin(background, "k")
	const waiters = 50
	var taken, released atomic.Int64
	var done sync.WaitGroup
	for range waiters {
		f.Board()
		done.Go(func() {
			err := ride(background, f, func(v string) {
				if v != "v" || released.Load() != 0 {
					t.Errorf("took %q, released %d times", v, released.Load())
				}
				taken.Add(1)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	if !f.Finish("v", nil, func(string) { released.Add(1) }) {
		t.Error("the first Finish must count")
	}
	if f.Finish("w", nil, func(string) { t.Error("released the second value") }) {
		t.Error("the second Finish must not count")
	}
	done.Wait()
	if taken.Load() != waiters || released.Load() != 1 {
		t.Errorf("taken %d times, released %d times", taken.Load(), released.Load())
	}
	if !f.Finished() {
		t.Error("the flight must be finished")
	}
}

// F2: an error reaches all; nothing is released.
func TestError(t *testing.T) {
	f := begin(background, "k")
	f.Board()
	f.Finish("", errCreator, func(string) { t.Error("released an error's value") })
	if err := ride(background, f, func(string) { t.Error("took an error's value") }); !errors.Is(err, errCreator) {
		t.Errorf("wait: %v", err)
	}
}

// A flight that nobody joined releases its value at its end.
func TestFinishWithoutCallers(t *testing.T) {
	f := begin(background, "k")
	released := 0
	f.Finish("v", nil, func(string) { released++ })
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

// The creator's context: the caller's values, an end of its own, no deadline.
func TestContext(t *testing.T) {
	type key struct{}
	caller, cancel := context.WithTimeout(context.WithValue(background, key{}, "value"), time.Hour)
	f := begin(caller, "k")
	ctx := f.Context()
	cancel()
	if ctx.Err() != nil || context.Cause(ctx) != nil {
		t.Error("the caller's end must not reach the creator")
	}
	if _, ok := ctx.Deadline(); ok {
		t.Error("the caller's deadline must not reach the creator")
	}
	for range 2 { // before and after somebody asked for Done
		if ctx.Value(key{}) != "value" {
			t.Error("the caller's values must reach the creator")
		}
		select {
		case <-ctx.Done():
			t.Error("done too early")
		default:
		}
	}
	child, stop := context.WithCancel(ctx)
	defer stop()
	f.Cancel()
	<-ctx.Done()
	<-child.Done()
	if !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(child.Err(), context.Canceled) {
		t.Errorf("err = %v, %v", ctx.Err(), child.Err())
	}
	late := begin(background, "k")
	late.Finish("", nil, nil)
	<-late.Context().Done() // asked for after the end
}

// Contexts that a creator makes from its own need no goroutine each to learn of its end.
func TestChildrenNeedNoGoroutine(t *testing.T) {
	const n = 100
	f := begin(background, "k")
	before := runtime.NumGoroutine()
	for range n {
		_, stop := context.WithCancel(f.Context())
		defer stop()
	}
	if more := runtime.NumGoroutine() - before; more > n/2 { // others may come and go
		t.Errorf("%d contexts have %d goroutines", n, more)
	}
	f.Finish("", nil, nil)
}

// F5: a circle of n flights is answered to one in it, at once.
func TestCycle(t *testing.T) {
	for n := 1; n <= 4; n++ {
		synctest.Test(t, func(t *testing.T) {
			flights := make([]*flight.Flight[string], n)
			for i := range flights {
				flights[i] = begin(background, "k")
				flights[i].Board()
			}
			errs := make(chan error, n) // one answer each
			for i, f := range flights {
				next := flights[(i+1)%n]
				next.Board()
				go func() { errs <- ride(f.Context(), next) }()
			}
			synctest.Wait()
			if err := <-errs; len(errs) != 0 || !errors.Is(err, fault.ErrCycle) {
				t.Errorf("circle of %d: %v, and %d more answers", n, err, len(errs))
			}
			for _, f := range flights {
				f.Finish("v", nil, nil)
			}
		})
	}
}

// F5: a creator that starts a flight waits for it from then on, so the circle is
// answered to who comes last and no flight in it is deserted.
func TestStarterIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top := begin(background, "top")
		top.Board()
		part := begin(top.Context(), "part")
		part.Start()
		errs := make(chan error, 1) // one answer
		top.Board()
		go func() { errs <- ride(part.Context(), top) }()
		synctest.Wait()
		if len(errs) != 1 {
			t.Fatal("the part waits for the whole, which has not begun to wait")
		}
		if err := <-errs; !errors.Is(err, fault.ErrCycle) {
			t.Errorf("part: %v", err)
		}
		part.Finish("", errCreator, nil)
		if err := ride(top.Context(), part); !errors.Is(err, errCreator) {
			t.Errorf("whole: %v", err)
		}
		top.Finish("v", nil, nil)
	})
}

// F5: a shared part is no circle, nor is one who waits again after an end.
func TestNoCycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top, a, b, part := begin(background, "top"), begin(background, "a"), begin(background, "b"), begin(background, "p")
		errs := make(chan error, 4) // one answer each
		wait := func(from, to *flight.Flight[string]) {
			to.Board()
			go func() { errs <- ride(from.Context(), to) }()
		}
		wait(top, a)
		wait(top, b)
		wait(a, part)
		wait(b, part)
		synctest.Wait()
		if len(errs) != 0 {
			t.Fatalf("a shared part: %v", <-errs)
		}
		for _, f := range []*flight.Flight[string]{part, a, b, top} {
			f.Finish("v", nil, nil)
		}
		part.Board() // an ended flight is no edge, whoever waits
		if err := ride(context.WithoutCancel(part.Context()), part); err != nil {
			t.Errorf("an ended flight: %v", err)
		}
	})
}

// F5: an edge goes when its caller gives up.
func TestEdgeOfOneWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := begin(background, "a"), begin(background, "b")
		leaves := func(from, to *flight.Flight[string]) {
			t.Helper()
			ctx, cancel := context.WithCancel(from.Context())
			to.Board()
			left := make(chan error, 1)
			go func() { left <- ride(ctx, to) }()
			synctest.Wait()
			cancel()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("%v: an edge outlived its caller", err)
			}
		}
		leaves(a, b)
		leaves(b, a)
		b.Finish("", nil, nil)
		a.Finish("", nil, nil)
	})
}

// F5: who has ceased to wait for a creator is in no circle with it.
func TestAwaitedCreatorIsLeft(t *testing.T) {
	a, b := begin(background, "a"), begin(background, "b")
	await := func(creator, by *flight.Flight[string]) (over func(), ok bool) {
		return flight.CreatorOf(creator.Context()).Await(flight.AskerOf(by.Context()))
	}
	over, ok := await(a, b)
	if !ok {
		t.Fatal("a circle of one edge")
	}
	if _, ok := await(b, a); ok {
		t.Error("the circle is not told")
	}
	over()
	if over, ok = await(b, a); !ok {
		t.Fatal("b has left, and a cannot wait for it")
	}
	over()
	a.Finish("", nil, nil)
	b.Finish("", nil, nil)
}

// F5: the edge of the caller that began a flight is that caller's alone: who waits
// for it after that caller left has one of its own.
func TestStarterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := begin(background, "whole")
		part := begin(whole.Context(), "part")
		part.Start()
		ctx, cancel := context.WithCancel(whole.Context())
		errs := make(chan error, 1) // one answer each
		go func() { errs <- ride(ctx, part) }()
		synctest.Wait()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		part.Board()
		go func() { errs <- ride(whole.Context(), part) }()
		synctest.Wait()
		whole.Board()
		within, giveUp := context.WithTimeout(part.Context(), time.Second)
		defer giveUp()
		if err := ride(within, whole); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("the part waits for the whole, which waits for it: %v", err)
		}
		part.Finish("v", nil, nil)
		if err := <-errs; err != nil {
			t.Error(err)
		}
		whole.Finish("v", nil, nil)
	})
}

// F4: a linger time that a flight has outlived, or that another took the place of,
// calls nobody.
func TestLingerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := begin(background, "k")
		f.Linger(time.Second, func() { t.Error("the first linger time goes on beside the second") })
		f.Linger(time.Minute, func() { t.Error("the linger time outlived its flight") })
		time.Sleep(2 * time.Second)
		f.Finish("v", nil, nil)
		time.Sleep(time.Hour)
	})
}

// F5: what joins nothing asks whether it is within its own key.
func TestWithin(t *testing.T) {
	outer := begin(background, "outer")
	inner := begin(outer.Context(), "inner")
	for _, c := range []struct {
		ctx        context.Context
		scope, key string
		within     bool
	}{
		{background, "room", "outer", false},
		{outer.Context(), "room", "outer", true},
		{outer.Context(), "room", "inner", false},
		{outer.Context(), "other room", "outer", false},
		{inner.Context(), "room", "outer", true},
		{inner.Context(), "room", "inner", true},
	} {
		if got := flight.Within(c.ctx, c.scope, c.key); got != c.within {
			t.Errorf("Within(%s, %s) = %v", c.scope, c.key, got)
		}
	}
}

// F5: code that outlives its creator is within nothing that has ended, whenever it begins more.
func TestWithinWhatHasEnded(t *testing.T) {
	outer := begin(background, "outer")
	inner := begin(outer.Context(), "inner")
	inner.Finish("", nil, nil)
	late := begin(inner.Context(), "late")
	for _, c := range []struct {
		ctx    context.Context
		key    string
		within bool
	}{
		{inner.Context(), "inner", false},
		{inner.Context(), "outer", true},
		{late.Context(), "inner", false},
		{late.Context(), "outer", true},
	} {
		if got := flight.Within(c.ctx, "room", c.key); got != c.within {
			t.Errorf("Within(%s) = %v", c.key, got)
		}
	}
}

// T3, F5: an owner's flights stand for each other, in both directions.
func TestOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // who waits for itself ends the bubble, not the test's patience
		owned, other := begin(background, "owned"), begin(background, "other")
		ctx := owned.Own(other.Context())
		owned.Board()
		if err := ride(other.Context(), owned); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("the owner waits for what it promised: %v", err)
		}
		other.Board()
		if err := ride(ctx, other); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("the owner waits for the flight it runs in: %v", err)
		}
		free := begin(background, "free")
		plain := free.Own(background)
		free.Board()
		if err := ride(plain, free); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("an owner outside of any flight: %v", err)
		}
	})
}

// Rides, callers that do not come and the end at the same time: the release comes once, after the
// last take.
func TestHammer(t *testing.T) {
	for range 500 {
		f := begin(background, "k")
		var released, late atomic.Int64
		var done sync.WaitGroup
		for i := range 8 {
			f.Board() // as the room does, in its turns
			done.Go(func() {
				if i%2 == 0 {
					f.GetOff()
					return
				}
				if err := ride(background, f, func(string) { late.Add(released.Load()) }); err != nil {
					t.Error(err)
				}
			})
		}
		done.Go(func() { f.Finish("v", nil, func(string) { released.Add(1) }) })
		done.Wait()
		if released.Load() != 1 || late.Load() != 0 {
			t.Fatalf("released %d times, %d takes after it", released.Load(), late.Load())
		}
	}
}

func BenchmarkFlight(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		f := begin(background, "k")
		f.Board()
		f.Finish("v", nil, nil)
		ride(background, f)
	}
}
