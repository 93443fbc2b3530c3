package sessioncache_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/sessioncache"
)

// A name looked up by id is never older than one looked up by name before, nor
// the other way round, while it is overwritten (C12, G1).
func TestSlotsAndNamesAgree(t *testing.T) {
	const last = 4000
	p := open(t, sessioncache.Config{})
	s, id := shape(t, 1), p.Intern("n")
	set := func(i int) {
		if err := p.Set(bg, s, "n", sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
			t.Error(err)
		}
	}
	set(0)
	g, _ := p.View(s)
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for seen := 0; seen < last; {
				for _, look := range []func() (sessioncache.Ref, bool){
					func() (sessioncache.Ref, bool) { return g.Lookup("n", 0) },
					func() (sessioncache.Ref, bool) { return g.LookupID(id) },
				} {
					r, ok := look()
					if !ok || r.Value().(int) < seen {
						t.Errorf("saw %v, %v after %d", r.Value(), ok, seen)
						return
					}
					seen = r.Value().(int)
				}
			}
		})
	}
	for i := 1; i <= last; i++ {
		set(i)
	}
	readers.Wait()
}

// K2: what a group keeps for ids grows with the names that it has, not with those that are
// interned; and each name is found by its id, wherever that is.
func TestSlotsGrowWithTheNamesOfAGroup(t *testing.T) {
	const interned = 10_000
	p := open(t, sessioncache.Config{})
	ids := make([]sessioncache.NameID, interned)
	for i := range ids {
		ids[i] = p.Intern(strconv.Itoa(i))
	}
	for g, c := range []struct{ from, to, step, slots int }{
		{4321, 4322, 1, 1},
		{4000, 4256, 1, 256},
		{8, 5000, 1000, 5000},
		{0, interned, interned - 1, 1}, // too far from each other
		{0, interned, 1, interned},
	} {
		names := (c.to - c.from + c.step - 1) / c.step
		for range 2 { // also what is set again
			for i := c.from; i < c.to; i += c.step {
				p.set(g+1, ids[i].String(), ids[i].String())
			}
		}
		v, _ := p.View(shape(t, g+1))
		for i, id := range ids {
			r, ok := v.LookupID(id)
			if there := i >= c.from && i < c.to && (i-c.from)%c.step == 0; ok != there || ok && r.Value() != id.String() {
				t.Fatalf("%d names: %v by the id of %v, %v", names, r.Value(), id, ok)
			}
		}
		if n := sessioncache.Slots(v); n > 2*c.slots {
			t.Errorf("%d names: %d slots, want at most %d", names, n, 2*c.slots)
		}
	}
}

// F6, K2: one group of very many interned names copies its slots in no turn, and each name is
// found by its id.
func TestSlotsOfManyNamesInShortTurns(t *testing.T) {
	const names = 50_000
	p := open(t, sessioncache.Config{})
	ids := make([]sessioncache.NameID, names)
	for i := range ids {
		ids[i] = p.Intern(strconv.Itoa(i))
	}
	s := shape(t, 1)
	for i, id := range ids {
		if err := p.Set(bg, s, id.String(), sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := longest(t, p); n > touched.Most/2 {
		t.Errorf("a turn touched %d things", n)
	}
	v, _ := p.View(s)
	for i, id := range ids {
		if r, ok := v.LookupID(id); !ok || r.Value() != i {
			t.Fatalf("%v by the id of %d, %v", r.Value(), i, ok)
		}
		if !sessioncache.HasSlot(v, id) {
			t.Fatalf("%d has no slot", i)
		}
	}
	if n := sessioncache.Slots(v); n > 2*names {
		t.Errorf("%d slots", n)
	}
	for _, i := range []int{7, names - 7} { // it has none, by whatever way, once it has gone
		p.hold(1).Remove(ids[i].String(), 0)
		if _, ok := v.LookupID(ids[i]); ok {
			t.Errorf("%d is found", i)
		}
	}
}
