package kiln_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
)

// activation is a value that says how many of its kind are left.
func activation(v int, left *atomic.Int32) kiln.Made[int] {
	left.Add(1)
	return kiln.Made[int]{Value: v, Bytes: 8, Free: func() { left.Add(-1) }}
}

// G14, G1: a forward pass sets values, a backward pass takes them: each is there
// until it is taken, once, and belongs to the caller from then on.
func TestSetAndTake(t *testing.T) {
	var left atomic.Int32
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	if err := kiln.Set(ctx, g, "a", activation(1, &left)); err != nil {
		t.Fatal(err)
	}
	if v, ok := kiln.Lookup[int](g, "a"); !ok || v != 1 {
		t.Errorf("what was set: %d, %v", v, ok)
	}
	if err := kiln.Set(ctx, g, "a", activation(2, &left)); err != nil {
		t.Fatal(err)
	}
	if v, ok := kiln.Lookup[int](g, "a"); !ok || v != 2 {
		t.Errorf("what was set over it: %d, %v", v, ok)
	}
	made, err := kiln.Take[int](ctx, g, "a")
	if err != nil || made.Value != 2 || made.Bytes != 8 || made.Free == nil {
		t.Fatalf("taken: %+v, %v", made, err)
	}
	if _, ok := kiln.Lookup[int](g, "a"); ok || s.Stats().Bytes != 0 {
		t.Errorf("there after it was taken: %v, %d bytes", ok, s.Stats().Bytes)
	}
	if _, err := kiln.Take[int](ctx, g, "a"); !errors.Is(err, kiln.ErrNotFound) {
		t.Errorf("taken twice: %v", err)
	}
	g.Close()
	eventually(t, func() bool { return left.Load() == 1 }) // the overwritten one
	made.Free()
	if left.Load() != 0 {
		t.Error("its new owner cannot free it")
	}
}

