package policy

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Policy is the eviction state of one session. Make it with New or Load. It is
// owned by one goroutine.
type Policy struct {
	kind   Kind
	keep   Keep
	limit  int // capacity in groups as set
	size   int // capacity that periods and directories follow, at least 1
	groups map[shapegroups.Shape]*Group

	known     list
	residents int
	ages      list // residents, the one to drop a class first being the oldest
	classes   []*class
	used      []*Group // residents used since the lists were put in order; see arrange
	due       uint64   // no group drops a class before this many requests
	forgotten int      // see Forgotten

	requests uint64 // seen so far
	clock    uint64 // steps at each request and each registration
	joined   uint64 // groups that came into a class

	announced []shapegroups.Shape
	needed    queue                     // residents that are announced
	ahead     map[shapegroups.Shape]int // first place of each announced shape

	snapshot  *Snapshot // being taken
	snapshots uint64

	// Only duel knows shapes that are not resident: memory has those that
	// neither are resident nor in a shadow directory.
	duel   *duel
	memory heap
}

// New makes the policy of an empty session. A bad config is ErrInvalid.
func New(c Config) (*Policy, error) {
	c, err := c.Validate()
	if err != nil {
		return nil, err
	}
	p := &Policy{
		kind:   c.Kind,
		keep:   c.Keep,
		limit:  c.Groups,
		groups: make(map[shapegroups.Shape]*Group),
		known:  list{kind: inKnown},
		ages:   list{kind: inAge},
		ahead:  make(map[shapegroups.Shape]int),
		needed: newQueue(),
		memory: heap{kind: byResidence},
	}
	if p.kind == Duel {
		p.duel = newDuel(p.keep == Worth, p.copy, func(g *Group) { p.forgotten++; p.settle(g) })
	}
	p.resize(few)
	return p, nil
}

// Config is the configuration in force.
func (p *Policy) Config() Config { return Config{Kind: p.kind, Groups: p.limit, Keep: p.keep} }

// Len is the number of resident groups.
func (p *Policy) Len() int { return p.residents }

// Remembered is the number of shapes known, resident ones included.
func (p *Policy) Remembered() int { return len(p.groups) }

// Residents walks the resident groups. The policy must not change meanwhile.
func (p *Policy) Residents() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		p.arrange()
		for g := p.ages.oldest; g != nil; g = g.links[inAge].newer {
			if !yield(g) {
				return
			}
		}
	}
}

// Resident is the resident group of shape, nil if there is none. It notes
// nothing.
func (p *Policy) Resident(shape shapegroups.Shape) *Group {
	if g := p.groups[shape]; g != nil && g.resident {
		return g
	}
	return nil
}

// Request notes one acquisition of shape and gives its group, nil if it is not
// resident. A nil answer is followed by Admit, or by nothing if the shape is
// not kept.
func (p *Policy) Request(shape shapegroups.Shape) *Group {
	g := p.groups[shape]
	if g == nil {
		if p.duel == nil {
			p.requests++
			p.clock++
			p.drop()
			return nil
		}
		g = p.know(shape)
	}
	p.note(g)
	if g.resident {
		return g
	}
	return nil
}

// Use notes one acquisition of the group behind a handle. If the group has gone
// since the handle was given it is a request for its shape.
func (p *Policy) Use(g *Group) {
	if !g.known {
		p.Request(g.shape)
		return
	}
	p.note(g)
}

// note counts a request for g, which is known.
func (p *Policy) note(g *Group) {
	p.copy(g)
	p.requests++
	p.clock++
	g.last = p.clock
	if g.resident && g.class.exponent == g.cost && (p.duel == nil || p.duel.holdsBoth(g)) {
		p.noteUse(g)
		p.drop()
		return
	}
	p.arrange()
	if !g.resident && p.memory.has(g) {
		p.memory.remove(g) // back in the directory by recency in a moment
	}
	if p.duel != nil {
		p.duel.request(g)
		p.duel.counts.renew(g)
		p.trim(few)
	}
	if g.resident {
		p.freshen(g)
	}
	p.drop()
}

// noteUse is note for a resident that no list loses or gains by it. Most requests
// are such: they leave the lists' order to arrange.
func (p *Policy) noteUse(g *Group) {
	if p.kind == FIFO {
		return // heeds no use
	}
	g.since = p.requests
	if !g.used {
		if len(p.used) >= unarranged {
			p.arrange()
		}
		g.used = true
		p.used = append(p.used, g)
	}
	if p.duel != nil {
		p.duel.count(g)
	}
}

