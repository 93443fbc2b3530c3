package kiln_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// G11, F1: the same key is one artefact, whatever name, group or session asks, and
// however many ask at once.
func TestEqualKeysAreOneArtefact(t *testing.T) {
	var made atomic.Int32
	r := open(t, kiln.Config{})
	a, b := session(t, r), session(t, r)
	recipe := kiln.Recipe[*int]{Key: "k", Make: func(context.Context) (kiln.Made[*int], error) {
		made.Add(1)
		return kiln.Made[*int]{Value: new(int), Bytes: 8}, nil
	}}
	var wg sync.WaitGroup
	got := make([]*int, 32)
	for i := range got {
		wg.Go(func() {
			g := group(t, []*kiln.Session{a, b}[i%2], int64(i%3))
			defer g.Close()
			got[i] = must(kiln.Get(ctx, g, fmt.Sprint("name", i%5), recipe))
		})
	}
	wg.Wait()
	for _, p := range got {
		if p == nil || p != got[0] {
			t.Fatalf("another artefact: %p, %p", p, got[0])
		}
	}
	if made.Load() != 1 {
		t.Errorf("%d were made", made.Load())
	}
}

// A name that holds another type: Get is ErrInvalid and names both types, Lookup,
// LookupID, Refer and Acquire report false.
func TestNameOfAnotherType(t *testing.T) {
	r := open(t, kiln.Config{})
	s := session(t, r)
	g := group(t, s, 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "n", of("k", 7)))
	_, err := kiln.Get(ctx, g, "n", of("k", "seven"))
	if !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "holds a value of type int, not string") || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("Get: %v", err)
	}
	if v, ok := kiln.Lookup[string](g, "n"); ok || v != "" {
		t.Errorf("Lookup: %q", v)
	}
	id := s.Intern("n")
	if v, ok := kiln.LookupID[string](g, id); ok || v != "" {
		t.Errorf("LookupID: %q", v)
	}
	if ref, ok := kiln.Refer[string](g, id); ok || ref.Resident() {
		t.Errorf("Refer: %+v", ref)
	}
	if l, ok := kiln.Acquire[string](g, "n"); ok || l != nil {
		t.Errorf("Acquire: %+v", l)
	}
	if v, ok := kiln.Lookup[int](g, "n"); !ok || v != 7 {
		t.Errorf("of its own type: %d, %v", v, ok)
	}
}

// An artefact that holds another type is ErrInvalid for the name that asks for it,
// naming both types; the name stands for the artefact as it is.
func TestArtefactOfAnotherType(t *testing.T) {
	r := open(t, kiln.Config{})
	a, b := session(t, r), session(t, r)
	g, h := group(t, a, 1), group(t, b, 1)
	defer g.Close()
	defer h.Close()
	must(kiln.Get(ctx, g, "n", of("k", 7)))
	_, err := kiln.Get(ctx, h, "m", of("k", []byte("7")))
	if !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "holds a value of type int, not []uint8") || !strings.Contains(err.Error(), `"k"`) {
		t.Errorf("got %v", err)
	}
	if v, ok := kiln.Lookup[int](h, "m"); !ok || v != 7 {
		t.Errorf("the name stands for %d, %v", v, ok)
	}
}

// F1, G13: a caller whose type fits is not refused for that of one who asked before it.
func TestJoinedOneWhoAsksForAnotherType(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, kiln.Config{})
		g, h := group(t, session(t, r), 1), group(t, session(t, r), 1)
		defer g.Close()
		defer h.Close()
		goOn := make(chan struct{})
		recipe := kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
			<-goOn
			return kiln.Made[int]{Value: 7}, nil
		}}
		wrong, right := make(chan error, 1), make(chan error, 1)
		go func() { _, _ = kiln.Get(ctx, h, "n", recipe) }()
		synctest.Wait()
		go func() { wrong <- second(kiln.Get(ctx, g, "n", of("k", "seven"))) }()
		synctest.Wait()
		go func() { right <- second(kiln.Get(ctx, g, "n", recipe)) }()
		synctest.Wait() // both wait for what h asked for
		close(goOn)
		if err := <-wrong; !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("of another type: %v", err)
		}
		if err := <-right; err != nil {
			t.Errorf("of its own type: %v", err)
		}
	})
}