// G14: what was taken may be set again, elsewhere too, and a value that no group
// takes is freed.
func TestTakenIsSetAgain(t *testing.T) {
	var left atomic.Int32
	r := open(t, kiln.Config{})
	s := session(t, r)
	g, h := group(t, s, 1), group(t, session(t, r), 2)
	if err := kiln.Set(ctx, g, "a", activation(1, &left), kiln.OnLane(2), kiln.Owner("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := kiln.Take[int](ctx, g, "a"); !errors.Is(err, kiln.ErrNotFound) {
		t.Errorf("taken from another lane: %v", err)
	}
	made := must(kiln.Take[int](ctx, g, "a", kiln.OnLane(2)))
	g.Close()
	if err := kiln.Set(ctx, h, "a", made); err != nil || left.Load() != 1 {
		t.Fatalf("%v, %d left", err, left.Load())
	}
	if v, ok := kiln.Lookup[int](h, "a"); !ok || v != 1 {
		t.Errorf("set again: %d, %v", v, ok)
	}
	if !h.Remove("a") || h.Remove("a") {
		t.Error("Remove does not say whether the name was there")
	}
	h.Close()
	eventually(t, func() bool { return left.Load() == 0 })
	for what, err := range map[string]error{
		"closed": kiln.Set(ctx, h, "a", activation(1, &left)), "nil": kiln.Set(ctx, nil, "a", activation(1, &left)),
	} {
		if !errors.Is(err, kiln.ErrClosed) && !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	eventually(t, func() bool { return left.Load() == 0 })
}

// G14: Take of another type takes nothing.
func TestTakeOfAnotherType(t *testing.T) {
	var left atomic.Int32
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	if err := kiln.Set(ctx, g, "a", activation(1, &left)); err != nil {
		t.Fatal(err)
	}
	if _, err := kiln.Take[string](ctx, g, "a"); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "a value of type int, not string") {
		t.Errorf("got %v", err)
	}
	if v, ok := kiln.Lookup[int](g, "a"); !ok || v != 1 || left.Load() != 1 {
		t.Errorf("it is gone: %d, %v, %d left", v, ok, left.Load())
	}
}

// G14, C12: a name that stands for an artefact can be taken and removed too: the
// artefact stays for its other names, and Free gives the lease back.
func TestTakeOfAnArtefact(t *testing.T) {
	var left atomic.Int32
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	recipe := counting("k", &left)
	must(kiln.Get(ctx, g, "a", recipe))
	must(kiln.Get(ctx, g, "b", recipe))
	made := must(kiln.Take[int](ctx, g, "a"))
	if !g.Remove("b") || made.Value != 7 {
		t.Errorf("removed, and taken %d", made.Value)
	}
	if _, ok := kiln.Lookup[int](g, "b"); ok {
		t.Error("there after Remove")
	}
	g.Close()
	if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil {
		t.Fatal(err)
	}
	if left.Load() != 1 {
		t.Error("freed while its taker has it")
	}
	made.Free()
	eventually(t, func() bool { return left.Load() == 0 })
}

// G13: a name remembers the key that it was made from. With another one it is
// ErrInvalid naming both, on a hit and for a caller that joins; never the first
// key's artefact.
func TestNameOfAnotherKey(t *testing.T) {
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	defer g.Close()
	refused := func(what string, v int, err error) {
		t.Helper()
		if v != 0 || !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "first") || !strings.Contains(err.Error(), "second") {
			t.Errorf("%s: %d, %v", what, v, err)
		}
	}
	must(kiln.Get(ctx, g, "n", of("first", 1)))
	v, err := kiln.Get(ctx, g, "n", of("second", 2))
	refused("a hit", v, err)
	if v := must(kiln.Get(ctx, g, "n", of("first", 3))); v != 1 {
		t.Errorf("its own key gives %d", v)
	}
	h := group(t, s, 2)
	defer h.Close()
	if v := must(kiln.Get(ctx, h, "n", of("second", 2))); v != 2 {
		t.Errorf("the name in another group gives %d", v)
	}

	began, goOn := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		must(kiln.Get(ctx, g, "slower", kiln.Recipe[int]{Key: "the first", Make: func(context.Context) (kiln.Made[int], error) {
			close(began)
			<-goOn
			return kiln.Made[int]{Value: 1}, nil
		}}))
	})
	<-began
	wg.Go(func() {
		v, err := kiln.Get(ctx, g, "slower", of("the second", 2))
		refused("who joined", v, err)
	})
	close(goOn)
	wg.Wait()

	if err := kiln.Set(ctx, g, "own", kiln.Made[int]{Value: 4}); err != nil {
		t.Fatal(err)
	}
	if v := must(kiln.Get(ctx, g, "own", of("second", 2))); v != 4 {
		t.Errorf("a name that was set has no key to differ from: %d", v)
	}
}

