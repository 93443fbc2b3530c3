package flight_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
)

// house is a room with a mutex whose values are strings that know who uses them.
type house struct {
	flight.Locked[string, *tenant]
	mu      sync.Mutex
	there   map[string]*tenant
	running sync.WaitGroup
	made    atomic.Int64
}

type tenant struct {
	name string
	pins atomic.Int64
	gone atomic.Bool
}

func (v *tenant) unpin() {
	if v.pins.Add(-1) == 0 {
		v.gone.Store(true)
	}
}

func newHouse() *house {
	h := &house{there: make(map[string]*tenant)}
	h.Locked = flight.Locked[string, *tenant]{Mu: &h.mu, Scope: h, Lend: func(fn func()) { h.running.Go(fn) }}
	return h
}

type maker = func(ctx context.Context) (string, error)

// get gives a value with a pin on it.
func (h *house) get(ctx context.Context, key string, linger time.Duration, make maker) (v *tenant, role flight.Role, err error) {
	role, err = h.Ride(ctx, flight.Want[string, *tenant]{
		Key: key, Name: key, Linger: linger,
		Look: func() (bool, error) {
			if v = h.there[key]; v != nil {
				v.pins.Add(1)
			}
			return v != nil, nil
		},
		Make: func(ctx context.Context) (*tenant, error) {
			name, err := make(ctx)
			v := &tenant{name: name}
			v.pins.Store(1)
			h.made.Add(1)
			return v, err
		},
		Keep:    func(v *tenant) { v.pins.Add(1); h.there[key] = v },
		Take:    func(got *tenant) { got.pins.Add(1); v = got },
		Release: (*tenant).unpin,
	})
	return v, role, err
}

func (h *house) forget(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v := h.there[key]; v != nil {
		delete(h.there, key)
		v.unpin()
	}
}

func says(v string) maker { return func(context.Context) (string, error) { return v, nil } }

func obedient(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }

// F1: one creator for all who ask at once; then the value is there.
func TestRide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		gate := make(chan struct{})
		slow := func(context.Context) (string, error) { <-gate; return "v", nil }
		roles := make(chan flight.Role, 10) // one answer each
		for range 10 {
			go func() {
				v, role, err := h.get(background, "k", 0, slow)
				if err != nil || v.name != "v" {
					t.Errorf("%v, %v", v, err)
				}
				v.unpin()
				roles <- role
			}()
		}
		synctest.Wait()
		close(gate)
		count := map[flight.Role]int{}
		for range 10 {
			count[<-roles]++
		}
		_, role, _ := h.get(background, "k", 0, says("w"))
		if count[flight.Began] != 1 || count[flight.Joined] != 9 || h.made.Load() != 1 || role != flight.Found {
			t.Errorf("roles %v, then %v, %d made", count, role, h.made.Load())
		}
	})
}

// F4: the last caller's leaving ends the creator after the linger time, and one
// that comes after that has a creator of its own.
func TestRideAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		short := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(background, d)
			t.Cleanup(cancel)
			return ctx
		}
		start := time.Now()
		for i := range 3 { // each comes within the linger time of the one before
			_, role, err := h.get(short(time.Second), "k", time.Minute, obedient)
			if !errors.Is(err, context.DeadlineExceeded) || (role == flight.Began) != (i == 0) {
				t.Errorf("caller %d: role %v, %v", i, role, err)
			}
			time.Sleep(30 * time.Second)
		}
		h.running.Wait()
		if took := time.Since(start); took < 123*time.Second || took > 124*time.Second {
			t.Errorf("the creator was cancelled after %v", took)
		}
		if _, _, err := h.get(short(time.Second), "k", 0, obedient); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		h.running.Wait()
		if v, role, err := h.get(background, "k", 0, says("v")); err != nil || role != flight.Began || v.name != "v" {
			t.Errorf("after the end: role %v, %v", role, err)
		}
	})
}

// F4: a caller whose context has ended asks for nothing.
func TestRideAfterItsContext(t *testing.T) {
	h := newHouse()
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, role, err := h.get(ctx, "k", 0, says("v")); !errors.Is(err, context.Canceled) || role != flight.None || h.made.Load() != 0 {
		t.Errorf("role %v, %v, %d made", role, err, h.made.Load())
	}
}

// broken is a context that cannot be waited for.
type broken struct{ context.Context }

func (broken) Done() <-chan struct{} { panic("broken") }