// Callers of different types who wait for one computation: each gets its type's
// answer.
func TestJoinedWithAnotherType(t *testing.T) {
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	defer g.Close()
	began, goOn := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		v, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
			close(began)
			<-goOn
			return kiln.Made[int]{Value: 7}, nil
		}})
		if v != 7 || err != nil {
			t.Errorf("its maker got %d, %v", v, err)
		}
	})
	<-began
	wg.Go(func() {
		if v, err := kiln.Get(ctx, g, "n", of("k", "seven")); v != "" || !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("who joined got %q, %v", v, err)
		}
	})
	close(goOn)
	wg.Wait()
}

// Types that are interfaces hold what implements them, nil too.
func TestInterfaces(t *testing.T) {
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "buffer", of[io.Reader]("b", bytes.NewReader(nil))))
	if _, ok := kiln.Lookup[*bytes.Reader](g, "buffer"); !ok {
		t.Error("its own type is not found")
	}
	if _, ok := kiln.Lookup[io.Writer](g, "buffer"); ok {
		t.Error("a reader is found as a writer")
	}
	if v, err := kiln.Get(ctx, g, "none", of[error]("n", nil)); v != nil || err != nil {
		t.Errorf("a nil of an interface: %v, %v", v, err)
	}
	if v, ok := kiln.Lookup[error](g, "none"); !ok || v != nil {
		t.Errorf("looked up: %v, %v", v, ok)
	}
	if _, ok := kiln.Lookup[*bytes.Reader](g, "none"); ok {
		t.Error("a nil is found as a pointer")
	}
}

// What no cache could answer is refused before anything runs.
func TestRecipeIsChecked(t *testing.T) {
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	for what, err := range map[string]error{
		"no key":     second(kiln.Get(ctx, g, "n", of("", 1))),
		"no Make":    second(kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k"})),
		"no name":    second(kiln.Get(ctx, g, "", of("k", 1))),
		"no group":   second(kiln.Get(ctx, nil, "n", of("k", 1))),
		"minus":      second(kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{Bytes: -1}, nil }})),
		"no kernel":  second((*kiln.Group)(nil).Kernel(ctx, "n", nil, source("a"))),
		"no shape":   second(session(t, open(t, kiln.Config{})).Group(ctx)),
		"a negative": second(session(t, open(t, kiln.Config{})).Group(ctx, []int64{-1})),
	} {
		if !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, ok := kiln.Lookup[int](nil, "n"); ok {
		t.Error("found in no group")
	}
	if _, ok := kiln.LookupID[int](nil, kiln.NameID{}); ok {
		t.Error("found in no group by id")
	}
}

func second[T any](_ T, err error) error { return err }

// F5: a recipe may ask for other names, and a circle of recipes is ErrCycle.
func TestRecipesNest(t *testing.T) {
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	outer := kiln.Recipe[string]{Key: "outer", Make: func(ctx context.Context) (kiln.Made[string], error) {
		inner, err := kiln.Get(ctx, g, "inner", of("inner", "inside"))
		return kiln.Made[string]{Value: "around " + inner}, err
	}}
	if v, err := kiln.Get(ctx, g, "outer", outer); v != "around inside" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	var a, b kiln.Recipe[int]
	a = kiln.Recipe[int]{Key: "a", Make: func(ctx context.Context) (kiln.Made[int], error) {
		v, err := kiln.Get(ctx, g, "b", b)
		return kiln.Made[int]{Value: v}, err
	}}
	b = kiln.Recipe[int]{Key: "b", Make: func(ctx context.Context) (kiln.Made[int], error) {
		v, err := kiln.Get(ctx, g, "a", a)
		return kiln.Made[int]{Value: v}, err
	}}
	if _, err := kiln.Get(ctx, g, "a", a); !errors.Is(err, kiln.ErrCycle) || !strings.Contains(fmt.Sprint(err), "would wait for itself: a, which waits for b, which waits for a: a creator must not ask") {
		t.Errorf("a circle: %v", err)
	}
}

