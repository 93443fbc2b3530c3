package constants

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// ask asks in the background and returns once the answer is waited for.
func ask(t *testing.T, o *Promise, id string, bytes int64, opts Options) <-chan Outcome {
	t.Helper()
	got := make(chan Outcome, 1)
	before := waiting(o)
	go func() {
		out, err := o.engine.GetOrAdd(context.Background(), key(id), bytes, opts)
		if err != nil {
			t.Error(err)
		}
		got <- out
	}()
	waitFor(t, func() bool { return waiting(o) == before+1 })
	return got
}

// T6, T7: who inherits an ownership does so with what it declared itself: its
// callback is called, not that of the one who gave up.
func TestHeirBringsItsOwnCallback(t *testing.T) {
	_, e := open(t, Config{})
	fired := make(chan string, 4)
	told := func(who string) func(Removal) { return func(Removal) { fired <- who } }
	o := add(t, e, "k", 8, Options{Removed: told("first")})
	second := ask(t, o, "k", 8, Options{CanOwn: true, Removed: told("second")})
	o.Abandon()
	l, err := (<-second).Owner.Fulfil("v", 8, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if _, err := e.Remove(context.Background(), key("k")); err != nil {
		t.Fatal(err)
	}
	if who := <-fired; who != "second" || len(fired) != 0 {
		t.Errorf("%s was told, and %d more", who, len(fired))
	}
}

// T4, T6: and with its own size: the reservation follows, and one that does not
// fit is bypassed while the next in line gets its turn.
func TestHeirBringsItsOwnSize(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(4)}})
	put(t, e, "other", 2*mib, Options{}, nil)
	o := add(t, e, "k", mib, Options{})
	large := ask(t, o, "k", 3*mib, Options{CanOwn: true})
	exact := ask(t, o, "k", 2*mib, Options{CanOwn: true})
	o.Fail(errors.New("no"))
	if out := <-large; out.Bypass != Full {
		t.Errorf("3 MiB beside 2 of 4: %+v, want bypass full", out)
	}
	heir := (<-exact).Owner
	if heir == nil || e.Reserved() != 2*mib {
		t.Fatalf("heir %v, reserved %d", heir, e.Reserved())
	}
	l, err := heir.Fulfil("v", 2*mib, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if e.Size() != 4*mib || e.Reserved() != 0 {
		t.Errorf("size %d, reserved %d", e.Size(), e.Reserved())
	}
}

// T6: heirs whose context ended while they waited hand on at once.
func TestHandedOnPastThoseWhoLeft(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(1)}})
	for range 200 {
		o := add(t, e, "k", mib, Options{})
		gone, cancel := context.WithCancel(context.Background())
		left := make(chan error, 3)
		for range cap(left) {
			go func() {
				out, err := e.GetOrAdd(gone, key("k"), mib, Options{CanOwn: true})
				if out.Owner != nil {
					out.Owner.Abandon()
				}
				left <- err
			}()
		}
		waitFor(t, func() bool { return waiting(o) == 3 })
		stays := ask(t, o, "k", mib, Options{CanOwn: true})
		go cancel() // at the time of the handing over
		o.Abandon()
		heir := (<-stays).Owner
		if heir == nil {
			t.Fatal("the one who stays did not become the owner")
		}
		for range cap(left) {
			<-left
		}
		heir.Abandon()
		waitFor(t, func() bool { return e.Reserved() == 0 })
	}
}

// T8: what never became resident has no removal to be told of.
func TestHoldOnWhatNeverWasResident(t *testing.T) {
	c, e := open(t, Config{})
	o := add(t, e, "k", 8, Options{})
	if err := c.SetCapacity(context.Background(), CPU, limit.Of(3)); err != nil {
		t.Fatal(err)
	}
	l, err := o.Fulfil("v", 8, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	if ref, ok := l.Hold(func(Removal) { t.Error("told of a removal") }); ok || ref != nil {
		t.Error("a reference that would never hear of its removal was given")
	}
}

// T5: the counts are right when the call returns that changed them.
func TestCountsAreRightAtOnce(t *testing.T) {
	_, e := open(t, Config{})
	for i := range 2000 {
		o := add(t, e, "k", 8, Options{})
		if e.Reserved() != 8 {
			t.Fatalf("round %d: reserved %d when the owner is there", i, e.Reserved())
		}
		l, err := o.Fulfil("v", 8, nil)
		if err != nil || e.Size() != 8 || e.Reserved() != 0 || e.Len() != 1 {
			t.Fatalf("round %d: %v, size %d, reserved %d, entries %d after Fulfil", i, err, e.Size(), e.Reserved(), e.Len())
		}
		l.End()
		if there, err := e.Remove(context.Background(), key("k")); !there || err != nil || e.Size() != 0 || e.Len() != 0 {
			t.Fatalf("round %d: size %d, entries %d after Remove", i, e.Size(), e.Len())
		}
	}
}

// T3, F3: device memory is asked for by user code, which may panic or exit.
func TestReservePanics(t *testing.T) {
	calls := 0
	_, e := open(t, Config{Reserve: func(Kind, int, int64) (func(), error) {
		switch calls++; calls {
		case 1:
			panic("boom")
		case 2:
			runtime.Goexit()
		}
		return nil, nil // nothing to give back
	}})
	wantBypass(t, e, "k", 8, DeviceRefused)
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_, _ = e.GetOrAdd(context.Background(), key("k"), 8, Options{})
	}()
	<-exited
	waitFor(t, func() bool { return e.Reserved() == 0 })
	put(t, e, "k", 8, Options{}, nil)
}