// F4: a caller whose context panics has left: the creator, with nobody else, ends.
func TestRideWithABrokenContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the context's panic was lost")
				}
			}()
			_, _, _ = h.get(broken{background}, "k", 0, obedient)
		}()
		h.running.Wait() // for ever, if its context does not end
	})
}

// F4: a creator that succeeds although it was cancelled is kept, and one who came
// meanwhile gets its value; the error of a cancelled one is nobody's.
func TestRideLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		gate := make(chan error)
		deaf := func(context.Context) (string, error) { return "late", <-gate }
		for _, failure := range []error{nil, errCreator} {
			h.forget("k")
			ctx, cancel := context.WithCancel(background)
			left := make(chan error, 1)
			go func() { _, _, err := h.get(ctx, "k", 0, deaf); left <- err }()
			synctest.Wait()
			cancel()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			got := make(chan string, 1)
			go func() {
				v, _, err := h.get(background, "k", 0, says("own"))
				got <- fmt.Sprint(v.name, err)
			}()
			synctest.Wait()
			if len(got) != 0 {
				t.Fatal("two creators of one key at one time")
			}
			gate <- failure
			want := map[error]string{nil: "late<nil>", errCreator: "own<nil>"}[failure]
			if s := <-got; s != want {
				t.Errorf("after %v: got %s, want %s", failure, s, want)
			}
			h.running.Wait()
			if _, role, _ := h.get(background, "k", 0, says("x")); role != flight.Found {
				t.Error("not kept")
			}
		}
	})
}

// F7, F8: what is cleared or closed meanwhile serves its callers and does not stay.
func TestVoidAndStrand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		gate := make(chan struct{})
		deaf := func(context.Context) (string, error) { <-gate; return "v", nil }
		var first, second *tenant
		var failed error
		var done sync.WaitGroup
		done.Go(func() { first, _, _ = h.get(background, "k", 0, deaf) })
		synctest.Wait()
		h.mu.Lock()
		h.VoidAll()
		h.mu.Unlock()
		close(gate)
		done.Wait()
		h.running.Wait()
		if first.name != "v" || first.gone.Load() || len(h.there) != 0 {
			t.Errorf("cleared meanwhile: %v, %d kept", first, len(h.there))
		}
		first.unpin()
		if !first.gone.Load() {
			t.Error("the last user has gone")
		}
		gate = make(chan struct{})
		done.Go(func() { second, _, failed = h.get(background, "k", 0, deaf) })
		synctest.Wait()
		h.mu.Lock()
		h.Strand(fault.ErrClosed)
		h.mu.Unlock()
		done.Wait() // before the creator ends
		close(gate)
		h.running.Wait()
		if second != nil || !errors.Is(failed, fault.ErrClosed) || len(h.there) != 0 {
			t.Errorf("closed meanwhile: %v, %v, %d kept", second, failed, len(h.there))
		}
	})
}

// F8, C5: Strand ends the creators' contexts, and what one makes all the same is let
// go of.
func TestStrandedCreator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		var let []string
		ride := func() error {
			_, err := h.Ride(background, flight.Want[string, *tenant]{
				Key: "k", Name: "k",
				Look: func() (bool, error) { return false, nil },
				Make: func(ctx context.Context) (*tenant, error) {
					<-ctx.Done()
					return &tenant{name: "late"}, nil
				},
				Keep:    func(*tenant) { t.Error("kept after the end") },
				Take:    func(*tenant) { t.Error("taken after the end") },
				Release: func(v *tenant) { let = append(let, v.name) },
			})
			return err
		}
		failed := make(chan error, 1)
		go func() { failed <- ride() }()
		synctest.Wait()
		h.mu.Lock()
		h.Strand(fault.ErrClosed)
		h.mu.Unlock()
		if err := <-failed; !errors.Is(err, fault.ErrClosed) {
			t.Errorf("who waited: %v", err)
		}
		h.running.Wait() // for ever, if its context does not end
		if len(let) != 1 || let[0] != "late" {
			t.Errorf("let go of %q, want the late value once", let)
		}
	})
}

// F3: a Keep that panics leaves the mutex free and the value to nobody, and is the error
// of all who wait.
func TestKeepPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		released := 0
		_, err := h.Ride(background, flight.Want[string, *tenant]{
			Key: "k", Name: "k",
			Look:    func() (bool, error) { return false, nil },
			Make:    func(context.Context) (*tenant, error) { return new(tenant), nil },
			Keep:    func(*tenant) { panic("made to panic") },
			Take:    func(*tenant) { t.Error("taken") },
			Release: func(*tenant) { released++ },
		})
		h.running.Wait()
		var panicked *fault.PanicError
		if !errors.As(err, &panicked) || released != 1 || !h.mu.TryLock() {
			t.Errorf("%v, released %d times", err, released)
		}
	})
}

