package constants

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// ledger counts what must come out even.
type ledger struct {
	made   atomic.Int64 // values delivered
	freed  atomic.Int64
	told   atomic.Int64 // removals told
	wrong  atomic.Int64
	memory atomic.Int64 // device memory out
}

const stormKeys = 4

// unit is a value that knows when it is used after its end.
type unit struct {
	key   int
	freed atomic.Bool
}

// storm asks, computes, gives up and leaves at random. Everything that it is
// handed it ends; what it was not handed must come out even without it.
func (l *ledger) storm(t *testing.T, e *Engine, seed uint64, rounds int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range rounds {
		k := rnd.IntN(stormKeys)
		ctx, cancel := context.WithCancel(context.Background())
		act := rnd.IntN(8)
		if act < 3 {
			go cancel() // a storm of cancellations at any moment
		}
		var removed atomic.Int32
		out, err := e.GetOrAdd(ctx, key(fmt.Sprint(k)), mib, Options{CanOwn: act%2 == 0, Removed: func(Removal) {
			if removed.Add(1) > 1 {
				l.wrong.Add(1)
			}
			l.told.Add(1)
		}})
		switch {
		case err != nil:
			if !errors.Is(err, context.Canceled) && !errors.Is(err, fault.ErrAbandoned) && !errors.Is(err, fault.ErrClosed) {
				t.Errorf("unexpected: %v", err)
			}
		case out.Lease != nil:
			l.use(out.Lease, k)
		case out.Owner != nil:
			l.own(out.Owner, k, act)
		}
		cancel()
	}
}

func (l *ledger) use(lease *Lease, k int) {
	if u := lease.Value().(*unit); u.key != k || u.freed.Load() {
		l.wrong.Add(1)
	}
	lease.End()
}

// own delivers or gives up.
func (l *ledger) own(o *Promise, k, act int) {
	if act == 7 {
		o.Fail(fault.ErrAbandoned)
		return
	}
	u := &unit{key: k}
	lease, err := o.Fulfil(u, mib, func() {
		if u.freed.Swap(true) {
			l.wrong.Add(1)
		}
		l.freed.Add(1)
	})
	if err == nil {
		l.made.Add(1)
		l.use(lease, k)
	}
}

// T4..T7 under storms: nobody is stranded, nothing leaks, no callback is lost or
// doubled, capacity holds at every look.
func TestStorm(t *testing.T) {
	var l ledger
	const capacity = 3
	c, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(capacity)},
		Reserve: func(_ Kind, _ int, n int64) (func(), error) {
			l.memory.Add(int64(n))
			return func() { l.memory.Add(-int64(n)) }, nil
		}})
	var storms, watch sync.WaitGroup
	var over atomic.Bool
	for i := range 8 {
		storms.Go(func() { l.storm(t, e, uint64(i), 1500) })
	}
	storms.Go(func() { // removals and flushes in between
		for i := range 1000 {
			if i%50 == 0 {
				if err := c.SetCapacity(context.Background(), CPU, limit.Of(capacity)); err != nil {
					t.Error(err)
				}
			} else if _, err := e.Remove(context.Background(), key(fmt.Sprint(i%stormKeys))); err != nil {
				t.Error(err)
			}
		}
	})
	watch.Go(func() { // T11: never waits; T4: never more
		for !over.Load() {
			if size := e.Size(); size > capacity*mib || e.Reserved() > capacity*mib || e.Len() > capacity {
				t.Errorf("size %d, reserved %d, entries %d beyond %d MiB", size, e.Reserved(), e.Len(), capacity)
				return
			}
		}
	})
	storms.Wait()
	over.Store(true)
	watch.Wait()
	waitFor(t, func() bool { return e.Reserved() == 0 }) // nobody was left an owner
	if err := c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if l.wrong.Load() != 0 || l.made.Load() == 0 || l.made.Load() != l.freed.Load() {
		t.Errorf("%d wrong; %d made, %d freed", l.wrong.Load(), l.made.Load(), l.freed.Load())
	}
	waitFor(t, func() bool { return l.memory.Load() == 0 }) // a cancelled owner's may come a moment later
	if l.told.Load() > l.made.Load() {
		t.Errorf("%d removals told of %d values", l.told.Load(), l.made.Load())
	}
}