// G12: a closed group finds nothing, and every other call on it is ErrClosed.
func TestClosedGroup(t *testing.T) {
	var left atomic.Int32
	r := open(t, kiln.Config{})
	s := session(t, r)
	e := executor(t, r, newCounted())
	g := group(t, s, 1)
	must(kiln.Get(ctx, g, "n", counting("k", &left)))
	must(g.Kernel(ctx, "kernel", e, source("a")))
	id := s.Intern("n")
	g.Close()
	g.Close()
	for what, err := range map[string]error{
		"Get":        second(kiln.Get(ctx, g, "n", counting("k", &left))),
		"Get absent": second(kiln.Get(ctx, g, "m", of("m", 1))),
		"Kernel":     second(g.Kernel(ctx, "kernel", e, source("a"))),
		"Set":        kiln.Set(ctx, g, "n", kiln.Made[int]{}),
		"Take":       second(kiln.Take[int](ctx, g, "n")),
	} {
		if !errors.Is(err, kiln.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, lookup := kiln.Lookup[int](g, "n")
	_, byID := kiln.LookupID[int](g, id)
	_, refer := kiln.Refer[int](g, id)
	_, acquire := kiln.Acquire[int](g, "n")
	if lookup || byID || refer || acquire || g.Remove("n") {
		t.Errorf("found: %v by name, %v by id, %v referred, %v leased", lookup, byID, refer, acquire)
	}
	h := group(t, s, 1)
	defer h.Close()
	if v, ok := kiln.Lookup[int](h, "n"); !ok || v != 7 {
		t.Errorf("the next request finds %d, %v", v, ok)
	}
}

// F1, C5, G9, G12: callers get, look up, set, take, lease, reset and close at
// random; every value is freed once, after its last use, and nobody sees one that
// was freed.
func TestStorm(t *testing.T) {
	type value struct {
		name  string
		freed atomic.Bool
	}
	var made, freed atomic.Int64
	r := open(t, kiln.Config{ArtefactEntries: kiln.LimitOf(6), SessionBytes: kiln.LimitOf(400)})
	make1 := func(name string) kiln.Made[*value] {
		v := &value{name: name}
		made.Add(1)
		return kiln.Made[*value]{Value: v, Bytes: 10, Free: func() {
			if v.freed.Swap(true) {
				t.Errorf("%s was freed twice", name)
			}
			freed.Add(1)
		}}
	}
	use := func(what, name string, v *value) {
		switch {
		case v == nil:
			t.Errorf("%s: %s is nil", what, name)
		case v.freed.Load():
			t.Errorf("%s: %s was freed", what, name)
		case v.name != name:
			t.Errorf("%s: %s is %s", what, name, v.name)
		}
	}
	sessions := []*kiln.Session{
		must(r.Session(kiln.SessionConfig{Name: "a", Groups: kiln.LimitOf(2)})),
		must(r.Session(kiln.SessionConfig{Name: "b", Bytes: kiln.LimitOf(60)})),
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			s := sessions[worker%2]
			if worker >= 6 { // sessions come and go, too
				s = must(r.Session(kiln.SessionConfig{Name: fmt.Sprint("guest ", worker)}))
				defer s.Close(ctx)
			}
			for i := range 400 {
				g, err := s.Group(ctx, []int64{int64((worker + i) % 4)})
				if err != nil {
					t.Error(err)
					return
				}
				for j := range 5 {
					name := fmt.Sprint("n", (i*7+j*3)%9)
					switch step := (worker*31 + i*17 + j*5) % 11; step {
					case 0, 1, 2:
						v, err := kiln.Get(ctx, g, name, kiln.Recipe[*value]{Key: name, Make: func(context.Context) (kiln.Made[*value], error) { return make1(name), nil }}, kiln.Owner("o"))
						if err != nil {
							t.Errorf("Get %s: %v", name, err)
							continue
						}
						use("Get", name, v)
					case 3, 4:
						if v, ok := kiln.Lookup[*value](g, name); ok {
							use("Lookup", name, v)
						}
					case 5:
						if err := kiln.Set(ctx, g, name, make1(name), kiln.Owner("o")); err != nil {
							t.Errorf("Set %s: %v", name, err)
						}
					case 6:
						if m, err := kiln.Take[*value](ctx, g, name); err == nil {
							use("Take", name, m.Value)
							m.Free()
						} else if !errors.Is(err, kiln.ErrNotFound) {
							t.Errorf("Take %s: %v", name, err)
						}
					case 7:
						if l, ok := kiln.Acquire[*value](g, name); ok {
							wg.Go(func() {
								use("Acquire", name, l.Value())
								l.End()
							})
						}
					case 8:
						g.Remove(name)
					case 9:
						if ref, ok := kiln.Refer[*value](g, s.Intern(name)); ok {
							use("Refer", name, ref.Value())
						}
					case 10:
						if i%20 == 0 {
							if err := s.Reset(ctx, "o"); err != nil {
								t.Error(err)
							}
						}
					}
				}
				g.Close()
				if _, ok := kiln.Lookup[*value](g, "n0"); ok {
					t.Error("a closed group found something")
				}
			}
		})
	}
	wg.Wait()
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if made.Load() != freed.Load() || made.Load() == 0 {
		t.Errorf("%d made, %d freed", made.Load(), freed.Load())
	}
}