// posted is a caller of a room that answers by the flight that the caller brought.
type posted struct {
	flight.Flight[string]
	room  func(*posted)
	asked int
	left  []*flight.Flight[string]
	got   string
}

func (p *posted) Ask(ctx context.Context) (flight.Ticket[string], error) {
	if p.asked++; p.asked > 1 {
		p.got = "asked again"
		return flight.Ticket[string]{}, nil
	}
	p.Begin(ctx, "room", "k")
	p.Start()
	p.room(p)
	return flight.Ticket[string]{Flight: &p.Flight}, nil
}

func (p *posted) Take(v string) { p.got = v }

func (p *posted) Leave(t flight.Ticket[string]) { p.left = append(p.left, t.Flight) }

// A caller that brought a flight goes over to the one that it is referred to, and
// the value there is released only when it has been through.
func TestRefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name           string
			late, leaves   bool
			err            error
			got            string
			asked, unasked int
		}{
			{name: "value", got: "v", asked: 1},
			{name: "error", err: errCreator, asked: 1},
			{name: "late error", late: true, err: errCreator, got: "asked again", asked: 2},
			{name: "leaves", leaves: true, got: "", asked: 1, unasked: 1},
			{name: "leaves before it was referred", leaves: true, late: true, got: "", asked: 1, unasked: 1},
		} {
			other := begin(background, "k")
			ctx, cancel := context.WithCancel(background)
			var p *posted
			refer := func() { p.Refer(other, c.late) }
			p = &posted{room: func(*posted) { refer() }}
			if c.leaves && c.late {
				p.room = func(*posted) {}
			}
			end := make(chan error, 1)
			go func() { _, err := flight.Ride[string](ctx, p); end <- err }()
			synctest.Wait()
			if c.leaves {
				cancel()
				if err := <-end; !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", c.name, err)
				}
				if c.late {
					refer()
				}
			}
			released := 0
			other.Finish("v", c.err, func(string) { released++ })
			if !c.leaves {
				if err := <-end; !errors.Is(err, c.err) && c.asked == 1 {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			cancel()
			if p.got != c.got || p.asked != c.asked || len(p.left) != c.unasked {
				t.Errorf("%s: got %q, asked %d times, left %d times", c.name, p.got, p.asked, len(p.left))
			}
			if c.err == nil && released != 1 {
				t.Errorf("%s: released %d times", c.name, released)
			}
		}
	})
}

// The blob of another that was refused is nothing to this caller.
func TestRideOthersBlob(t *testing.T) {
	for _, c := range []struct {
		others bool
		err    error
		asked  int
	}{{true, fault.ErrRefused, 2}, {true, fault.ErrUnsupported, 2}, {true, errCreator, 1}, {false, fault.ErrRefused, 1}} {
		f := begin(background, "k")
		f.Board()
		f.Finish("", c.err, nil)
		p := &asker{ticket: flight.Ticket[string]{Flight: f, Others: c.others}}
		if _, err := flight.Ride[string](background, p); p.asked != c.asked || (err == nil) != (c.asked == 2) {
			t.Errorf("%v: asked %d times, %v", c, p.asked, err)
		}
	}
}

type asker struct {
	ticket flight.Ticket[string]
	take   []func(string)
	asked  int
}

func (a *asker) Ask(context.Context) (flight.Ticket[string], error) {
	if a.asked++; a.asked > 1 {
		return flight.Ticket[string]{}, nil
	}
	return a.ticket, nil
}
func (a *asker) Take(v string) {
	for _, take := range a.take {
		take(v)
	}
}

func (*asker) Leave(flight.Ticket[string]) {}