// F4: a caller whose context ends leaves alone.
func TestCallerLeavesAlone(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		g := group(t, session(t, open(t, kiln.Config{})), 1)
		defer g.Close()
		goOn := make(chan struct{})
		leaving, leave := context.WithCancel(ctx)
		recipe := kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
			<-goOn
			return kiln.Made[int]{Value: 7}, nil
		}}
		left, stays := make(chan error, 1), make(chan int, 1)
		go func() { left <- second(kiln.Get(leaving, g, "n", recipe)) }()
		synctest.Wait()
		go func() { stays <- must(kiln.Get(ctx, g, "n", recipe)) }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		close(goOn)
		if v := <-stays; v != 7 {
			t.Errorf("who stayed got %d", v)
		}
	})
}

// G7, G8: options credit a name to an owner; Reset drops its names alone, a Hold
// absorbs one.
func TestOwner(t *testing.T) {
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "a", of("a", 1), kiln.Owner("x")))
	must(kiln.Get(ctx, g, "b", of("b", 2), kiln.Owner("y")))
	must(kiln.Get(ctx, g, "c", of("c", 3)))
	there := func() (names string) {
		for _, name := range []string{"a", "b", "c"} {
			if _, ok := kiln.Lookup[int](g, name); ok {
				names += name
			}
		}
		return names
	}
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return s.Hold("x") }, "abc"},
		{func() error { return s.Reset(ctx, "x") }, "abc"},
		{func() error { return s.Reset(ctx, "x") }, "bc"},
		{func() error { return s.ResetAll(ctx) }, ""},
	} {
		if err := step.do(); err != nil || there() != step.want {
			t.Errorf("%q are there, %v; want %q", there(), err, step.want)
		}
	}
}

// G6: name and lane together are the key of a value.
func TestOnLane(t *testing.T) {
	g := group(t, session(t, open(t, kiln.Config{})), 1)
	defer g.Close()
	for lane := range kiln.Lane(3) {
		must(kiln.Get(ctx, g, "n", of(fmt.Sprint("k on ", lane), lane), kiln.OnLane(lane)))
	}
	for lane := range kiln.Lane(3) {
		if v, ok := kiln.Lookup[kiln.Lane](g, "n", kiln.OnLane(lane)); !ok || v != lane {
			t.Errorf("on %d: %d, %v", lane, v, ok)
		}
		if l, ok := kiln.Acquire[kiln.Lane](g, "n", kiln.Owner("x"), kiln.OnLane(lane)); !ok || l.Value() != lane {
			t.Errorf("leased on %d: %v", lane, ok)
		} else {
			l.End()
		}
	}
	if _, ok := kiln.Lookup[kiln.Lane](g, "n", kiln.OnLane(3)); ok {
		t.Error("found on a lane that nobody used")
	}
	if v, ok := kiln.Lookup[kiln.Lane](g, "n", kiln.OnLane(2), kiln.OnLane(1)); !ok || v != 1 {
		t.Errorf("of two options the later counts: %d", v)
	}
}

// K6: an artefact whose key does not cover it is made for each call, lives until
// its group is closed, and is neither named, shared nor stored.
func TestUnhashable(t *testing.T) {
	var events []kiln.Event
	var made, freed atomic.Int32
	r := open(t, kiln.Config{StoreDir: t.TempDir() + "/store", Listen: func(e kiln.Event) { events = append(events, e) }})
	s := session(t, r)
	g := group(t, s, 1)
	recipe := kiln.Recipe[int32]{Key: "k", Unhashable: "include", Make: func(context.Context) (kiln.Made[int32], error) {
		return kiln.Made[int32]{Value: made.Add(1), Free: func() { freed.Add(1) }, Blob: func(context.Context) ([]byte, error) { return []byte("b"), nil }}, nil
	}, Load: func(context.Context, []byte) (kiln.Made[int32], error) { return kiln.Made[int32]{}, nil }}
	for want := range int32(3) {
		if v := must(kiln.Get(ctx, g, "n", recipe)); v != want+1 {
			t.Errorf("got %d, want %d", v, want+1)
		}
		if e := events[want]; e.Kind != kiln.Miss || e.Reason != fault.KeyRefused || e.Field != "include" {
			t.Errorf("told %+v", e)
		}
	}
	if _, ok := kiln.Lookup[int32](g, "n"); ok || s.Cache().Len() != 0 || r.Artefacts().Len() != 0 || freed.Load() != 0 {
		t.Errorf("named %v, %d names, %d artefacts, %d freed", ok, s.Cache().Len(), r.Artefacts().Len(), freed.Load())
	}
	g.Close()
	eventually(t, func() bool { return freed.Load() == 3 })
	if err := r.Artefacts().Settle(ctx); err != nil || r.Store().Stats().Stores != 0 {
		t.Errorf("%d stored, %v", r.Store().Stats().Stores, err)
	}
	if _, err := kiln.Get(ctx, g, "n", recipe); !errors.Is(err, kiln.ErrClosed) || made.Load() != 3 {
		t.Errorf("after Close: %v, %d made", err, made.Load())
	}
}