// F8: a session that is closed under its callers: each gets a value or ErrClosed.
func TestCloseUnderCallers(t *testing.T) {
	for range 20 {
		var left atomic.Int32
		r := open(t, kiln.Config{})
		s := session(t, r)
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() {
				for i := range 50 {
					g, err := s.Group(ctx, []int64{int64(i % 3)})
					if errors.Is(err, kiln.ErrClosed) {
						return
					}
					if _, err := kiln.Get(ctx, g, fmt.Sprint(worker, i), counting(fmt.Sprint(i), &left)); err != nil && !errors.Is(err, kiln.ErrClosed) && !errors.Is(err, context.Canceled) {
						t.Errorf("Get: %v", err)
					}
					if err := kiln.Set(ctx, g, "set", activation(i, &left)); err != nil && !errors.Is(err, kiln.ErrClosed) {
						t.Errorf("Set: %v", err)
					}
					kiln.Lookup[int](g, "set")
					g.Close()
				}
			})
		}
		wg.Go(func() {
			if err := r.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		eventually(t, func() bool { return left.Load() == 0 })
	}
}

// G14, G7: a caller that asks for another type takes nothing, not for a moment: the
// value stays where it is, with its owner.
func TestTakersOfAnotherType(t *testing.T) {
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	defer g.Close()
	var over atomic.Bool
	var takers sync.WaitGroup
	for range 2 {
		takers.Go(func() {
			for !over.Load() {
				if _, err := kiln.Take[int](ctx, g, "n"); err == nil {
					t.Error("took a string for an int")
				}
			}
		})
	}
	for range 500 {
		g.Remove("n")
		if err := kiln.Set(ctx, g, "n", kiln.Made[string]{Value: "x"}, kiln.Owner("o")); err != nil {
			t.Fatal(err)
		}
		if _, ok := kiln.Lookup[string](g, "n"); !ok {
			t.Fatal("the value is gone")
		}
		if err := s.Reset(ctx, "o"); err != nil {
			t.Fatal(err)
		}
		if _, ok := kiln.Lookup[string](g, "n"); ok {
			t.Fatal("the value is no longer its owner's")
		}
	}
	over.Store(true)
	takers.Wait()
}

// Q5: a size above 2^48 bytes is refused, made or set, its value is freed, and no sum of
// sizes wraps.
func TestHugeSizes(t *testing.T) {
	const most = 1 << 48
	r := open(t, kiln.Config{})
	s := session(t, r)
	g := group(t, s, 1)
	defer g.Close()
	var freed atomic.Int32
	var sum int64
	free := func() { freed.Add(1) }
	for i, bytes := range []int64{most, most + 1, 1 << 50, 1 << 62} {
		var want error
		if name := fmt.Sprint(i); bytes > most {
			want = kiln.ErrInvalid
			_, err := kiln.Get(ctx, g, name, kiln.Recipe[int]{Key: name, Make: func(context.Context) (kiln.Made[int], error) {
				return kiln.Made[int]{Value: 1, Bytes: bytes}, nil
			}})
			if !errors.Is(err, want) {
				t.Errorf("made of %d bytes: %v", bytes, err)
			}
		} else {
			sum += bytes
		}
		if err := kiln.Set(ctx, g, "set", kiln.Made[int]{Value: 1, Bytes: bytes, Free: free}); !errors.Is(err, want) {
			t.Errorf("set with %d bytes: %v", bytes, err)
		}
	}
	if a, b := r.Artefacts().Bytes(), s.Stats().Bytes; a != 0 || b != sum {
		t.Errorf("%d and %d bytes, want 0 and %d", a, b, sum)
	}
	g.Close()
	if err := s.Close(ctx); err != nil { // waits for what is freed
		t.Error(err)
	}
	if n := freed.Load(); n != 4 {
		t.Errorf("%d values were freed, want 4", n)
	}
}

// F2: what a recipe reports wrongly is an error and is not kept: the next call makes
// it anew.
func TestNegativeCostIsNotKept(t *testing.T) {
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	defer g.Close()
	var freed atomic.Int32
	made := kiln.Made[int]{Value: 1, Cost: -1, Free: func() { freed.Add(1) }}
	recipe := kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) { return made, nil }}
	if _, err := kiln.Get(ctx, g, "n", recipe); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("made in less than no time: %v", err)
	}
	eventually(t, func() bool { return freed.Load() == 1 })
	made.Cost = 1
	if v, err := kiln.Get(ctx, g, "n", recipe); err != nil || v != 1 {
		t.Errorf("the next call: %d, %v", v, err)
	}
}

