package sessioncache

import (
	"time"

	"github.com/kiln-cache/kiln/internal/touched"
)

// ask looks again, for the call of a Get: the value is there by now, or a creator
// runs for it, or one is to be started.
func (s *state) ask(c *call) {
	if s.closed {
		s.refuse(c, errClosed)
		return
	}
	if !s.lives(c.group) { // the handle was closed meanwhile
		s.refuse(c, errGroup)
		return
	}
	if n := s.find(c); n != nil {
		c.hit = true
		s.hand(c, n)
		return
	}
	at, other := s.board(c)
	if other != nil {
		if err := another("get", c.name, other.options.Key, c.options.Key); err != nil {
			s.refuse(c, err)
			return
		}
		c.other, c.late, _ = s.desk.Join(at, c.linger-other.own)
		if c.group != other.group && len(other.shared) < mostShared {
			other.shared = append(other.shared, c)
		}
		s.awaited(other, true)
		s.effects.answer = append(s.effects.answer, c)
		return
	}
	s.desk.Begin(at, c, c.linger-c.own)
	s.begin(c)
	c.began, c.at = true, at
	c.group.flights++
	s.published.running.Add(1)
	s.effects.start = append(s.effects.start, c)
}

// left is told that the caller of an ask has gone before its end. The creator of
// a flight that nobody is left to wait for is cancelled, after its linger time (SPEC
// F4). A group that holds nothing else goes with the last caller, not when the creator
// ends: so that caller finds the counts exact (SPEC G9).
func (s *state) left(c *call, now time.Time) {
	f := c
	switch {
	case c.other != nil:
		f = c.other
	case !c.began:
		return
	}
	if alone, linger := s.desk.Leave(f, now); alone {
		f.rest = linger
		s.effects.cancel = append(s.effects.cancel, f)
	}
	if f.Callers() == 0 && !f.Over() {
		s.awaited(f, false)
		s.vacated(f.group)
	}
}

// expired ends the linger time of a flight: its creator is cancelled, unless somebody
// came meanwhile.
func (s *state) expired(f *call, now time.Time) {
	if s.desk.Expire(f, now) {
		f.rest = 0
		s.effects.cancel = append(s.effects.cancel, f)
	}
}

// awaited notes whether anybody waits for a flight.
func (s *state) awaited(f *call, is bool) {
	if f.forsaken != is {
		return
	}
	f.forsaken = !is
	if is {
		f.group.forsaken--
	} else {
		f.group.forsaken++
	}
}

// find looks in the group of the handle and, if that was evicted, in the one
// that is registered for its shape now.
func (s *state) find(c *call) *node {
	lane := uint64(c.options.Lane)
	if n := c.group.names.Hashed(c.hash, c.name, lane); n != nil {
		return n
	}
	if c.group.registered {
		return nil
	}
	g := s.published.next(c.group)
	if g == nil {
		return nil
	}
	return g.names.Hashed(c.hash, c.name, lane)
}

// hand pins a value for the callers that wait, and answers.
func (s *state) hand(c *call, n *node) {
	n.Value.cell.Pin() // its group, or its maker, holds a pin
	c.node = n
	s.effects.answer = append(s.effects.answer, c)
}

func (s *state) refuse(c *call, err error) {
	c.err = err
	s.effects.answer = append(s.effects.answer, c)
}

// created is the end of a creator. The value is kept unless its flight was
// cleared, its group has gone, its name was set meanwhile, or it can never fit. again
// says that it is to be called in another turn.
func (s *state) created(c *call, v Value, err error) outcome {
	g := c.group
	switch {
	case err == nil && !s.createdRoomy(c, v):
		return again
	case err == nil && s.createdWaits(c, v):
		return waits
	case err == nil && !s.createdRoomy(c, v): // of the pool: others do not give it
		return again
	}
	s.published.running.Add(-1)
	g.flights--
	s.awaited(c, true)
	may := s.may(c)
	first, _ := s.desk.End(c.at, c)
	s.end(c)
	if err == nil {
		err = v.validate("create", c.name, c.options)
	}
	switch {
	case !first: // closed meanwhile
		s.free(v)
	case err != nil:
		s.free(v)
		s.published.failures.Add(1)
		s.refuse(c, err)
	default:
		s.published.misses.Add(1)
		n := s.newNode(g, c.hash, c.name, c.options, v)
		kept := may && s.keep(c, n)
		n.Value.loose = !kept
		s.hand(c, n)
		for i := 0; may && i < len(c.shared) && s.touched.Left(); i++ {
			s.sharedBy(c.shared[i], n)
		}
		if !kept {
			n.Value.dead.Store(true)
			s.drop(n) // the callers that wait pin it themselves
		}
	}
	s.vacated(g)
	return over
}

// mostShared is how many other groups have a name, too, that was made in one.
const mostShared = touched.Most / 8

// sharedBy has the group of a call that waited for another group's flight have the value by
// its name, too, while it serves.
func (s *state) sharedBy(c *call, n *node) {
	s.touched.Add(1)
	g, e := c.group, &n.Value
	if g.registered || !g.grace.open() || !s.lives(g) || g.names.Hashed(c.hash, c.name, n.Sub) != nil {
		return
	}
	e.cell.Pin() // its maker holds a pin
	lent := s.newNode(g, c.hash, c.name, c.options, Value{Any: e.value, Bytes: e.bytes, Cost: e.cost, Key: e.key, Leased: true, Free: s.published.lent(n)})
	lent.Value.of = n
	s.put(g, lent)
}

// keep puts a created value where it may stay. It stays nowhere if its name was
// set while the creator ran, its group has gone, or it can never fit. A group that
// went since nobody waited for it is no obstacle: it comes back (SPEC F4).
func (s *state) keep(c *call, n *node) bool {
	g := c.group
	switch {
	case g.names.Hashed(c.hash, n.Key, n.Sub) != nil:
		return false
	case g.late():
		return s.keepLate(g, n)
	case !g.registered:
	case !s.fitsNow(n.Value.bytes):
		return false
	case g.filled.Load() || !s.over(0, n.Value.bytes) || s.worth(g):
		return s.write(g, n)
	default:
		s.evict(g, nothing)
	}
	if !g.grace.open() {
		return false
	}
	s.put(g, n) // for the handles that it serves
	return true
}

// keepLate puts a value into the group that is registered for the shape of gone, or gone
// is registered again.
func (s *state) keepLate(gone *group, n *node) bool {
	g := s.published.next(gone)
	back := gone.bytes + n.Value.bytes
	switch {
	case !s.published.capacity().Groups.Allows(1) || !s.fitsNow(n.Value.bytes):
		return false
	case g != nil:
		return g.names.Hashed(n.Hash(), n.Key, n.Sub) == nil && s.write(g, n)
	case !s.fitsNow(back) || !s.makeRoom(1, back, nil):
		return false
	}
	s.register(gone)
	return s.write(gone, n)
}

// worth asks whether a group that is registered and still empty is worth what
// has to go for it.
func (s *state) worth(g *group) bool {
	s.own = g
	defer func() { s.own = nil }()
	return s.policy.Worth(g.shape, s.standing)
}
