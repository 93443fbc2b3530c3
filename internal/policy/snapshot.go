package policy

import "github.com/kiln-cache/kiln/shapegroups"

// Snapshot is the state of a policy at the moment at which it began. It is copied in
// steps, and the policy goes on meanwhile: what is about to change is copied before.
// When Copy has come to the end it belongs to whoever has it.
type Snapshot struct {
	of     *Policy
	next   *Group // to be copied, and those older than it
	groups []record

	config                          Config
	requests, clock                 uint64
	weight, recencyMiss, countsMiss float64
	era                             uint32
	hands                           map[int]uint64 // of sieve, by class
}

// record is what is saved of a group.
type record struct {
	shape               shapegroups.Shape
	parts               byte
	resident            bool
	cost, class         int // exponents
	last, since         uint64
	aged, number, place uint64 // in age, in its class, and among those saved
	count               count
}

// Snapshot begins one. left is asked before each step. If it says that there is no time,
// or while another snapshot is being taken, the answer is nil, and the caller tries
// again: what no longer fits is not saved, but forgotten first.
func (p *Policy) Snapshot(left func() bool) *Snapshot {
	if p.snapshot != nil {
		return nil
	}
	p.arrange()
	for d := p.duel; d != nil && (d.large() || p.forgetful()); {
		if !left() {
			return nil
		}
		d.shrink(few)
		p.trim(few)
	}
	s := &Snapshot{of: p, next: p.known.newest, config: p.Config(), requests: p.requests, clock: p.clock, hands: make(map[int]uint64)}
	if d := p.duel; d != nil {
		d.heed()
		s.weight, s.recencyMiss, s.countsMiss, s.era = d.weight, d.recencyMiss, d.countsMiss, d.era
	}
	for _, c := range p.classes {
		left()
		s.hands[c.exponent] = c.hand
	}
	p.snapshot = s
	p.snapshots++
	return s
}

// Copy goes on while left, which is asked before each group, says that there is time. It
// reports whether that was all.
func (s *Snapshot) Copy(left func() bool) (done bool) {
	for s.next != nil {
		if !left() {
			return false
		}
		g := s.next
		s.next = g.links[inKnown].older
		s.of.copy(g)
	}
	s.of.snapshot, s.of = nil, nil
	return true
}

// copy has the snapshot that is being taken have g as it is, unless it has g, or began
// before g was known. It comes before each change of what is saved of g.
func (p *Policy) copy(g *Group) {
	if p.snapshot != nil && g.copied != p.snapshots {
		p.snapshot.add(g)
	}
}

func (s *Snapshot) add(g *Group) {
	g.copied = s.of.snapshots
	r := record{
		shape: g.shape, parts: s.of.parts(g), resident: g.resident, cost: g.cost,
		last: g.last, since: g.since, aged: g.aged, number: g.number, count: g.count,
	}
	if g.resident {
		r.class = g.class.exponent
	}
	s.groups = append(s.groups, r)
}

// parts are the flags that a group is saved with.
func (p *Policy) parts(g *Group) (flags byte) {
	if g.visited {
		flags |= savedVisited
	}
	if p.duel != nil && p.duel.recency.has(g) {
		flags |= savedRecent
	}
	if p.duel != nil && p.duel.counts.has(g) {
		flags |= savedCounted
	}
	return flags
}