// A look-up that found nothing gives a lease that may be ended all the same.
func TestLeaseOfNothing(t *testing.T) {
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	l, ok := kiln.Acquire[int](g, "absent")
	if ok {
		t.Error("there is such a name")
	}
	l.End()
	new(kiln.Lease[int]).End()
}

// F3: a Free that ends its goroutine in Close keeps no artefact of the group alive.
func TestFreeThatEndsClose(t *testing.T) {
	r := open(t, kiln.Config{ArtefactEntries: kiln.LimitOf(0)})
	s, err := r.Session(kiln.SessionConfig{Bytes: kiln.LimitOf(4)})
	if err != nil {
		t.Fatal(err)
	}
	g := group(t, s, 1)
	var left atomic.Int32
	for name, recipe := range map[string]kiln.Recipe[int]{
		"large": {Key: "a", Make: func(context.Context) (kiln.Made[int], error) {
			return kiln.Made[int]{Bytes: 8, Free: runtime.Goexit}, nil // which no cache keeps: Close frees it
		}},
		"alone": {Key: "b", Unhashable: "an input", Make: func(context.Context) (kiln.Made[int], error) {
			return activation(1, &left), nil
		}},
	} {
		if _, err := kiln.Get(ctx, g, name, recipe); err != nil {
			t.Fatal(err)
		}
	}
	var closing sync.WaitGroup
	closing.Go(g.Close)
	closing.Wait()
	eventually(t, func() bool { return left.Load() == 0 }) // a goroutine of the cache may free it
}

// F3: a Free that ends its goroutine ends that of who frees a taken value, without a panic.
func TestTakenFreeThatEndsItsGoroutine(t *testing.T) {
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	if err := kiln.Set(ctx, g, "a", kiln.Made[int]{Free: runtime.Goexit}); err != nil {
		t.Fatal(err)
	}
	made, err := kiln.Take[int](ctx, g, "a")
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := s.ResetAll(ctx); err != nil { // the group has let go
		t.Fatal(err)
	}
	var freeing sync.WaitGroup
	freeing.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				t.Errorf("it panicked: %v", v)
			}
		}()
		made.Free()
	})
	freeing.Wait()
	made.Free()
}

// G13, Q5: what was taken and is set again keeps its key, so that nobody gets it for
// another one, and its bytes count once for the memory limit.
func TestTakenKeepsItsKey(t *testing.T) {
	var left atomic.Int32
	r := open(t, kiln.Config{MemoryLimit: "1024"})
	g := group(t, session(t, r), 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "n", counting("k", &left)))
	bytes := r.Stats().Memory.Bytes
	if err := kiln.Set(ctx, g, "n", must(kiln.Take[int](ctx, g, "n"))); err != nil {
		t.Fatal(err)
	}
	if now := r.Stats().Memory.Bytes; now != bytes {
		t.Errorf("%d bytes, %d before", now, bytes)
	}
	if v, err := kiln.Get(ctx, g, "n", counting("another", &left)); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("asked with another key: %d, %v", v, err)
	}
	if v, err := kiln.Get(ctx, g, "n", counting("k", &left)); err != nil || v != 7 || left.Load() != 1 {
		t.Errorf("asked with its key: %d, %v, made %d times", v, err, left.Load())
	}
}

// G14: a name is removed of its own lane.
func TestRemoveOnALane(t *testing.T) {
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	lane := kiln.OnLane(kiln.Worker(1))
	for v, o := range [][]kiln.Option{nil, {lane}} {
		if err := kiln.Set(ctx, g, "n", kiln.Made[int]{Value: v}, o...); err != nil {
			t.Fatal(err)
		}
	}
	if !g.Remove("n", lane) || g.Remove("n", lane) {
		t.Error("the lane's was not removed, or twice")
	}
	if v, ok := kiln.Lookup[int](g, "n"); v != 0 || !ok {
		t.Errorf("the shared one: %d, %v", v, ok)
	}
	if v, ok := kiln.Lookup[int](g, "n", lane); ok {
		t.Errorf("the lane's: %d", v)
	}
}
