package gpuexec

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
)

// waitsFor rides the flight of another compile.
type waitsFor struct{ on *compiling }

func (w waitsFor) Ask(context.Context) (flight.Ticket[*Kernel], error) {
	w.on.Board()
	return flight.Ticket[*Kernel]{Flight: &w.on.Flight}, nil
}
func (waitsFor) Take(*Kernel)                 {}
func (waitsFor) Leave(flight.Ticket[*Kernel]) {}

// F4: a compile whose callers leave while it waits for a slot is not kept among those that wait.
func TestGivenUpCompileWaitsForNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		s.free <- struct{}{} // taken
		f := new(compiling)
		f.Begin(t.Context(), s, "k")
		done := make(chan error, 1)
		go (*Executor)(nil).build(f, &generation{slots: s}, func(_ *Kernel, err error) { done <- err })
		synctest.Wait()
		if waiting(f.Creator()) == nil {
			t.Error("it does not wait")
		}
		f.Cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if waiting(f.Creator()) != nil {
			t.Error("it is still among those that wait")
		}
	})
}

// F5: a compile that is let through once, since all that run wait for it, is not let
// through again while it has not gone on: on a busy machine that takes a while.
func TestLetThroughOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		running, waiting := new(compiling), &compiling{through: make(chan struct{})}
		running.Begin(t.Context(), s, "running")
		waiting.Begin(t.Context(), s, "waiting")
		s.runs(running)
		s.waits(waiting)
		defer s.giveBack(waiting)
		ctx, leave := context.WithCancel(running.Context())
		go func() { _, _ = flight.Ride[*Kernel](ctx, waitsFor{waiting}) }()
		synctest.Wait()
		for range 2 {
			s.look()
		}
		if !through(waiting) {
			t.Error("it is not let through")
		}
		leave()
		synctest.Wait()
	})
}

// F5: while one that runs waits for nobody, a slot will be free: none is let through.
func TestLetThroughWhereAllWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		working, running, waiting := new(compiling), new(compiling), &compiling{through: make(chan struct{})}
		for _, f := range []*compiling{working, running, waiting} {
			f.Begin(t.Context(), s, "a compile")
		}
		s.runs(working)
		s.runs(running)
		s.waits(waiting)
		defer s.giveBack(waiting)
		ctx, leave := context.WithCancel(running.Context())
		go func() { _, _ = flight.Ride[*Kernel](ctx, waitsFor{waiting}) }()
		synctest.Wait()
		for range 50 { // those that run are looked at in any order
			s.look()
		}
		if through(waiting) {
			t.Error("it is let through beside one that works")
		}
		leave()
		synctest.Wait()
	})
}

// begun is a compile that has neither a slot nor asked for one.
func begun(t *testing.T, s *slots) *compiling {
	f := &compiling{through: make(chan struct{})}
	f.Begin(t.Context(), s, "a compile")
	return f
}

// through reports whether a compile was let through.
func through(f *compiling) bool {
	select {
	case <-f.through:
		return true
	default:
		return false
	}
}

// F5, E1: a compile that another device's waits for is let through where no slot of its own will
// be free, and one that runs may wait for several.
func TestLetThroughAcrossDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, leave := context.WithCancel(t.Context())
		ride := func(f, on *compiling) {
			ctx, end := context.WithCancel(f.Context())
			context.AfterFunc(all, end)
			go func() { _, _ = flight.Ride[*Kernel](ctx, waitsFor{on}) }()
			synctest.Wait()
		}
		one, other := newSlots(1), newSlots(2)
		running, waiting := begun(t, one), begun(t, one)
		one.runs(running)
		one.waits(waiting)
		defer one.giveBack(waiting)
		working, busy, theirs := begun(t, other), begun(t, other), begun(t, other)
		other.runs(busy)
		other.waits(theirs)
		defer other.giveBack(theirs)
		none := func(when string) {
			t.Helper()
			for range 20 { // in any order
				one.look()
				other.look()
			}
			if through(waiting) || through(theirs) {
				t.Fatal("one is let through where " + when)
			}
		}
		ride(running, theirs)
		ride(busy, waiting)
		none("a slot is about to be taken")
		other.runs(working)
		none("one works on the other device")
		ride(working, theirs)
		one.look()
		if through(waiting) == through(theirs) {
			t.Errorf("of two, through are %v and %v", through(waiting), through(theirs))
		}
		leave()
		synctest.Wait()
	})
}

// F5: a compile that waits for some which will have a slot, and for one which will have none, keeps
// nobody from seeing that.
func TestLetThroughBesideThoseThatAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 3 { // they are looked at in any order
			one, other := newSlots(1), newSlots(1)
			running, waiting := begun(t, one), begun(t, one)
			one.runs(running)
			one.waits(waiting)
			defer one.giveBack(waiting)
			other.runs(begun(t, other))
			ctx, leave := context.WithCancel(running.Context())
			ride := func(f *compiling) { go func() { _, _ = flight.Ride[*Kernel](ctx, waitsFor{f}) }() }
			ride(waiting)
			for range 30 {
				served := begun(t, other)
				other.waits(served)
				defer other.giveBack(served)
				ride(served)
			}
			synctest.Wait()
			if one.look(); !through(waiting) {
				t.Error("it is not let through")
			}
			leave()
			synctest.Wait()
		}
	})
}

// F6: however many compiles wait for a slot, one of them looks for circles; where it has one,
// another does. What each of them looked for itself took a core at 20,000.
func TestOneLooksForCircles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, each = 1000, 10
		s := newSlots(1)
		first := new(compiling)
		first.Begin(t.Context(), s, "first")
		if err := s.take(first); err != nil {
			t.Fatal(err)
		}
		ended := make(chan *compiling)
		for range n {
			f := &compiling{through: make(chan struct{}), pass: make(chan struct{})}
			f.Begin(t.Context(), s, "a compile")
			go func() {
				if err := s.take(f); err != nil {
					t.Error(err)
				}
				ended <- f
			}()
		}
		time.Sleep(each*glance + 1)
		for range n / 100 {
			s.giveBack(first)
			synctest.Wait()
			first = <-ended
			time.Sleep(each*glance + 1)
		}
		looking.Lock()
		looks := s.looks
		looking.Unlock()
		if want := each * (1 + n/100); looks < want*9/10 || looks > want {
			t.Errorf("looked %d times, want %d", looks, want)
		}
		for range n - n/100 {
			s.giveBack(first)
			first = <-ended
		}
		s.giveBack(first)
		if len(s.watch) > 0 || len(s.free) > 0 {
			t.Error("somebody looks when nobody waits")
		}
	})
}

// F6: what a look costs does not depend on how many wait: it holds up each compile that begins or
// ends.
func TestLookAmongMany(t *testing.T) {
	allocs := func(n int) float64 {
		s := newSlots(4)
		var awaited *compiling
		for range n {
			awaited = &compiling{through: make(chan struct{})}
			awaited.Begin(t.Context(), s, "waiting")
			s.waits(awaited)
			defer s.giveBack(awaited)
		}
		for i := range 5 { // of which one waits for nobody: it is looked at in any order
			running := new(compiling)
			running.Begin(t.Context(), s, "running")
			s.runs(running)
			if i > 0 {
				next := flight.New[*Kernel](running.Context(), s, "next")
				next.Start()
				defer next.GetOff()
				next.Follow(&awaited.Flight, nil)
			}
		}
		return testing.AllocsPerRun(200, s.look)
	}
	if few, many := allocs(10), allocs(10_000); many > 2*few {
		t.Errorf("a look allocates %v times where 10 wait, %v where 10,000 do", few, many)
	}
}