// T3: memory is given back exactly once, however the ownership ends.
func TestReservedMemoryIsGivenBack(t *testing.T) {
	var out atomic.Int64
	c, e := open(t, Config{Reserve: func(_ Kind, _ int, bytes int64) (func(), error) {
		out.Add(int64(bytes))
		return func() { out.Add(-int64(bytes)) }, nil
	}})
	put(t, e, "kept", 8, Options{}, nil)
	add(t, e, "abandoned", 16, Options{}).Abandon()
	if _, err := add(t, e, "wrong", 32, Options{}).Fulfil(nil, 33, nil); !errors.Is(err, fault.ErrSize) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if o, err := e.GetOrAdd(ctx, key("cancelled"), 64, Options{}); err != nil || o.Owner == nil {
		t.Fatal(o, err)
	}
	cancel()
	waitFor(t, func() bool { return out.Load() == 8 })
	if err := c.Close(context.Background()); err != nil || out.Load() != 0 {
		t.Errorf("%v, %d bytes of device memory are out", err, out.Load())
	}
}

// F3: what Reserve gave is user code: if it does not return when the owner's context has
// ended, the process lives and the ownership ends as ever.
func TestReleaseOfReservePanics(t *testing.T) {
	for what, release := range map[string]func(){"panics": func() { panic("made to panic") }, "exits": runtime.Goexit} {
		_, e := open(t, Config{Reserve: func(Kind, int, int64) (func(), error) { return release, nil }})
		ctx, cancel := context.WithCancel(context.Background())
		out, err := e.GetOrAdd(ctx, key(what), 8, Options{})
		if err != nil || out.Owner == nil {
			t.Fatal(out, err)
		}
		cancel()
		waitFor(t, func() bool { return out.Owner.Context().Err() != nil && e.Reserved() == 0 })
	}
}

// F8: Close ends the context that an owner computes under, and Get
// says why it ended.
func TestCloseEndsComputing(t *testing.T) {
	c, e := open(t, Config{})
	o := add(t, e, "o", 8, Options{})
	computing := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		_, _, err := e.Get(context.Background(), key("k"), 8, Options{}, func(ctx context.Context) (Value, error) {
			close(computing)
			<-ctx.Done()
			return Value{}, ctx.Err()
		})
		got <- err
	}()
	<-computing
	if err := c.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, fault.ErrClosed) {
		t.Errorf("computing over Close: %v", err)
	}
	<-o.Context().Done()
	if _, err := e.GetOrAdd(context.Background(), key("z"), 0, Options{}); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("zero bytes after Close: %v", err)
	}
}

// F1, F4: while a caller whose context has ended still computes, nobody else
// computes its key, and what it makes after all is kept.
func TestComputesAfterItsContext(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		c, e := open(t, Config{})
		ctx, cancel := context.WithCancel(context.Background())
		var computing atomic.Int32
		waiting := make(chan error, 1)
		l, cached, err := e.Get(ctx, key("k"), 8, Options{}, func(own context.Context) (Value, error) {
			computing.Add(1)
			go func() {
				l, _, err := e.Get(context.Background(), key("k"), 8, Options{}, func(context.Context) (Value, error) {
					computing.Add(1)
					return Value{}, errors.New("a second computer")
				})
				if err == nil {
					l.End()
				}
				waiting <- err
			}()
			synctest.Wait() // it has joined
			cancel()
			<-own.Done()
			synctest.Wait() // what could be handed over was
			return Value{Any: "v", Bytes: 8}, nil
		})
		if l == nil || !cached || err != nil {
			t.Fatalf("%v, %v, %v", l, cached, err)
		}
		l.End()
		if err := <-waiting; err != nil || computing.Load() != 1 || e.Len() != 1 {
			t.Errorf("the other: %v; %d computed, %d resident", err, computing.Load(), e.Len())
		}
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// F3: Goexit in a computation gives the reservation back.
func TestComputeExits(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(1)}})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = e.Get(context.Background(), key("k"), mib, Options{}, func(context.Context) (Value, error) {
			runtime.Goexit()
			return Value{}, nil
		})
		t.Error("Goexit was swallowed")
	}()
	<-ended
	waitFor(t, func() bool {
		out, err := e.GetOrAdd(context.Background(), key("k"), mib, Options{CanOwn: true})
		if err != nil || out.Owner == nil {
			return false
		}
		out.Owner.Abandon()
		return true
	})
}