// Everything at once: never two creators of a key, nobody gets a value that is
// gone, every circle is answered, and in the end everything is released.
func TestRideStorm(t *testing.T) {
	const keys = 6
	h := newHouse()
	var busy [keys]atomic.Int64
	var all sync.Map
	var ask func(ctx context.Context, depth int) error
	ask = func(ctx context.Context, depth int) error {
		k := rand.IntN(keys)
		v, _, err := h.get(ctx, fmt.Sprint(k), time.Duration(rand.IntN(2))*time.Millisecond, func(ctx context.Context) (string, error) {
			if busy[k].Add(1) != 1 {
				t.Error("two creators of one key at one time")
			}
			defer busy[k].Add(-1)
			switch rand.IntN(6) {
			case 0:
				return "", errCreator
			case 1:
				panic("creator")
			case 2:
				return obedient(ctx)
			}
			if depth < 3 {
				for range rand.IntN(3) {
					_ = ask(ctx, depth+1)
				}
			}
			return fmt.Sprint(k), nil
		})
		if err != nil {
			return err
		}
		all.Store(v, nil)
		if v.gone.Load() || v.name != fmt.Sprint(k) {
			t.Errorf("asked for %d, got %q, gone %v", k, v.name, v.gone.Load())
		}
		v.unpin()
		return nil
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 200 {
				ctx, cancel := context.WithTimeout(background, time.Duration(rand.IntN(2000))*time.Microsecond)
				_ = ask(ctx, 0)
				cancel()
				if rand.IntN(4) == 0 {
					h.forget(fmt.Sprint(rand.IntN(keys)))
				}
			}
		})
	}
	callers.Wait()
	h.running.Wait()
	for k := range keys {
		h.forget(fmt.Sprint(k))
	}
	all.Range(func(v, _ any) bool {
		if !v.(*tenant).gone.Load() {
			t.Error("a value was not released")
			return false
		}
		return true
	})
}

// F5: of creators that wait for each other at one moment exactly one is answered,
// whatever runs beside them.
func TestCyclesAtOnce(t *testing.T) {
	for round := range 300 {
		n := 2 + round%5
		flights := make([]*flight.Flight[string], n)
		for i := range flights {
			flights[i] = begin(background, "k")
		}
		var answered atomic.Int64
		var done sync.WaitGroup
		for i, f := range flights {
			next := flights[(i+1)%n]
			next.Board()
			done.Go(func() {
				_, err := flight.Ride[string](f.Context(), &asker{ticket: flight.Ticket[string]{Flight: next}})
				if errors.Is(err, fault.ErrCycle) {
					answered.Add(1)
				} else if err != nil {
					t.Error(err)
				}
				f.Finish("v", nil, nil)
			})
		}
		done.Wait()
		if answered.Load() != 1 {
			t.Fatalf("a circle of %d: %d were answered", n, answered.Load())
		}
	}
}

// F6: what a creator has asked for, and not waited for, is forgotten on its goroutine: not by
// the room, under its mutex or in its turn.
func TestCreatorSettles(t *testing.T) {
	const parts = 100
	var mu sync.Mutex
	l := flight.Locked[string, int]{Mu: &mu, Scope: "room", Lend: func(fn func()) { go fn() }}
	var left []*flight.Flight[int]
	edges := 0
	if _, err := l.Ride(t.Context(), flight.Want[string, int]{
		Key: "whole", Name: "whole",
		Look: func() (bool, error) { return false, nil },
		Make: func(ctx context.Context) (int, error) {
			for range parts {
				p := flight.New[int](ctx, "room", "part")
				p.Start()
				left = append(left, p)
			}
			return 1, nil
		},
		Keep: func(int) {
			for _, p := range left {
				if p.HasEdges() {
					edges++
				}
			}
		},
		Take: func(int) {},
	}); err != nil {
		t.Fatal(err)
	}
	if edges != 0 || len(left) != parts {
		t.Errorf("the creator of %d parts waits for %d, and has ended", len(left), edges)
	}
}

// A blob that another caller brought and that was refused is no answer for one who has none:
// that caller asks again, and makes the value.
func TestRideWithABlob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse()
		ride := func(blob bool, make func() (*tenant, error)) error {
			_, err := h.Ride(background, flight.Want[string, *tenant]{
				Key: "k", Name: "k", Blob: blob,
				Look: func() (bool, error) { return false, nil },
				Make: func(context.Context) (*tenant, error) { return make() },
				Keep: func(*tenant) {}, Take: func(*tenant) {},
			})
			return err
		}
		refuse := make(chan struct{})
		brought, joined := make(chan error, 1), make(chan error, 1)
		go func() {
			brought <- ride(true, func() (*tenant, error) { <-refuse; return nil, fault.ErrRefused })
		}()
		synctest.Wait()
		go func() { joined <- ride(false, func() (*tenant, error) { return new(tenant), nil }) }()
		synctest.Wait()
		close(refuse)
		if err := <-brought; !errors.Is(err, fault.ErrRefused) {
			t.Errorf("who brought the blob: %v", err)
		}
		if err := <-joined; err != nil {
			t.Errorf("who joined without one: %v", err)
		}
	})
}
