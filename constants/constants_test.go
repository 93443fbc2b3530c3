package constants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

func open(t *testing.T, cfg Config) (*Cache, *Engine) {
	t.Helper()
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	e, err := c.Engine(CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	return c, e
}

func key(id string) Key { return Key{ID: Versioned(id, 0)} }

// add asks and must become the owner.
func add(t *testing.T, e *Engine, id string, bytes int64, opts Options) *Promise {
	t.Helper()
	out, err := e.GetOrAdd(context.Background(), key(id), bytes, opts)
	if err != nil || out.Owner == nil {
		t.Fatalf("GetOrAdd(%s) = %+v, %v, want an owner", id, out, err)
	}
	return out.Owner
}

// put makes a tensor resident.
func put(t *testing.T, e *Engine, id string, bytes int64, opts Options, free func()) {
	t.Helper()
	l, err := add(t, e, id, bytes, opts).Fulfil(id, bytes, free)
	if err != nil {
		t.Fatal(err)
	}
	l.End()
}

func wantBypass(t *testing.T, e *Engine, id string, bytes int64, want Bypass) {
	t.Helper()
	out, err := e.GetOrAdd(context.Background(), key(id), bytes, Options{})
	if err != nil || out.Bypass != want {
		t.Errorf("GetOrAdd(%s, %d) = %+v, %v, want bypass %s", id, bytes, out, err, want)
	}
}

// T4: exact fit, nothing evicted, a smaller one may still fit.
func TestFullMeansResidentReservedAndDeclared(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(5)}})
	wantBypass(t, e, "a", 6*mib, Full)
	put(t, e, "b", 4*mib, Options{}, nil)
	wantBypass(t, e, "y", 2*mib, Full)
	o := add(t, e, "z", 1*mib, Options{})
	wantBypass(t, e, "q", 1, Full)
	o.Abandon()
	put(t, e, "q", 1*mib, Options{}, nil)
	if e.Size() != 5*mib {
		t.Errorf("size %d, want %d", e.Size(), 5*mib)
	}
}

// T5: delivered is not declared; the reservation comes back.
func TestFulfilWithOtherSize(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(4)}})
	o := add(t, e, "a", 3*mib, Options{})
	if _, err := o.Fulfil("v", 4*mib, nil); !errors.Is(err, fault.ErrSize) {
		t.Errorf("Fulfil = %v, want fault.ErrSize", err)
	}
	put(t, e, "b", 4*mib, Options{}, nil)
}

// K5: the key alone says which tensor it is, whatever size is declared with it.
func TestKeyOfAnotherSize(t *testing.T) {
	_, e := open(t, Config{})
	put(t, e, "k", mib, Options{}, nil)
	out, err := e.GetOrAdd(context.Background(), key("k"), 2*mib, Options{})
	if err != nil || out.Lease == nil || out.Lease.Value() != "k" || e.Size() != mib {
		t.Fatalf("%+v, %v, size %d", out, err, e.Size())
	}
	out.Lease.End()
}

// T2, F7: a capacity change flushes; what is being computed does not stay.
func TestSetCapacityFlushes(t *testing.T) {
	c, e := open(t, Config{})
	var freed atomic.Int32
	fired := make(chan Removal, 2)
	put(t, e, "a", mib, Options{Removed: func(r Removal) { fired <- r }}, func() { freed.Add(1) })
	l, _ := e.Lookup(key("a"))
	o := add(t, e, "b", mib, Options{})
	if err := c.SetCapacity(context.Background(), CPU, limit.Of(10)); err != nil {
		t.Fatal(err)
	}
	if got := <-fired; got != Flushed {
		t.Errorf("callback got %s", got)
	}
	if freed.Load() != 0 || l.Value() != "a" || l.Resident() {
		t.Error("a leased tensor must outlive the flush, no longer resident")
	}
	l.End()
	waitFor(t, func() bool { return freed.Load() == 1 }) // after the last lease, and the residency's own pin
	lb, err := o.Fulfil("b", mib, nil)
	if err != nil || lb.Value() != "b" {
		t.Fatal(err)
	}
	lb.End()
	if _, ok := e.Lookup(key("b")); ok || e.Size() != 0 {
		t.Error("what was computed over a flush must not be resident")
	}
}

