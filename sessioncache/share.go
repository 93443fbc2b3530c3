package sessioncache

import (
	"context"
	"fmt"
	"slices"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups/policy"
)

// share is a session's part in the pool of all. A nil share has no bound.
//
// INVARIANT: what is published, and reserved besides, is what the member uses:
// bytes are reserved before they are published and released after.
type share struct {
	member   *pool.Member
	reserved int64 // by this turn, for what it is about to publish
	held     int   // messages that wait for room

	// claim asks other sessions for so many bytes and reports whether they make
	// room: then the message comes again, as a roomMade.
	claim func(held message, bytes int64) bool
}

// fits reports whether so many bytes could be published.
func (s *share) fits(bytes int64) bool {
	return s == nil || bytes <= s.reserved || s.member.Fits(bytes-s.reserved)
}

// reserve sees to it that so many bytes are reserved.
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

// changed notes that so many bytes more, or less, are published.
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

// made takes what others made room for.
func (s *share) made(c *pool.Claim) {
	s.held--
	if c.Accept() {
		s.reserved += c.Bytes()
	}
}

// fitsEver reports whether a value of so many bytes may be kept at all, fitsNow
// whether the session's own groups could make room for it at this moment.
func (s *state) fitsEver(bytes int64) bool {
	return s.published.capacity().Bytes.Allows(bytes) && (s.share == nil || bytes <= s.share.member.Most())
}

func (s *state) fitsNow(bytes int64) bool {
	return s.published.capacity().Bytes.Allows(bytes) &&
		(s.share == nil || bytes <= s.share.reserved || s.share.member.Could(bytes-s.share.reserved))
}

// awaits reports whether held has to wait until other sessions have made room
// for so many groups and bytes more. What the session's own capacity asks for
// goes first: nobody else makes room for that.
func (s *state) awaits(held message, groups, bytes int64, own *group) bool {
	within := func() bool { return !s.above(groups, bytes) }
	return s.fitsEver(bytes) && s.evictUntil(own, within) && !s.share.fits(bytes) && s.share.claim(held, bytes)
}

// createdWaits is awaits for a created value that would be kept.
func (s *state) createdWaits(a *ask, v Value) bool {
	g := a.group
	switch {
	case s.share == nil || a.claimed || a.answered || v.Bytes <= 0:
		return false
	case a.void || !g.registered || g.names.Lookup(a.name, uint64(a.options.Lane)) != nil:
		return false
	case !g.filled.Load() && s.over(0, v.Bytes) && !s.worth(g):
		return false
	}
	a.claimed = true
	return s.awaits(a, 0, v.Bytes, g)
}

// writeWaits is awaits for Set. g is nil where the shape is new.
func (s *state) writeWaits(m *write, g *group) bool {
	if s.share == nil || m.claimed {
		return false
	}
	m.claimed = true
	groups, bytes := int64(1), m.value.Bytes
	if g != nil {
		groups = 0
		if old := g.names.Lookup(m.name, uint64(m.options.Lane)); old != nil {
			bytes -= old.Value.bytes
		}
	}
	return bytes > 0 && s.awaits(m, groups, bytes, g)
}

// give evicts, by the policy, until so many bytes are released, and takes nothing
// below the floor kept. busy is how groups in use stand.
func (s *state) give(bytes int64, kept Floor, busy policy.Standing) (freed pressure.Freed) {
	p := s.published
	standing := func(at *policy.Group) policy.Standing {
		g := p.resident(at.Shape())
		switch {
		case g.bytes == 0 || p.bytes.Load()-g.bytes < kept.Bytes || p.groups.Load() <= kept.Groups:
			return policy.Fixed
		case g.busy():
			return busy
		}
		return policy.Free
	}
	for freed.Bytes < bytes {
		victim := s.policy.Victim(standing)
		if victim == nil {
			break
		}
		g := p.resident(victim.Shape())
		freed.Bytes += g.bytes
		freed.Leased += g.leased
		s.evict(g)
		s.published.evictions.Add(1)
	}
	return freed
}

// shrink gives bytes that the process has to do without.
func (s *state) shrink(bytes int64, tier pressure.Tier) pressure.Freed {
	switch tier {
	case pressure.Spare:
		return s.give(bytes, s.floor, policy.Fixed)
	case pressure.Floors:
		return s.give(bytes, Floor{}, policy.Fixed)
	}
	return pressure.Freed{}
}

// offer lists the groups that are not in use. Of these the cheapest stand above
// the floor, as far as it goes.
func (s *state) offer() []pressure.Item {
	var items []pressure.Item
	s.published.shapes.All(func(at *table.Node[group]) bool {
		if g := &at.Value; g.bytes > 0 && !g.busy() {
			items = append(items, pressure.Item{Bytes: g.bytes, Seconds: g.cost.Seconds()})
		}
		return true
	})
	slices.SortFunc(items, pressure.Cheaper)
	bytes, groups := s.published.bytes.Load(), s.published.groups.Load()
	for i := range items {
		bytes -= items[i].Bytes
		groups--
		if bytes < s.floor.Bytes || groups < s.floor.Groups {
			items[i].Tier = pressure.Floors
		}
	}
	return items
}

// join takes the session into a pool. Where others use what is to be its floor
// it waits for them to give that up, for a turn of each.
func (s *Session) join(p *Pool, floor int64) error {
	if p == nil {
		return nil
	}
	given := make(chan struct{})
	member, claim, err := p.shared.Join(floor, func(g pool.Gift) {
		if !s.send(give{g}) {
			g.Answered()
		}
	}, func(*pool.Claim) { close(given) })
	if err != nil {
		return err
	}
	if claim != nil {
		<-given
		if !claim.Accept() {
			member.Leave()
			return fmt.Errorf("%w: the floor's %d bytes are in use, and those who use them gave up too few: end leases, or try again", ErrTooLarge, floor)
		}
	}
	s.state.share = &share{member: member, claim: s.claim}
	return nil
}

// claim has other sessions make room for what held is to publish. The session
// does not end before that was answered.
func (s *Session) claim(held message, bytes int64) bool {
	c := s.state.share.member.Claim(bytes, func(c *pool.Claim) { s.send(roomMade{held: held, claim: c}) })
	if c == nil {
		return false
	}
	s.state.share.held++
	return true
}

// offer lists what the session could do without, for the memory limit of the
// process. It waits for one turn; a closed session offers nothing.
func (s *Session) offer(ctx context.Context) (items []pressure.Item) {
	_ = s.look(ctx, "offer", func(st *state) { items = st.offer() })
	return items
}

// shrink gives up groups that are not in use, by the policy, until at least n bytes
// are freed or nothing of that tier is left.
func (s *Session) shrink(ctx context.Context, n int64, tier pressure.Tier) pressure.Freed {
	freed, _ := actors.Ask(ctx, s.actor, func(r actors.Reply[pressure.Freed]) message { return shrink{r, n, tier} })
	return freed
}
