package sessioncache

import (
	"fmt"
	"strconv"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/touched"
)

// share is a session's part in the pool of all. A nil share has no bound.
//
// INVARIANT: what is published, and reserved besides, is what the member uses:
// bytes are reserved before they are published and released after.
type share struct {
	member   budget
	reserved int64 // by this turn, for what it is about to publish
	held     int   // writings and calls that wait for room
}

// budget is what the core asks of the pool, see pool.Member. It waits for nothing.
type budget interface {
	Fits(bytes int64) bool
	Reserve(bytes int64) bool
	Release(bytes int64)
	Most() int64
	Could(bytes int64) bool
	// claim asks other sessions for bytes and reports whether they make room: then
	// held, a *writing or a *call, comes again after a made.
	claim(held any, bytes int64) bool
}

// fits reports whether n bytes more could be published.
func (s *share) fits(bytes int64) bool {
	return s == nil || bytes <= s.reserved || s.member.Fits(bytes-s.reserved)
}

// reserve sees to it that n bytes are reserved; it reports false if it cannot.
func (s *share) reserve(bytes int64) bool {
	if s == nil || bytes <= s.reserved {
		return true
	}
	if !s.member.Reserve(bytes - s.reserved) {
		return false
	}
	s.reserved = bytes
	return true
}

// changed notes that n bytes more, or less, are published.
func (s *share) changed(bytes int64) {
	switch {
	case s == nil:
	case bytes > 0:
		s.reserved -= bytes
	case bytes < 0:
		s.member.Release(-bytes)
	}
}

// spare releases, at the end of a turn, what was reserved and not published.
func (s *share) spare() {
	if s != nil && s.reserved > 0 {
		s.member.Release(s.reserved)
		s.reserved = 0
	}
}

// made is told of the bytes that others made room for.
func (s *share) made(bytes int64) {
	s.held--
	s.reserved += bytes
}

// fitsEver reports whether a value of n bytes may be kept at all; fitsNow, whether
// the session's own groups could make room for it at this moment.
func (s *state) fitsEver(bytes int64) bool {
	return s.published.capacity().Bytes.Allows(bytes) && (s.share == nil || bytes <= s.share.member.Most())
}

// tooLarge says why a value of n bytes does not fit ever.
func (s *state) tooLarge(bytes int64) error {
	most, of := s.published.capacity().Bytes.String(), "the session's capacity"
	if s.share != nil && s.published.capacity().Bytes.Allows(bytes) {
		most, of = strconv.FormatInt(s.share.member.Most(), 10), "what the floors of other sessions leave of the pool"
	}
	return fmt.Errorf("%w: %d bytes, at most %s: %s", fault.ErrTooLarge, bytes, most, of)
}

func (s *state) fitsNow(bytes int64) bool {
	return s.published.capacity().Bytes.Allows(bytes) &&
		(s.share == nil || bytes <= s.share.reserved || s.share.member.Could(bytes-s.share.reserved))
}

// roomy evicts what the session's capacity, and where pool says so that of the pool, has no
// room for besides the groups and bytes given, as far as a turn goes, and reports whether
// there is room or that is of no use. own is not chosen; turns counts those that were not
// enough.
func (s *state) roomy(turns *int, own *group, groups, bytes int64, pool bool) bool {
	short := func() Cause {
		why := s.short(groups, bytes)
		if why == nothing && pool && !s.share.fits(bytes) {
			return ForPool
		}
		return why
	}
	within := func() Cause {
		why := short()
		if why != nothing && *turns < touched.Often {
			if s.policy.Sift(s.standing, s.touched.Left); !s.touched.Left() {
				return nothing
			}
		}
		return why
	}
	if !s.fitsNow(bytes) || !s.evictUntil(own, within) || short() == nothing {
		return true
	}
	*turns++
	return false
}

// awaits reports whether held has to wait until other sessions have made room
// for more groups and bytes. What the session's own capacity asks for goes first:
// no other session makes room for that.
func (s *state) awaits(held any, groups, bytes int64, own *group) bool {
	within := func() Cause { return s.short(groups, bytes) }
	if !s.fitsEver(bytes) || !s.evictUntil(own, within) || s.share.fits(bytes) || !s.share.member.claim(held, bytes) {
		return false
	}
	s.share.held++
	return true
}

