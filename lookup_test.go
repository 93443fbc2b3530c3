package kiln_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
)

// A hit through the door allocates nothing, options given or not, whatever the
// type; and so does a look-up that finds nothing.
func TestLookupDoesNotAllocate(t *testing.T) {
	type program struct{ code string }
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "pointer", of("p", &program{"code"})))
	must(kiln.Get(ctx, g, "pointer", of("p on 3", &program{"code"}), kiln.OnLane(3), kiln.Owner("x")))
	must(kiln.Get(ctx, g, "struct", of("s", program{"code"})))
	must(kiln.Get(ctx, g, "number", of("n", 1<<30)))
	must(kiln.Get(ctx, g, "any", of[any]("a", 1<<30)))
	id := s.Intern("pointer")
	ref, ok := kiln.Refer[*program](g, id)
	if !ok {
		t.Fatal("no reference")
	}
	lane, owner := kiln.Lane(3), "x"
	for what, look := range map[string]func() bool{
		"a pointer": func() bool { p, ok := kiln.Lookup[*program](g, "pointer"); return ok && p.code == "code" },
		"with options": func() bool {
			p, ok := kiln.Lookup[*program](g, "pointer", kiln.OnLane(lane), kiln.Owner(owner), kiln.Linger(0))
			return ok && p.code == "code"
		},
		"a struct":     func() bool { p, ok := kiln.Lookup[program](g, "struct"); return ok && p.code == "code" },
		"a number":     func() bool { n, ok := kiln.Lookup[int](g, "number"); return ok && n == 1<<30 },
		"an interface": func() bool { n, ok := kiln.Lookup[any](g, "any"); return ok && n == 1<<30 },
		"absent":       func() bool { _, ok := kiln.Lookup[int](g, "none"); return !ok },
		"another type": func() bool { _, ok := kiln.Lookup[string](g, "number"); return !ok },
		"by id":        func() bool { p, ok := kiln.LookupID[*program](g, id); return ok && p.code == "code" },
		"a reference":  func() bool { return ref.Resident() && ref.Value().code == "code" },
		"refer":        func() bool { r, ok := kiln.Refer[*program](g, id); return ok && r.Resident() },
	} {
		found := true
		if n := testing.AllocsPerRun(100, func() { found = look() && found }); n != 0 || !found {
			t.Errorf("%s: %v allocations, right %v", what, n, found)
		}
	}
	// Get allocates nothing of its own; the recipe is the caller's.
	recipe := of("p", (*program)(nil))
	if n := testing.AllocsPerRun(100, func() { must(kiln.Get(ctx, g, "pointer", recipe)) }); n != 0 {
		t.Errorf("Get of what is there: %v allocations", n)
	}
}

// counting is a recipe whose values say how many of them are left.
func counting(key string, left *atomic.Int32) kiln.Recipe[int] {
	return kiln.Recipe[int]{Key: key, Make: func(context.Context) (kiln.Made[int], error) {
		left.Add(1)
		return kiln.Made[int]{Value: 7, Bytes: 8, Free: func() { left.Add(-1) }}, nil
	}}
}

// C5, C12: a lease outlives group, name and artefact; its value is freed once,
// when it ends.
func TestLeaseOutlivesTheGroup(t *testing.T) {
	var left atomic.Int32
	r := open(t, kiln.Config{})
	s := session(t, r)
	g := group(t, s, 1)
	must(kiln.Get(ctx, g, "n", counting("k", &left)))
	lease, ok := kiln.Acquire[int](g, "n")
	if !ok {
		t.Fatal("no lease on what is there")
	}
	if _, ok := kiln.Acquire[int](g, "m"); ok {
		t.Error("a lease on what is absent")
	}
	ref, _ := kiln.Refer[int](g, s.Intern("n"))
	g.Close()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil {
		t.Fatal(err)
	}
	if left.Load() != 1 || lease.Value() != 7 || ref.Resident() {
		t.Errorf("%d left, resident %v: want it leased and not resident", left.Load(), ref.Resident())
	}
	again, ok := ref.Acquire()
	if !ok || again.Value() != 7 {
		t.Fatal("a reference to what is leased cannot be leased")
	}
	lease.End()
	lease.End()
	if left.Load() != 1 {
		t.Error("freed under a lease")
	}
	again.End()
	if left.Load() != 0 {
		t.Error("not freed by the last lease")
	}
	if _, ok := ref.Acquire(); ok {
		t.Error("a lease on what was freed")
	}
	if ref.Value() != 7 || ref.Bytes() != 8 || (kiln.Ref[int]{}).Resident() {
		t.Errorf("the reference says %d, %d bytes", ref.Value(), ref.Bytes())
	}
}

// A held reference says when to look again: after a reset, an overwrite or an
// eviction.
func TestRefSaysWhenToLookAgain(t *testing.T) {
	s := session(t, open(t, kiln.Config{}))
	g := group(t, s, 1)
	defer g.Close()
	id := s.Intern("n")
	if _, ok := kiln.Refer[int](g, id); ok {
		t.Error("a reference to what is absent")
	}
	must(kiln.Get(ctx, g, "n", of("k", 1), kiln.Owner("x")))
	ref, ok := kiln.Refer[int](g, id)
	if !ok || !ref.Resident() || ref.Value() != 1 {
		t.Fatalf("%+v, %v", ref, ok)
	}
	if err := s.Reset(ctx, "x"); err != nil || ref.Resident() {
		t.Errorf("resident after a reset, %v", err)
	}
	must(kiln.Get(ctx, g, "n", of("j", 2)))
	if ref, ok = kiln.Refer[int](g, id); !ok || ref.Value() != 2 {
		t.Errorf("looked again: %+v, %v", ref, ok)
	}
}
