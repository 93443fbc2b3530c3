package artefacts

import (
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/limit"
)

func (o *order) keys() (keys []string) {
	for n := o.oldest; n != nil; n = n.Value.newer {
		keys = append(keys, n.Key)
	}
	return keys
}

// C3: the intrusive order is a list.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := table.New[entry](nil)
		var o, other order
		var list []string
		nodes := map[string]*node{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := strconv.Itoa(rapid.IntRange(0, 7).Draw(t, "key"))
			n := nodes[key]
			if n == nil {
				n = tab.NewNode(key, 0)
				nodes[key] = n
			}
			at := slices.Index(list, key)
			switch rapid.IntRange(0, 2).Draw(t, "verb") {
			case 0:
				if at < 0 {
					o.push(n)
					list = append(list, key)
				}
			case 1:
				if o.remove(n) != (at >= 0) || other.remove(n) {
					t.Fatalf("remove %s", key)
				}
				if at >= 0 {
					list = slices.Delete(list, at, at+1)
				}
			case 2:
				o.touch(n)
				if at >= 0 {
					list = append(slices.Delete(list, at, at+1), key)
				}
			}
			if got := o.keys(); !slices.Equal(got, list) || o.size != len(list) {
				t.Fatalf("order %v of %d, want %v", got, o.size, list)
			}
		}
	})
}

// C10: the set of users, whatever order owners come and go in.
func TestUsers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owners := rapid.SampledFrom([]string{"", "A", "B", "C", "D"})
		first := owners.Draw(t, "first")
		var p atomic.Pointer[users]
		p.Store(usersOf(first))
		set := []string{first}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			owner := owners.Draw(t, "owner")
			at := slices.Index(set, owner)
			if rapid.Bool().Draw(t, "credit") {
				credit(&p, owner)
				if at < 0 {
					set = append(set, owner)
				}
			} else {
				last := at >= 0 && len(set) == 1
				if discredit(&p, owner) != last {
					t.Fatalf("discredit %q of %v", owner, set)
				}
				if at >= 0 && !last {
					set = slices.Delete(set, at, at+1)
				}
			}
			for _, o := range []string{"", "A", "B", "C", "D"} {
				if p.Load().has(o) != slices.Contains(set, o) {
					t.Fatalf("%q in %v: %v", o, set, p.Load().has(o))
				}
			}
		}
	})
}

// begun enters a flight of the key in s.
func begun(s *state, key string) *node {
	n := s.table.NewNode(key, 0)
	n.Value.users.Store(nobody)
	s.begin(n)
	return n
}

// F9, C4: what a flight's place is worth, transition by transition.
func TestFlightTransitions(t *testing.T) {
	newCore := func(entries int64) *state {
		return newState(table.New[entry](nil), limit.Of(entries), limit.Of(100))
	}
	t.Run("evicted by another flight", func(t *testing.T) {
		s := newCore(1)
		a, b := begun(s, "a"), begun(s, "b")
		if got := s.order.keys(); !slices.Equal(got, []string{"b"}) || s.pending["a"] != a || len(s.dropped) != 0 {
			t.Errorf("order %v, pending %v, dropped %d", got, s.pending, len(s.dropped))
		}
		if s.land(a) || !s.land(b) || len(s.pending) != 0 || s.gauges.entries.Load() != 1 {
			t.Error("the evicted one must not be kept, the other must")
		}
	})
	t.Run("a resident makes place", func(t *testing.T) {
		s := newCore(1)
		a := begun(s, "a")
		s.land(a)
		begun(s, "b")
		if !slices.Equal(s.dropped, []*node{a}) || a.Value.resident.Load() || s.table.Lookup("a", 0) != nil {
			t.Error("the resident must be dropped and no longer found")
		}
	})
	t.Run("too large", func(t *testing.T) {
		s := newCore(2)
		s.land(begun(s, "a"))
		b := begun(s, "b")
		b.Value.bytes = 101
		if s.land(b) || len(s.dropped) != 0 || s.order.size != 1 {
			t.Error("nothing may go for what never fits")
		}
	})
	t.Run("forsaken", func(t *testing.T) {
		s := newCore(2)
		a := begun(s, "a")
		s.forsake(a)
		if s.gauges.entries.Load() != 0 || s.pending["a"] != a || s.land(a) {
			t.Error("a forsaken flight counts as nothing, is still the key's, and is not kept")
		}
	})
	t.Run("failed", func(t *testing.T) {
		s := newCore(2)
		s.fail(begun(s, "a"))
		if s.gauges.entries.Load() != 0 || len(s.pending) != 0 {
			t.Error("a failure leaves nothing")
		}
	})
	t.Run("closed", func(t *testing.T) {
		s := newCore(2)
		a, b := begun(s, "a"), begun(s, "b")
		s.land(a)
		s.close()
		if s.land(b) || s.order.size != 0 || !slices.Equal(s.dropped, []*node{a}) {
			t.Error("nothing is kept after the close")
		}
	})
}