// C8: each look-up is told once, with how it was answered, at the name and below.
func TestListen(t *testing.T) {
	var mu sync.Mutex
	var told []kiln.Event
	dir := t.TempDir() + "/store"
	start := func() *kiln.Runtime {
		return open(t, kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, e)
		}})
	}
	last := func(n int) kiln.Event {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if len(told) != n {
			t.Fatalf("%d events, want %d: %+v", len(told), n, told)
		}
		if n == 0 {
			return kiln.Event{}
		}
		return told[n-1]
	}
	type requestKey struct{}
	request := context.WithValue(ctx, requestKey{}, "request 5")
	r := start()
	s := must(r.Session(kiln.SessionConfig{Name: "tenant", Bucket: must(kiln.ParseBucketing("multiple:8"))}))
	g := group(t, s, 5)
	defer g.Close()

	kiln.Lookup[int](g, "n")
	last(0) // nothing was found, so nothing was answered
	must(kiln.Get(request, g, "n", stored("k", 1)))
	e := last(1)
	if e.Session != "tenant" || e.Shape != must(kiln.ShapeOf([]int64{8})) || e.Name != "n" || e.Key != "k" ||
		e.Kind != kiln.Miss || e.Artefact != kiln.Miss || e.Reason != fault.Absent || e.Cost != time.Second || e.Duration <= 0 {
		t.Errorf("a miss: %+v", e)
	}
	if e.Context.Value(requestKey{}) != "request 5" {
		t.Error("the event has another context than the call")
	}
	must(kiln.Get(ctx, g, "n", stored("k", 1)))
	if e := last(2); e.Kind != kiln.Hit || e.Key != "k" || e.Artefact != "" || e.Reason != "" || e.Cost != time.Second {
		t.Errorf("a hit: %+v", e)
	}
	kiln.Lookup[int](g, "n")
	if e := last(3); e.Kind != kiln.Hit || e.Name != "n" || e.Context == nil {
		t.Errorf("a look-up: %+v", e)
	}
	kiln.LookupID[int](g, s.Intern("n"))
	if e := last(4); e.Kind != kiln.Hit || e.Name != "n" {
		t.Errorf("by id: %+v", e)
	}
	must(kiln.Get(ctx, g, "m", stored("k", 1)))
	if e := last(5); e.Kind != kiln.Miss || e.Artefact != kiln.Hit || e.Reason != "" {
		t.Errorf("another name of the artefact: %+v", e)
	}
	if _, err := kiln.Get(ctx, g, "m", of("another", 1)); !errors.Is(err, kiln.ErrInvalid) || last(6).Kind != kiln.Failed || last(6).Err != err {
		t.Errorf("another key: %+v, %v", last(6), err)
	}
	if _, err := kiln.Get(ctx, g, "o", of("k", "text")); !errors.Is(err, kiln.ErrInvalid) || last(7).Kind != kiln.Failed {
		t.Errorf("an artefact of another type: %+v, %v", last(7), err)
	}
	kiln.Lookup[string](g, "m")
	last(7) // another type is not found
	mine := &kiln.Error{Op: "mine", Reason: fault.Quirk, Field: "driver", Err: kiln.ErrRefused}
	_, err := kiln.Get(ctx, g, "bad", kiln.Recipe[int]{Key: "bad", Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{}, mine }})
	if e := last(8); !errors.Is(err, kiln.ErrRefused) || e.Kind != kiln.Failed || e.Reason != fault.Quirk || e.Field != "driver" || e.Key != "bad" {
		t.Errorf("a failure: %+v, %v", e, err)
	}
	must(kiln.Get(ctx, g, "outer", kiln.Recipe[int]{Key: "outer", Make: func(ctx context.Context) (kiln.Made[int], error) {
		v, err := kiln.Get(ctx, g, "inner", stored("k", 1))
		return kiln.Made[int]{Value: v}, err
	}}))
	if e := last(10); e.Name != "outer" || told[8].Artefact != kiln.NestedHit {
		t.Errorf("nested: %+v", told[8:])
	}

	// A second process finds the blob.
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	h := group(t, session(t, start()), 1)
	defer h.Close()
	must(kiln.Get(ctx, h, "n", stored("k", 1)))
	if e := last(11); e.Kind != kiln.Miss || e.Artefact != kiln.PersistentHit || e.Reason != "" || e.Cost != time.Second {
		t.Errorf("from the store: %+v", e)
	}
}