// T2, F6: a flush of more than a turn lets go has ended when SetCapacity returns.
func TestLargeFlush(t *testing.T) {
	c, e := open(t, Config{})
	var told atomic.Int32
	var all []*Lease
	for i := range 2*touched.Most + 1 {
		l, err := add(t, e, fmt.Sprint(i), 8, Options{Removed: func(Removal) { told.Add(1) }}).Fulfil(i, 8, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	if err := c.SetCapacity(context.Background(), CPU, limit.Unlimited); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if l.Resident() {
			t.Fatal("flushed, and still resident")
		}
		l.End()
	}
	if err := c.Close(context.Background()); err != nil || told.Load() != int32(len(all)) {
		t.Errorf("%v, %d of %d told of", err, told.Load(), len(all))
	}
}

// T6: of the waiters that can compute exactly one becomes the owner; the others
// go on waiting; who cannot gets the error.
func TestOwnershipPassesOn(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(1)}})
	o := add(t, e, "k", mib, Options{})
	var owners, hits, failed atomic.Int32
	var wg sync.WaitGroup
	for i := range 9 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			out, err := e.GetOrAdd(context.Background(), key("k"), mib, Options{CanOwn: i%3 != 0})
			switch {
			case errors.Is(err, fault.ErrAbandoned):
				failed.Add(1)
			case out.Owner != nil:
				owners.Add(1)
				l, err := out.Owner.Fulfil("v", mib, nil)
				if err == nil {
					l.End()
				}
			case out.Lease != nil:
				hits.Add(1)
				out.Lease.End()
			}
		}()
	}
	waitFor(t, func() bool { return waiting(o) == 9 })
	o.Abandon()
	wg.Wait()
	if owners.Load() != 1 || hits.Load() != 5 || failed.Load() != 3 {
		t.Errorf("%d owners, %d hits, %d errors, want 1, 5, 3", owners.Load(), hits.Load(), failed.Load())
	}
}

// T6: cancellation of an owner gives the reservation back.
func TestCancelledOwner(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(1)}})
	ctx, cancel := context.WithCancel(context.Background())
	out, err := e.GetOrAdd(ctx, key("a"), mib, Options{})
	if err != nil || out.Owner == nil {
		t.Fatal(out, err)
	}
	cancel()
	waitFor(t, func() bool { return e.Reserved() == 0 })
	if _, err := out.Owner.Fulfil("v", mib, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Fulfil after cancellation = %v, want fault.ErrInvalid", err)
	}
	put(t, e, "b", mib, Options{}, nil)
}

// F5: an owner that asks for its own tensor gets ErrCycle, not a hang.
func TestOwnerAsksForItself(t *testing.T) {
	_, e := open(t, Config{})
	o := add(t, e, "k", 8, Options{})
	if _, err := e.GetOrAdd(o.Context(), key("k"), 8, Options{CanOwn: true}); !errors.Is(err, fault.ErrCycle) {
		t.Errorf("got %v, want fault.ErrCycle", err)
	}
	o.Abandon()
}

// T8: a held reference says whether the value is still resident.
func TestHeldReference(t *testing.T) {
	_, e := open(t, Config{})
	freed := make(chan struct{})
	put(t, e, "k", 8, Options{}, func() { close(freed) })
	l, _ := e.Lookup(key("k"))
	var ref *Held
	ready := make(chan struct{})
	ref, ok := l.Hold(func(Removal) { <-ready; ref.Drop() })
	close(ready)
	l.End()
	if v, live := ref.Use(); !ok || !live || v != "k" {
		t.Fatalf("Use = %v, %v", v, live)
	}
	if there, err := e.Remove(context.Background(), key("k")); !there || err != nil {
		t.Fatal(there, err)
	}
	if _, live := ref.Use(); live {
		t.Error("a removed tensor is gone for its references")
	}
	<-freed
}