// T6, F4: whoever of a line of volunteers gives up, at whatever moment, exactly
// one of those who stay computes and all of them are served.
func TestVolunteersAreNotLost(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(1)}})
	rounds := 600
	for round := range rounds {
		k := "k"
		first := add(t, e, k, mib, Options{})
		var computed atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			ctx, cancel := context.WithCancel(context.Background())
			leaves := i%2 == 0
			wg.Go(func() {
				defer cancel()
				out, err := e.GetOrAdd(ctx, key(k), mib, Options{CanOwn: true})
				switch {
				case err != nil:
					if !leaves || !errors.Is(err, context.Canceled) {
						t.Errorf("round %d, volunteer %d: %v", round, i, err)
					}
				case out.Owner != nil:
					if leaves {
						out.Owner.Abandon()
						return
					}
					l, err := out.Owner.Fulfil(i, mib, nil)
					if err != nil {
						t.Errorf("round %d: %v", round, err)
						return
					}
					computed.Add(1)
					l.End()
				case out.Lease != nil:
					out.Lease.End()
				default:
					t.Errorf("round %d: bypass %s", round, out.Bypass)
				}
			})
			if leaves {
				wg.Go(cancel)
			}
		}
		wg.Go(first.Abandon)
		wg.Wait()
		if computed.Load() != 1 {
			t.Fatalf("round %d: computed %d times", round, computed.Load())
		}
		if there, err := e.Remove(context.Background(), key(k)); !there || err != nil {
			t.Fatalf("round %d: the value is not resident: %v", round, err)
		}
		if e.Reserved() != 0 || e.Size() != 0 {
			t.Fatalf("round %d: reserved %d, size %d", round, e.Reserved(), e.Size())
		}
	}
}

// F8: Close in a storm: everybody returns, what was made is freed.
func TestCloseInAStorm(t *testing.T) {
	for round := range 30 {
		var l ledger
		c, err := Open(Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(2)}})
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.Engine(CPU, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() { l.storm(t, e, uint64(round*10+i), 100) })
		}
		for range 2 {
			wg.Go(func() {
				if err := c.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if l.wrong.Load() != 0 || l.made.Load() != l.freed.Load() {
			t.Fatalf("round %d: %d wrong; %d made, %d freed", round, l.wrong.Load(), l.made.Load(), l.freed.Load())
		}
	}
}

// T8: references are used and dropped while their tensors come and go.
func TestHeldReferencesInAStorm(t *testing.T) {
	var l ledger
	c, e := open(t, Config{})
	var wg sync.WaitGroup
	var held, told atomic.Int64
	for g := range 4 {
		wg.Go(func() {
			for i := range 250 {
				u := &unit{key: g}
				out, err := e.GetOrAdd(context.Background(), key(fmt.Sprint(g)), 8, Options{})
				if err != nil || out.Owner == nil {
					t.Errorf("%+v, %v", out, err)
					return
				}
				lease, err := out.Owner.Fulfil(u, 8, func() { u.freed.Store(true); l.freed.Add(1) })
				if err != nil {
					t.Error(err)
					return
				}
				l.made.Add(1)
				gone := make(chan struct{})
				ref, ok := lease.Hold(func(Removal) { told.Add(1); close(gone) })
				lease.End()
				if !ok { // another goroutine's flush was here first
					continue
				}
				held.Add(1)
				wg.Go(func() {
					for {
						v, live := ref.Use()
						if !live {
							break
						}
						if v.(*unit).freed.Load() {
							t.Error("used after it was freed")
							break
						}
						runtime.Gosched()
					}
					<-gone
					if u.freed.Load() {
						t.Error("freed under a reference")
					}
					ref.Drop()
				})
				if i%2 == 0 {
					_, err = e.Remove(context.Background(), key(fmt.Sprint(g)))
				} else {
					err = c.SetCapacity(context.Background(), CPU, limit.Unlimited)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return l.freed.Load() == l.made.Load() })
	if told.Load() != held.Load() {
		t.Errorf("%d references, %d told", held.Load(), told.Load())
	}
}
