package artefacts

import (
	"math"

	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/touched"
)

// scope says which entries may go.
type scope uint8

const (
	either   scope = iota
	complete       // not those that fly
	scopes
)

// victim is the entry that goes next for a newcomer of tenant t, which may be nil:
// the least recently used of those that no floor holds, else of t's own, else nil. What
// tenants have come to use since it was entered goes over to them first, while left says
// that there is time: over is false if that ends before.
func (s *state) victim(t *tenant, may scope, left func() bool) (n *node, over bool) {
	n, over = s.first(&s.order, may, left)
	for ; n != nil; n, over = s.first(&s.order, may, left) {
		other := s.tenantOf(n)
		if other == nil {
			break
		}
		if !s.move(n, other, left) {
			return nil, false
		}
	}
	for above := &s.ranks.above[may]; over && above.Len() > 0; {
		o := above.First()
		head := o.head(may)
		if n != nil && n.Value.used < head.Value.used {
			break
		}
		var spare *node
		if spare, over = s.oldestSpare(o, may, left); spare == head {
			n = spare
			break
		}
	}
	if !over {
		return nil, false
	}
	if n == nil && t != nil {
		return s.firstOf(t, may, left)
	}
	return n, true
}

// always is for what takes the time that it needs.
func always() bool { return true }

// oldestSpare is t's least recently used entry if no floor holds it, else nil. An entry
// that another tenant's floor would hold goes over to that tenant, while left says so.
func (s *state) oldestSpare(t *tenant, may scope, left func() bool) (n *node, over bool) {
	for n, over = s.firstOf(t, may, left); n != nil && !t.holds(n); n, over = s.firstOf(t, may, left) {
		other := s.tenantOf(n)
		if other == nil || other == t || other.bytes >= other.floor {
			return n, true
		}
		if !s.move(n, other, left) {
			return nil, false
		}
	}
	return nil, over
}

// surplus is the entry that goes next when the capacity itself was lowered: floors
// give way then, too. over is as for victim.
func (s *state) surplus(may scope, left func() bool) (n *node, over bool) {
	if n, over = s.victim(nil, may, left); n != nil || !over {
		return n, over
	}
	for held := &s.ranks.held[may]; held.Len() > 0; { // none is above
		t := held.First()
		s.touched.Add(1)
		if n, over = s.firstOf(t, may, left); !over || held.First() == t {
			return n, over
		}
	}
	return nil, true
}

// shrinkBytes evicts the least recently used artefacts until the bytes of n, less
// room, fit, and reports whether they do. It passes over flights, which hold no bytes yet,
// and evicts nothing where the floors of others leave too little. over is false if left
// said that the time is up.
func (s *state) shrinkBytes(n *node, room int64, left func() bool) (fits, over bool) {
	t := n.Value.tenant
	if n.Value.in == nil {
		t = s.tenantOf(n)
	}
	for !s.fits(n, room) {
		if most, counted := s.bytes.Value(); counted && n.Value.bytes > most-s.ranks.heldBeside(t) {
			return false, true
		}
		if !left() {
			return false, false
		}
		victim, over := s.victim(t, complete, left)
		if victim == nil {
			return false, over
		}
		s.evict(victim, ForBytes)
	}
	return true, true
}

// fits reports whether the bytes of n, less room, fit beside what is resident.
func (s *state) fits(n *node, room int64) bool {
	all := sums.Add(s.gauges.bytes.Load()-room, n.Value.bytes)
	return all < math.MaxInt64 && s.bytes.Allows(all) // the largest sum is a bound, too (SPEC Q5)
}

// patience says whether there is time left for m in this turn.
func (s *state) patience(m *making) func() bool {
	return func() bool { return s.touched.Left() || m.turns >= touched.Often }
}

// askable sees to it that what goes for what m asks for is found at once, and landable
// that it has gone for what m brings, as far as a turn goes. They report whether that is
// done; if not, m is to come again.
func (s *state) askable(m *making) (over bool) {
	k := m.call
	n := s.apart[k.Key]
	switch {
	case n != nil && n.Value.cell.Pins() > 0 && (k.kind == normal || k.kind == peek):
		over = s.roomy(n, k, s.patience(m)) && s.placeable(s.patience(m))
	case len(s.tenants) > 0 && k.kind == normal:
		over = s.placeable(s.patience(m))
	default:
		return true
	}
	m.turns++
	return over
}

func (s *state) landable(m *making) (over bool) {
	left := s.patience(m)
	over = m.call.kind != normal || !s.flights.May(m) || s.roomy(m.n, m.call, left) && (m.n.Value.in != nil || s.placeable(left))
	m.turns++
	return over
}

// placeable sees to it that what goes for one entry more is found at once, if one has to. It
// reports whether that is done.
func (s *state) placeable(left func() bool) (over bool) {
	if len(s.tenants) == 0 || s.entries.Allows(s.size()+1) {
		return true
	}
	_, over = s.victim(nil, either, left)
	return over
}

// roomy is shrinkBytes for n, which k asked for, if it may be kept. It reports whether
// nothing is left to do.
func (s *state) roomy(n *node, k *call, left func() bool) (over bool) {
	if s.fits(n, 0) || s.disabled() || s.other(k.Whole, k.placed.whole) != nil {
		return true
	}
	part, t, room := s.takePart(k)
	_, over = s.shrinkBytes(n, room, left)
	if part != nil {
		s.enter(part, t)
	}
	return over
}