// T7, T8: a removal tells the owner and every holder once, and a second Drop takes
// no pin of somebody else's.
func TestEveryHolderIsTold(t *testing.T) {
	_, e := open(t, Config{})
	told, freed := make(chan string, 6), make(chan struct{}, 2) // room for telling twice
	tell := func(who string) func(Removal) { return func(why Removal) { told <- who + " " + string(why) } }
	put(t, e, "k", 8, Options{Removed: tell("owner")}, func() { freed <- struct{}{} })
	l, _ := e.Lookup(key("k"))
	var refs []*Held
	for _, who := range []string{"first", "second"} {
		r, ok := l.Hold(tell(who))
		if !ok {
			t.Fatal("a resident tensor cannot be held")
		}
		refs = append(refs, r)
	}
	refs[0].Drop()
	refs[0].Drop()
	if there, err := e.Remove(context.Background(), key("k")); !there || err != nil {
		t.Fatal(there, err)
	}
	e.cache.Close(context.Background()) // every callback has run
	close(told)
	var got []string
	for who := range told {
		got = append(got, who)
	}
	if want := []string{"owner removed", "second removed"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	l.End()
	if len(freed) != 0 {
		t.Error("freed under a reference that is held")
	}
	refs[1].Drop()
	if len(freed) != 1 {
		t.Errorf("freed %d times", len(freed))
	}
}

// T4: COST evicts the least seconds per byte, only for what is worth more.
func TestCostPolicy(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(3)}, Policy: [kinds]Policy{CPU: Cost}})
	put(t, e, "dear", mib, Options{Cost: time.Minute}, nil)
	put(t, e, "cheap", 2*mib, Options{Cost: time.Millisecond}, nil)
	put(t, e, "mid", 2*mib, Options{Cost: 5 * time.Second}, nil)
	wantBypass(t, e, "poor", mib, Full)
	wantBypass(t, e, "huge", 4*mib, Full)
	for id, want := range map[string]bool{"dear": true, "mid": true, "cheap": false} {
		if _, ok := e.Lookup(key(id)); ok != want {
			t.Errorf("%s resident: %v, want %v", id, ok, want)
		}
	}
}

// T3: memory that the device refuses is a bypass, with nothing reserved.
func TestDeviceRefused(t *testing.T) {
	_, e := open(t, Config{Reserve: func(Kind, int, int64) (func(), error) { return nil, errors.New("no memory") }})
	wantBypass(t, e, "k", 8, DeviceRefused)
	waitFor(t, func() bool { return e.Reserved() == 0 })
}

// T6: a panic in Get fails the waiters and the process lives.
func TestComputePanics(t *testing.T) {
	_, e := open(t, Config{})
	_, _, err := e.Get(context.Background(), key("k"), 8, Options{}, func(context.Context) (Value, error) { panic("boom") })
	if err == nil || e.Reserved() != 0 && !eventually(func() bool { return e.Reserved() == 0 }) {
		t.Errorf("err %v, reserved %d", err, e.Reserved())
	}
}

// T7, F8: Close fires closed, answers waiters, and leaves leases usable.
func TestClose(t *testing.T) {
	c, e := open(t, Config{})
	fired := make(chan Removal, 1)
	put(t, e, "a", 8, Options{Removed: func(r Removal) { fired <- r }}, nil)
	o := add(t, e, "b", 8, Options{})
	got := make(chan error, 1)
	go func() {
		_, err := e.GetOrAdd(context.Background(), key("b"), 8, Options{CanOwn: true})
		got <- err
	}()
	waitFor(t, func() bool { return waiting(o) == 1 })
	if err := c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r := <-fired; r != Closed {
		t.Errorf("callback got %s", r)
	}
	if err := <-got; !errors.Is(err, fault.ErrClosed) {
		t.Errorf("waiter got %v", err)
	}
	if l, err := o.Fulfil("b", 8, nil); err != nil || l.Value() != "b" {
		t.Errorf("Fulfil after Close = %v", err)
	}
	if _, err := e.GetOrAdd(context.Background(), key("a"), 8, Options{}); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// T12: a device's own capacity wins until its kind is set again.
func TestDeviceCapacity(t *testing.T) {
	c, _ := open(t, Config{})
	ctx := context.Background()
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return c.SetDeviceCapacity(ctx, GPU, 1, limit.Of(3)) }, "3"},
		{func() error { return c.SetCapacity(ctx, CPU, limit.Of(9)) }, "3"},
		{func() error { return c.SetCapacity(ctx, GPU, limit.Of(20)) }, "20"},
		{func() error { return c.SetEnabled(ctx, false) }, "0"},
		{func() error { return c.SetEnabled(ctx, true) }, "unlimited"},
		{func() error { return c.SetCapacity(ctx, GPU, MiB(1<<44-1)) }, "unlimited"}, // T2
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got, _ := c.DeviceCapacity(GPU, 1); got.String() != step.want {
			t.Errorf("capacity %s, want %s", got, step.want)
		}
	}
	if err := c.SetCapacity(ctx, GPU, limit.Of(-1)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("negative capacity: %v", err)
	}
}

