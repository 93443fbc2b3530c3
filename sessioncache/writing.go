package sessioncache

import (
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

// writing is a Set, by a shape or into the group of a handle.
type writing struct {
	of      any    // what the shell has of it
	use     *asked // nil if group is there
	group   *group
	name    string
	hash    uint64 // of name, as tables place it
	options Options
	value   Value
	claimed bool // it has waited for others to make room
	turns   int  // in which it made room, see roomy
	sifts   int  // see sifted
}

// shape is the compiled one.
func (m *writing) shape() shapegroups.Shape {
	if m.group != nil {
		return m.group.shape
	}
	return m.use.compiled
}

// outcome is what a set has come to.
type outcome uint8

const (
	over  outcome = iota // it was done
	waits                // other sessions make room: it is called again then
	again                // it is to be called in another turn
)

// set is Set: it creates the group on the way and overwrites.
func (s *state) set(m *writing) (outcome, error) {
	switch {
	case s.closed:
		s.free(m.value)
		return over, errClosed
	case !s.fitsEver(m.value.Bytes):
		s.free(m.value)
		return over, s.tooLarge(m.value.Bytes)
	}
	g := s.groupOf(m)
	if m.group == nil && !m.claimed && m.turns == 0 {
		s.published.remember(m.use)
		s.request(m.use, g == nil)
	}
	s.void(g, m.shape(), m.name, m.options.Lane)
	switch {
	case m.group != nil && !g.registered:
		return over, s.storeHeld(m)
	case g == nil && !s.backRoomy(&m.turns, m.use.compiled):
		return again, nil
	case m.group == nil && !s.published.capacity().Groups.Allows(1): // disabled: nothing is kept
		s.free(m.value)
	case !s.writeRoomy(m, g):
		return again, nil
	case s.writeWaits(m, g):
		return waits, nil
	case !s.writeRoomy(m, g): // of the pool: others do not give it
		return again, nil
	case m.group != nil:
		return over, s.storeHeld(m)
	default:
		s.store(m, g)
	}
	return over, nil
}

// groupOf is the group that m is for, nil where the shape is new.
func (s *state) groupOf(m *writing) *group {
	if m.group != nil {
		return m.group
	}
	return s.published.resident(m.use.compiled, m.use.placed)
}

// needs is what m needs besides what there is. g is nil where the shape is new.
func (m *writing) needs(g *group) (groups, bytes int64) {
	if g == nil {
		return 1, m.value.Bytes
	}
	if old := g.names.Hashed(m.hash, m.name, uint64(m.options.Lane)); old != nil {
		return 0, m.value.Bytes - old.Value.bytes
	}
	return 0, m.value.Bytes
}

func (s *state) writeRoomy(m *writing, g *group) bool {
	groups, bytes := m.needs(g)
	return bytes <= 0 || !s.fitsNow(m.value.Bytes) || s.roomy(&m.turns, g, groups, bytes, m.claimed)
}

// void has what is being made for a name not be kept in g, nor in the group that is
// registered for its shape, or may be again: it is older than what is done to the name now.
// g is nil where the shape has none.
func (s *state) void(g *group, shape shapegroups.Shape, name string, lane Lane) {
	if s.desk.Len() == 0 {
		return
	}
	for _, own := range []*group{nil, g} {
		c, found := s.desk.Find(place{shape, name, lane, own})
		if !found {
			continue
		}
		if f := c.group; f == g || f.registered || f.vacant || s.evicted[shape] == f {
			s.desk.Void(c)
		}
		c.shared = slices.DeleteFunc(c.shared, func(c *call) bool { return c.group == g })
	}
}

// storeHeld writes a value into the group that a handle sees, which is evicted
// for it where it does not fit.
func (s *state) storeHeld(m *writing) error {
	g := m.group
	n := s.newNode(g, m.hash, m.name, m.options, m.value)
	if g.registered && !(s.fitsNow(m.value.Bytes) && s.makeRoom(0, growth(g, n), g)) {
		s.evict(g, s.crowded(g, n))
	}
	if !s.lives(g) { // the handle was closed meanwhile
		s.drop(n)
		return errGroup
	}
	s.put(g, n)
	return nil
}

// lives reports whether names may still be put into a group and taken out.
func (s *state) lives(g *group) bool {
	return g.registered || g.serves > 0
}

// candidate is what a take of a name of a handle's group would give, or nil.
func (p *published) candidate(g *group, name string, hash uint64, lane Lane) *node {
	if n := g.names.Hashed(hash, name, uint64(lane)); n != nil {
		return n
	}
	if g = p.next(g); g != nil {
		return g.names.Hashed(hash, name, uint64(lane))
	}
	return nil
}

// take takes a name out of a handle's group and out of the one registered for its
// shape. It pins the value that the handle would have found, unless that was taken
// already by another group that has it.
func (s *state) take(g *group, name string, hash uint64, lane Lane) (taken *node, err error) {
	if s.closed {
		return nil, errClosed
	}
	s.void(g, g.shape, name, lane)
	for _, g := range []*group{g, s.published.next(g)} {
		if g == nil || !s.lives(g) {
			continue
		}
		n := g.names.Hashed(hash, name, uint64(lane))
		if n == nil {
			continue
		}
		if n := whole(n); taken == nil && !n.Value.taken {
			n.Value.cell.Pin() // its group, or the name that has its value, holds a pin
			taken = n
			s.effects.memory -= n.Value.own()
			n.Value.taken = true
		}
		s.remove(g, n)
		s.weigh(g)
	}
	if taken == nil {
		return nil, fault.ErrNotFound
	}
	return taken, nil
}

// store writes the value of Set, unless other sessions hold what it would need;
// what had the name is gone in any case. g is nil where the shape is new.
func (s *state) store(m *writing, g *group) {
	kept := s.fitsNow(m.value.Bytes)
	if g == nil && kept {
		g = s.back(m.use.compiled)
	}
	if g == nil && kept {
		if kept = s.makeRoom(1, m.value.Bytes, nil); kept {
			g = s.published.newGroup(m.use.compiled, m.use.placed)
			s.register(g)
		}
	}
	if kept {
		n := s.newNode(g, m.hash, m.name, m.options, m.value)
		if !s.write(g, n) {
			s.drop(n)
		}
		return
	}
	if g != nil {
		if old := g.names.Hashed(m.hash, m.name, uint64(m.options.Lane)); old != nil {
			s.remove(g, old)
			s.weigh(g)
		}
	}
	s.free(m.value)
}

// free throws away a value that got no node.
func (s *state) free(v Value) {
	if v.Free != nil {
		s.effects.trash = append(s.effects.trash, trash{value: v.Free})
	}
}
