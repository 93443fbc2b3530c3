package constants

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/limit"
)

// small is 4 MiB, of which what is worth least is displaced.
var small = Config{Capacity: [kinds]limit.Limit{CPU: MiB(4)}, Policy: [kinds]Policy{CPU: Cost}}

// counted computes a tensor of so many MiB and counts that.
func counted(t *testing.T, e *Engine, id string, n int64, cost time.Duration, runs *int) *Lease {
	t.Helper()
	l, _, err := e.Get(context.Background(), key(id), n*mib, Options{Cost: cost}, func(context.Context) (Value, error) {
		*runs++
		return Value{Any: id, Bytes: n * mib}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantAgain(t *testing.T, c *Cache, want map[string]uint64) {
	t.Helper()
	got := c.Stats().Again
	maps.DeleteFunc(got, func(_ string, n uint64) bool { return n == 0 })
	if !maps.Equal(got, want) {
		t.Errorf("computed again: %v, want %v", got, want)
	}
}

// C13, T4: a tensor that was displaced while it is leased is found by its key and not
// computed again, until its last lease has ended. It comes back where there is room for
// it, and only there.
func TestLeasedIsFoundAfterItsEviction(t *testing.T) {
	c, e := open(t, small)
	var runs, removed, other int
	l := counted(t, e, "cheap", 2, 1, &runs)
	if _, ok := l.Hold(func(Removal) { removed++ }); !ok {
		t.Fatal("not held")
	}
	counted(t, e, "dear", 4, 10, &other).End()
	if l.Resident() || e.Size() != 4*mib || c.Stats().Leased != 2*mib {
		t.Fatalf("the cheap one was not displaced: %d bytes, %d leased beside them", e.Size(), c.Stats().Leased)
	}
	again := counted(t, e, "cheap", 2, 1, &runs)
	if again.Value() != "cheap" || again.Resident() || runs != 1 {
		t.Errorf("found as %v, resident %v, after %d computations", again.Value(), again.Resident(), runs)
	}
	if there, err := e.Remove(context.Background(), key("dear")); !there || err != nil {
		t.Fatal(there, err)
	}
	back := counted(t, e, "cheap", 2, 1, &runs)
	if found, ok := e.Lookup(key("cheap")); !ok || !back.Resident() || runs != 1 || e.Size() != 2*mib || c.Stats().Leased != 0 {
		t.Errorf("there is room: found %v, resident %v, %d bytes, %d computations", ok, back.Resident(), e.Size(), runs)
	} else {
		found.End()
	}
	held, ok := back.Hold(func(Removal) {}) // as of any resident
	if !ok {
		t.Error("not held when it was back")
	}
	counted(t, e, "dear", 4, 10, &other).End()
	for _, l := range []*Lease{l, again, back} {
		l.End()
	}
	if counted(t, e, "cheap", 2, 1, &runs).End(); runs != 1 {
		t.Error("a held reference is no lease")
	}
	held.Drop()
	wantAgain(t, c, map[string]uint64{"cleared": 1})
}

// C13: to find what was displaced while it is leased is a hit, also after its removal was
// told, and counted as one.
func TestHitsOfTheDisplacedAreCounted(t *testing.T) {
	c, e := open(t, small)
	var runs, other int
	l := counted(t, e, "cheap", 2, 1, &runs)
	defer l.End()
	counted(t, e, "dear", 4, 10, &other).End()
	told := make(chan struct{})
	e.shell.gone.Fence(func() { close(told) })
	<-told
	for range 10 {
		counted(t, e, "cheap", 2, 1, &runs).End()
	}
	if hits := c.Stats().Hits; hits != 10 || runs != 1 {
		t.Errorf("%d hits and %d computations, want 10 and 1", hits, runs)
	}
}

// C13: what was cleared is not found, though it is leased; nor is what nobody leases any
// more, which leaves nothing behind.
func TestLeasedIsNotFoundAfterAClear(t *testing.T) {
	for what, end := range map[string]func(c *Cache, e *Engine, l *Lease){
		"removed": func(_ *Cache, e *Engine, _ *Lease) {
			if there, err := e.Remove(context.Background(), key("cheap")); !there || err != nil {
				t.Error(there, err)
			}
		},
		"flushed": func(c *Cache, _ *Engine, _ *Lease) {
			if err := c.SetCapacity(context.Background(), CPU, MiB(4)); err != nil {
				t.Error(err)
			}
		},
		"ended": func(_ *Cache, e *Engine, l *Lease) {
			l.End()
			let := make(chan struct{}) // its residency's pin go
			e.shell.gone.Fence(func() { e.shell.idle.Fence(func() { close(let) }) })
			<-let
		},
	} {
		c, e := open(t, small)
		var runs, other int
		l := counted(t, e, "cheap", 2, 1, &runs)
		counted(t, e, "dear", 4, 10, &other).End()
		end(c, e, l)
		counted(t, e, "cheap", 2, 20, &runs).End()
		if runs != 2 || c.Stats().Leased != 0 || len(e.shell.state.apart) != 0 {
			t.Errorf("%s: computed %d times, %d bytes are said to be leased", what, runs, c.Stats().Leased)
		}
		l.End()
	}
}

// F10: each second computation of a key has its reason.
func TestComputedAgain(t *testing.T) {
	c, e := open(t, small)
	var runs int
	get := func(id string, n int64, cost time.Duration) { counted(t, e, id, n, cost, &runs).End() }
	step := func(what string, want map[string]uint64, do func()) {
		do()
		t.Log(what)
		wantAgain(t, c, want)
	}
	step("first, and a hit", nil, func() { get("a", 4, 5); get("a", 4, 5) })
	step("full", map[string]uint64{"refused": 1}, func() { get("b", 4, 1); get("b", 4, 1) })
	step("displaced", map[string]uint64{"refused": 2, "evicted": 1}, func() { get("b", 4, 9); get("a", 4, 10) })
	step("flushed", map[string]uint64{"refused": 2, "evicted": 1, "cleared": 1}, func() {
		if err := c.SetCapacity(context.Background(), CPU, MiB(4)); err != nil {
			t.Fatal(err)
		}
		get("a", 4, 10)
	})
	step("failed", map[string]uint64{"refused": 2, "evicted": 1, "cleared": 1, "failed": 1}, func() {
		add(t, e, "c", 4*mib, Options{Cost: 20}).Abandon()
		add(t, e, "c", 4*mib, Options{Cost: 20}).Abandon()
	})
	step("another backend's", map[string]uint64{"refused": 2, "evicted": 1, "cleared": 1, "failed": 1}, func() {
		out, err := e.GetOrAdd(context.Background(), Key{Backend: 1, ID: key("c").ID}, 4*mib, Options{Cost: 20})
		if err != nil || out.Owner == nil {
			t.Fatal(out, err)
		}
		out.Owner.Abandon()
	})
	other, err := c.Engine(GPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	step("another engine's", map[string]uint64{"refused": 2, "evicted": 1, "cleared": 1, "failed": 1}, func() { counted(t, other, "c", 1, 1, &runs).End() })
}