// T4, Q5: a negative cost, and a size that no tensor has, are refused.
func TestArgumentsThatAreNone(t *testing.T) {
	_, e := open(t, Config{})
	if _, err := e.GetOrAdd(context.Background(), key("k"), 8, Options{Cost: -1}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a negative cost: %v", err)
	}
	for _, bytes := range []int64{-1, 1<<48 + 1} {
		if _, err := e.GetOrAdd(context.Background(), key("k"), bytes, Options{}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	if _, _, err := e.Get(context.Background(), key("k"), 8, Options{}, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("without a compute: %v", err)
	}
}

// T6: of many that can compute exactly one at a time becomes the owner, whoever gives up,
// until one delivers; then all the others have its tensor.
func TestHandedOnThroughMany(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(1)}})
	o := add(t, e, "k", mib, Options{})
	const callers, fail = 200, 50
	var owners, now, got atomic.Int32
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			out, err := e.GetOrAdd(context.Background(), key("k"), mib, Options{CanOwn: true})
			switch {
			case err != nil || out.Bypass != "":
				t.Errorf("%+v, %v", out, err)
			case out.Owner != nil:
				if now.Add(1) != 1 {
					t.Error("two owners at a time")
				}
				last := owners.Add(1) > fail
				now.Add(-1)
				if !last {
					out.Owner.Fail(errors.New("no"))
					return
				}
				if l, err := out.Owner.Fulfil("v", mib, nil); err != nil {
					t.Error(err)
				} else {
					l.End()
				}
			default:
				got.Add(1)
				out.Lease.End()
			}
		})
	}
	waitFor(t, func() bool { return waiting(o) == callers })
	o.Abandon()
	all.Wait()
	if owners.Load() != fail+1 || got.Load() != callers-fail-1 || e.Reserved() != 0 || e.Size() != mib {
		t.Errorf("%d owners, %d leases; %d reserved, %d resident", owners.Load(), got.Load(), e.Reserved(), e.Size())
	}
}

// T6: where every owner fails, each of those who wait is woken for its own turn and for
// no other: so each asks a few times, not as often as others fail.
func TestHeirsAreCalledOnce(t *testing.T) {
	_, e := open(t, Config{})
	o := add(t, e, "k", 8, Options{})
	const callers = 300
	ctx := &counting{Context: context.Background()}
	var computed atomic.Int32
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			_, _, err := e.Get(ctx, key("k"), 8, Options{}, func(context.Context) (Value, error) {
				computed.Add(1)
				return Value{}, errors.New("no")
			})
			if err == nil {
				t.Error("no error")
			}
		})
	}
	waitFor(t, func() bool { return waiting(o) == callers })
	before := ctx.asked.Load()
	o.Abandon()
	all.Wait()
	if more := ctx.asked.Load() - before; computed.Load() != callers || more > 20*callers {
		t.Errorf("%d computed; their context was asked %d times while %d failed", computed.Load(), more, callers)
	}
}

// counting counts how often it is asked whether it has ended: each asking does that.
type counting struct {
	context.Context
	asked atomic.Int64
}

func (c *counting) Err() error {
	c.asked.Add(1)
	return c.Context.Err()
}

// T6: the turn that hands an ownership over costs the same however many wait.
func BenchmarkHandover(b *testing.B) {
	for _, n := range []int{1e3, 1e4, 1e5} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := newState(nil, noBound, NoEvict)
			k := key("k")
			for range b.N {
				b.StopTimer()
				p := &pending{key: k, bytes: 8}
				s.admit(p)
				for range n {
					s.join(k, &waiter{asked: &pending{key: k, bytes: 8}})
				}
				b.StartTimer()
				heir := s.heir(p)
				if !s.inherit(p, heir.asked) {
					b.Fatal("not inherited")
				}
				b.StopTimer()
				s.drop(heir.asked)
			}
		})
	}
}