// C8: of two callers of one name one has it made, and the other joins.
func TestListenJoined(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		told := make(chan kiln.Event, 2)
		g := group(t, session(t, open(t, kiln.Config{Listen: func(e kiln.Event) { told <- e }})), 1)
		defer g.Close()
		goOn := make(chan struct{})
		for range 2 {
			go kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
				<-goOn
				return kiln.Made[int]{}, nil
			}})
		}
		synctest.Wait()
		close(goOn)
		kinds := []kiln.Kind{(<-told).Kind, (<-told).Kind}
		if slices.Sort(kinds); !slices.Equal(kinds, []kiln.Kind{kiln.Joined, kiln.Miss}) {
			t.Errorf("two at once: %v", kinds)
		}
	})
}

// stored is a recipe of a value that can be stored, and that took a second to make.
func stored(key string, v int) kiln.Recipe[int] {
	made := func() (kiln.Made[int], error) {
		return kiln.Made[int]{Value: v, Bytes: 8, Cost: time.Second, Blob: func(context.Context) ([]byte, error) { return fmt.Append(nil, v), nil }}, nil
	}
	return kiln.Recipe[int]{Key: key,
		Make: func(context.Context) (kiln.Made[int], error) { return made() },
		Load: func(context.Context, []byte) (kiln.Made[int], error) { return made() }}
}

// A nested artefact is asked for through the door or beside it alike.
func TestDoorAndRoomShareArtefacts(t *testing.T) {
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "n", of("k", 7)))
	l, how, err := r.Artefacts().Get(ctx, artefacts.Request{Key: "k", Create: func(context.Context) (artefacts.Built, error) { return artefacts.Built{}, nil }})
	if err != nil || how.Event != artefacts.Hit || l.Value() != 7 {
		t.Fatalf("%+v, %v", how, err)
	}
	l.End()
}

// lateErr is a context whose Err panics after some calls.
type lateErr struct {
	context.Context
	left *atomic.Int32
}

func (c lateErr) Err() error {
	if c.left.Add(-1) < 0 {
		panic("user's Err")
	}
	return c.Context.Err()
}

// F4, G7: a context that panics while its caller waits leaves nothing behind: the
// value is freed as any other.
func TestContextThatPanicsWhileItWaits(t *testing.T) {
	r := open(t, kiln.Config{Linger: -1})
	g := group(t, session(t, r), 1)
	freed, running, goOn, left := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		defer func() { _ = recover() }()
		short, cancel := context.WithCancel(ctx)
		calls := new(atomic.Int32)
		calls.Store(1 << 20)
		go func() {
			<-running
			calls.Store(0)
			cancel()
		}()
		_, _ = kiln.Get(lateErr{short, calls}, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
			close(running)
			<-goOn
			return kiln.Made[int]{Value: 1, Bytes: 1, Free: func() { close(freed) }}, nil
		}})
	}()
	<-left
	close(goOn)
	g.Close()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	<-freed
}