// T8, C12: neither a hit's look nor a reference's check allocates more than the
// lease itself.
func TestAllocations(t *testing.T) {
	_, e := open(t, Config{})
	put(t, e, "k", 8, Options{}, nil)
	k := key("k")
	l, _ := e.Lookup(k)
	defer l.End()
	ref, _ := l.Hold(nil)
	defer ref.Drop()
	if n := testing.AllocsPerRun(100, func() { ref.Use() }); n != 0 {
		t.Errorf("Use allocates %v", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		l, _ := e.Lookup(k)
		l.End()
	}); n > 1 {
		t.Errorf("a hit allocates %v", n)
	}
}

// waiting counts who waits for an owner besides itself.
// waiting is how many wait for what o is to deliver.
func waiting(o *Promise) int {
	n := o.flight.Aboard()
	if l := o.pending.line.Load(); l != nil {
		n += l.flight.Aboard()
	}
	return n
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	if !eventually(cond) {
		t.Fatal("did not happen within 10 s")
	}
}

func eventually(cond func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if cond() {
			return true
		}
	}
	return false
}

// T1: an engine whose context is gone can be dropped; its device and context may
// be asked for again.
func TestEngineThatIsDropped(t *testing.T) {
	c, e := open(t, Config{})
	var removed atomic.Int32
	put(t, e, "k", 8, Options{Removed: func(why Removal) {
		if why == Closed {
			removed.Add(1)
		}
	}}, nil)
	waiting := add(t, e, "pending", 8, Options{})
	for range 2 {
		if err := e.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if removed.Load() != 1 {
		t.Errorf("%d callbacks, want 1", removed.Load())
	}
	<-waiting.Context().Done()
	if _, err := e.GetOrAdd(context.Background(), key("k"), 8, Options{}); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("asked after Close: %v", err)
	}
	if err := c.SetCapacity(context.Background(), CPU, limit.Unlimited); err != nil {
		t.Errorf("a capacity for those that are left: %v", err)
	}
	again, err := c.Engine(CPU, 0, "")
	if err != nil || again == e || again.Len() != 0 {
		t.Fatalf("%v, the same %t, with %d tensors", err, again == e, again.Len())
	}
	put(t, again, "k", 8, Options{}, nil)
	if len(c.mu.engines) != 1 {
		t.Errorf("%d engines, want 1", len(c.mu.engines))
	}
}

// Stats tells what was answered, over all engines, those that closed included.
func TestStats(t *testing.T) {
	c, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(2)}})
	put(t, e, "a", mib, Options{}, nil)
	promised := add(t, e, "b", mib, Options{})
	for range 3 {
		l, ok := e.Lookup(key("a"))
		if !ok {
			t.Fatal("a is not resident")
		}
		l.End()
	}
	wantBypass(t, e, "c", mib, Full)
	s := c.Stats()
	if s.Engines != 1 || s.Len != 1 || s.Bytes != mib || s.Pending != mib || s.Hits != 3 || s.Promises != 2 || s.Bypasses[Full] != 1 || s.Removals[Closed] != 0 {
		t.Errorf("before: %+v", s)
	}
	promised.Abandon()
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s = c.Stats()
	if s.Engines != 0 || s.Len != 0 || s.Bytes != 0 || s.Pending != 0 || s.Hits != 3 || s.Promises != 2 || s.Removals[Closed] != 1 {
		t.Errorf("after: %+v", s)
	}
}
