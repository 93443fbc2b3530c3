package sessioncache

import (
	"math"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/shapegroups"
)

// resize sets the capacity that is given. It changes nothing if that is negative or
// below the floor. Calls of surplus follow, until there is none.
func (s *state) resize(groups, bytes Limit) error {
	if s.closed {
		return errClosed
	}
	c := Capacity{Groups: groups.Or(s.wanted.Groups), Bytes: bytes.Or(s.wanted.Bytes)}
	n, err := policyGroups(c.Groups)
	if err == nil {
		err = c.Bytes.Validate()
	}
	if err == nil {
		err = s.floor.within(c)
	}
	if forgotten := s.policy.Forgotten(); err == nil {
		err = s.policy.SetGroups(n)
		s.touched.Add(s.policy.Forgotten() - forgotten)
	}
	if err != nil {
		return err
	}
	s.wanted = c
	if !c.Groups.Allows(1) || !c.Bytes.Allows(1) { // what is being made meanwhile does not stay (SPEC F7)
		s.desk.VoidAll()
		s.evicted = make(map[shapegroups.Shape]*group)
	}
	return s.requests.all.SetGroups(n)
}

// surplus evicts what the capacity as set has no room for, as far as a turn goes, and
// reports whether there is nothing left of it. Until then what is there is the capacity,
// so that nothing is added to it meanwhile. turns counts as in sifted.
func (s *state) surplus(turns *int) (done bool) {
	for !done && s.touched.Left() {
		why := s.shortOf(s.wanted, 0, 0)
		if why != nothing && !s.sift(turns) {
			break
		}
		done = why == nothing || !s.evictOne(why)
	}
	c := s.wanted
	if n := s.published.groups.Load(); !c.Groups.Allows(n) {
		c.Groups = limit.Of(n)
	}
	if n := s.published.bytes.Load(); !c.Bytes.Allows(n) {
		c.Bytes = limit.Of(n)
	}
	s.published.limits.Store(&c)
	return done
}

// makeRoom evicts until the groups and bytes given fit besides what there is, and
// reserves the bytes where they are shared. own is not chosen. It reports false if
// they do not fit with every other group gone.
func (s *state) makeRoom(groups, bytes int64, own *group) bool {
	return s.evictUntil(own, func() Cause {
		why := s.short(groups, bytes)
		if why == nothing && !s.share.reserve(bytes) {
			return ForPool
		}
		return why
	})
}

// evictUntil evicts by the policy, all but own, while there is a cause to, and reports
// whether there is none left.
func (s *state) evictUntil(own *group, cause func() Cause) bool {
	s.own = own
	defer func() { s.own = nil }()
	for why := cause(); why != nothing; why = cause() {
		if !s.evictOne(why) {
			return false
		}
	}
	return true
}

// evictOne evicts the group that the policy chooses, and reports whether one may go.
func (s *state) evictOne(why Cause) bool {
	victim := s.policy.Victim(s.standing, policy.Busy)
	if victim == nil {
		return false
	}
	if n := s.published.groups.Load(); s.published.capacity().Groups.Allows(n + 1) { // it is bytes that are short
		s.requests.all.Full(int(n))
	}
	s.evict(victim.Of.(*group), why)
	return true
}

// sifted sees to it that the group that has to go for the groups and bytes given is found
// at once: what is in use is passed over as far as a turn goes. It reports whether that is
// done, or has been tried often enough: users may come and go as fast. turns counts those
// of the one that needs the room that were not enough. Where no group has to go none is
// passed over: sieve would take their marks. So it is where others of a pool may make room:
// what the pool asks for is found by roomy.
func (s *state) sifted(turns *int, groups, bytes int64) bool {
	return s.closed || !s.fitsEver(bytes) || s.short(groups, bytes) == nothing || s.sift(turns)
}

// writeSifted is sifted for a Set, createdSifted for the end of a creator, and
// acquireSifted for a request.
func (s *state) writeSifted(m *writing) bool {
	g := s.groupOf(m)
	groups, bytes := m.needs(g)
	return g != nil && !g.registered || s.sifted(&m.sifts, groups, bytes)
}

func (s *state) createdSifted(turns *int, c *call, bytes int64) bool {
	groups := int64(0)
	switch late := c.group.late(); {
	case !c.group.registered && !late || !s.may(c):
		return true
	case late && s.published.next(c.group) == nil:
		groups = 1
	}
	return s.sifted(turns, groups, bytes)
}

func (s *state) acquireSifted(turns *int, use *asked) bool {
	return s.published.resident(use.compiled, use.placed) != nil || s.sifted(turns, 1, 0)
}

// sift is sifted where a group has to go.
func (s *state) sift(turns *int) bool {
	s.policy.Sift(s.standing, s.touched.Left)
	if *turns++; !s.touched.Left() && *turns < touched.Often {
		return false
	}
	*turns = 0
	return true
}

// short says of what the session's capacity has too little for the groups and bytes
// given, besides what there is.
func (s *state) short(groups, bytes int64) Cause {
	return s.shortOf(s.published.capacity(), groups, bytes)
}

func (s *state) shortOf(c Capacity, groups, bytes int64) Cause {
	switch {
	case !c.Groups.Allows(s.published.groups.Load() + groups):
		return ForGroups
	case !fits(c.Bytes, s.published.bytes.Load(), bytes):
		return ForBytes
	}
	return nothing
}

// fits reports whether more bytes may come to those that there are. Without a capacity
// the largest sum is one (SPEC Q5).
func fits(capacity Limit, bytes, more int64) bool {
	all := sums.Add(bytes, more)
	return all < math.MaxInt64 && capacity.Allows(all)
}

// over reports whether they are more than that, or than its pool has.
func (s *state) over(groups, bytes int64) bool {
	return s.short(groups, bytes) != nothing || !s.share.fits(bytes)
}

// standing is what the policy asks of the groups it looks at (SPEC S3).
func (s *state) standing(p *policy.Group) policy.Standing {
	s.touched.Add(1)
	g := p.Of.(*group)
	switch {
	case g == s.own:
		return policy.Fixed
	case g.free():
		return policy.Free
	}
	return policy.Busy
}

// evict takes a registered group out: for readers by one store, in the counts
// by one subtraction each, whatever its size. Its values are freed later.
func (s *state) evict(g *group, why Cause) {
	if s.told && why != nothing {
		s.effects.lost = append(s.effects.lost, lost{g.shape, why})
	}
	s.touched.Add(1)
	g.dead.Store(true)
	p := s.published
	if why != nothing && why != Cleared {
		p.evictions.Add(1)
	}
	p.shapes.Remove(g.at)
	p.objects.Add(-g.objects)
	p.bytes.Add(-g.bytes)
	p.groups.Add(-1)
	s.share.changed(-g.bytes)
	g.policy.Of = nil
	forgotten := s.policy.Forgotten()
	s.policy.Remove(g.policy)
	s.touched.Add(s.policy.Forgotten() - forgotten)
	g.policy, g.registered = nil, false
	s.serve(g)
	if before := s.evicted[g.shape]; why != Cleared && s.wanted.Groups.Allows(1) && s.wanted.Bytes.Allows(1) && (before == nil || g.grace.open()) {
		s.evicted[g.shape] = g
	}
	s.vacated(g)
}