// wouldKeep reports whether a created value would be kept, if there is room.
func (s *state) wouldKeep(c *call, v Value) bool {
	g := c.group
	switch {
	case v.Bytes <= 0 || !s.may(c):
		return false
	case !g.registered || g.names.Hashed(c.hash, c.name, uint64(c.options.Lane)) != nil:
		return false
	}
	return g.filled.Load() || !s.over(0, v.Bytes) || s.worth(g)
}

// createdRoomy is roomy for a created value that would be kept.
func (s *state) createdRoomy(c *call, v Value) bool {
	if c.group.late() {
		return s.lateRoomy(c, v)
	}
	return !s.over(0, v.Bytes) || !s.wouldKeep(c, v) || s.roomy(&c.turns, c.group, 0, v.Bytes, c.claimed)
}

// lateRoomy is roomy for one that keepLate would keep.
func (s *state) lateRoomy(c *call, v Value) bool {
	g, groups, bytes := s.published.next(c.group), int64(0), v.Bytes
	switch {
	case v.Bytes <= 0 || !s.may(c) || !s.published.capacity().Groups.Allows(1):
		return true
	case g == nil:
		groups, bytes = 1, bytes+c.group.bytes // which comes back
	case g.names.Hashed(c.hash, c.name, uint64(c.options.Lane)) != nil:
		return true
	}
	return s.roomy(&c.turns, g, groups, bytes, true)
}

// createdWaits is awaits for a created value that would be kept.
func (s *state) createdWaits(c *call, v Value) bool {
	if s.share == nil || c.claimed || !s.wouldKeep(c, v) {
		return false
	}
	c.claimed = true
	return s.awaits(c, 0, v.Bytes, c.group)
}

// writeWaits is awaits for Set. g is nil where the shape is new.
func (s *state) writeWaits(m *writing, g *group) bool {
	if s.share == nil || m.claimed {
		return false
	}
	m.claimed = true
	groups, bytes := m.needs(g)
	return bytes > 0 && s.awaits(m, groups, bytes, g)
}

// mostTooLarge is how many groups a search passes over that hold more than may go. If there
// are more, what it leaves above the floor is less than that part of the session.
const mostTooLarge = 256

// give evicts, by the policy, until n bytes are released or nothing above the floor
// kept can go. most is how groups may stand that go. more says that a turn was not
// enough, turns counts these.
func (s *state) give(turns *int, bytes int64, kept Floor, most policy.Standing, why Cause) (freed pressure.Freed, more bool) {
	p := s.published
	for freed.Bytes < bytes && p.bytes.Load() > kept.Bytes && p.groups.Load() > kept.Groups {
		g, over := s.spareGroup(p.bytes.Load()-kept.Bytes, most)
		if !over && *turns < touched.Often { // users may come and go as fast
			*turns++
			return freed, true
		}
		if *turns = 0; g == nil {
			break
		}
		freed.Add(pressure.Freed{Bytes: g.bytes, Leased: g.leased})
		s.evict(g, why)
	}
	return freed, false
}

// spareGroup is the group to go of those that hold bytes, but no more than that many, nil if
// none may. over is false if the turn ended before.
func (s *state) spareGroup(bytes int64, most policy.Standing) (g *group, over bool) {
	large := make(map[*group]struct{}) // a search may come by twice
	victim, over := s.policy.VictimOfBytes(func(at *policy.Group) policy.Standing {
		s.touched.Add(1)
		g := at.Of.(*group)
		switch {
		case g.bytes > bytes:
			large[g] = struct{}{}
			return policy.Fixed
		case g.bytes == 0:
			return policy.Fixed
		case g.free():
			return policy.Free
		}
		return policy.Busy
	}, most, func() bool { return len(large) < mostTooLarge && s.touched.Left() })
	if victim == nil {
		return nil, over || len(large) >= mostTooLarge
	}
	return victim.Of.(*group), true
}

// shrink gives bytes that the process has to do without.
func (s *state) shrink(turns *int, bytes int64, tier pressure.Tier) (freed pressure.Freed, more bool) {
	switch tier {
	case pressure.Spare:
		return s.give(turns, bytes, s.floor, policy.Free, ForMemory)
	case pressure.Floors:
		return s.give(turns, bytes, Floor{}, policy.Free, ForMemory)
	}
	return pressure.Freed{}, false
}

// offer lists those of the groups that are not in use.
func (s *state) offer(groups []*group) (items []pressure.Item) {
	for _, g := range groups {
		if s.touched.Add(1); g.registered && g.bytes > 0 && !g.busy() {
			items = append(items, pressure.Item{Bytes: g.bytes, Seconds: g.cost.Value().Seconds()})
		}
	}
	return items
}