// arrange puts what was used into the order of its last use in every list. It
// comes before whatever reads or changes a list.
//
// INVARIANT: of two groups that were not used since, the order stands; one that
// was used is newer than every one that was not.
func (p *Policy) arrange() {
	slices.SortFunc(p.used, func(a, b *Group) int { return cmp.Compare(a.last, b.last) })
	for _, g := range p.used {
		g.used = false
		p.ages.renew(g)
		p.use(g)
		if p.duel != nil {
			p.duel.recency.renew(g)
			p.duel.counts.renew(g)
		}
	}
	clear(p.used)
	p.used = p.used[:0]
}

// Admit registers shape as resident. bytes and seconds are what it holds and
// what it took to compile, 0 while unknown; Resize corrects them. It counts as
// no request. A shape that is resident already is resized only.
func (p *Policy) Admit(shape shapegroups.Shape, bytes int64, seconds float64) *Group {
	p.arrange()
	g := p.groups[shape]
	if g == nil {
		g = p.know(shape)
	}
	if g.resident {
		p.Resize(g, bytes, seconds)
		return g
	}
	p.copy(g)
	if p.memory.has(g) {
		p.memory.remove(g)
	}
	if g.last == 0 { // never asked for: registering it is its use
		p.clock++
		g.last = p.clock
	}
	g.resident = true
	g.since = p.requests
	g.cost, g.empty = p.classOf(bytes, seconds), bytes <= 0
	p.residents++
	p.ages.push(g)
	p.join(g, g.cost)
	p.resize(few)
	return g
}

// Resize tells what a resident group holds and cost to compile by now.
func (p *Policy) Resize(g *Group, bytes int64, seconds float64) {
	if !g.resident {
		return
	}
	if empty := bytes <= 0; empty != g.empty {
		p.arrange()
		p.take(g)
		g.empty = empty
		p.add(g)
	}
	if cost := p.classOf(bytes, seconds); cost != g.cost {
		p.arrange()
		p.copy(g)
		g.cost = cost
		p.leave(g)
		p.join(g, cost)
	}
}

// Remove tells that a resident group is gone: evicted, reset or closed. Its use
// count is remembered where the policy does so.
func (p *Policy) Remove(g *Group) {
	if !g.resident {
		return
	}
	p.arrange()
	p.copy(g)
	p.leave(g)
	p.ages.remove(g)
	g.resident, g.aside = false, false
	p.residents--
	p.settle(g)
	p.resize(few)
}

// Forgotten is how many keys have left a directory or the memory of counts so far for want
// of room: what a lower capacity or a group that goes costs besides.
func (p *Policy) Forgotten() int { return p.forgotten }

// SetGroups changes the capacity. Evicting the surplus is up to the caller, by
// Victim and Remove. Negative is ErrInvalid and changes nothing.
func (p *Policy) SetGroups(groups int) error {
	if groups < 0 {
		return fault.Invalidf("policy: set groups", "%d groups: want 0 or more, or unlimited", groups)
	}
	p.arrange()
	p.limit = groups
	p.resize(atOnce)
	return nil
}

// know makes shape known.
func (p *Policy) know(shape shapegroups.Shape) *Group {
	g := &Group{shape: shape, known: true, copied: p.snapshots}
	if at, ok := p.ahead[shape]; ok {
		g.needed = at + 1
	}
	p.groups[shape] = g
	p.known.push(g)
	return g
}

func (p *Policy) forget(g *Group) {
	p.copy(g)
	if p.snapshot != nil && p.snapshot.next == g {
		p.snapshot.next = g.links[inKnown].older
	}
	p.known.remove(g)
	g.known = false
	g.last, g.count = 0, count{}
	delete(p.groups, g.shape)
}

// settle puts a group that is no longer resident, or no longer in a shadow
// directory, where it belongs now.
func (p *Policy) settle(g *Group) {
	switch {
	case g.resident:
	case p.duel == nil:
		p.forget(g)
	case !p.duel.holds(g) && !p.memory.has(g):
		p.memory.push(g)
	}
}

// trim forgets the lowest counts beyond the number remembered (SPEC S1): after a large
// capacity was lowered, only most of them, and the others in the calls to come.
func (p *Policy) trim(most int) {
	for n := 0; n < most && p.forgetful(); n++ {
		g := p.memory.lowest()
		p.forgotten++
		p.memory.remove(g)
		p.forget(g)
	}
}

// forgetful reports whether more is remembered than may be.
func (p *Policy) forgetful() bool { return len(p.groups) > remembered*p.size && p.memory.len() > 0 }

// resize makes periods and directories follow the capacity. Up to most keys leave each
// directory and the memory of counts now, the others in the calls to come.
func (p *Policy) resize(most int) {
	const largest = min(1<<40, math.MaxInt>>8) // keeps products of it exact
	size := p.limit
	if size == Unlimited {
		size = max(p.residents, leastGroups)
	}
	p.size = min(max(size, 1), largest)
	p.due = 0
	if p.duel != nil {
		p.duel.resize(p.size, most)
		p.trim(most)
	}
}
