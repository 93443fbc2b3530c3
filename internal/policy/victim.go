package policy

import (
	"slices"

	"github.com/kiln-cache/kiln/shapegroups"
)

// Standing says whether a group can go.
type Standing uint8

// A group is Free, Busy (being computed, leased or written: it goes only if no
// free one is left, SPEC S3), or Fixed (it may not go at all).
const (
	Free Standing = iota
	Busy
	Fixed
)

// Announce tells which shapes the waiting requests need, soonest first, in place
// of what was announced before (SPEC S2). They are shapes as compiled, after
// bucketing.
func (p *Policy) Announce(shapes []shapegroups.Shape) {
	for _, s := range p.announced {
		p.need(s, 0)
	}
	clear(p.ahead)
	p.announced = slices.Clone(shapes)
	for i, s := range shapes {
		if _, sooner := p.ahead[s]; !sooner {
			p.ahead[s] = i
			p.need(s, i+1)
		}
	}
}

// need notes the place of a shape in the announcement, plus 1.
func (p *Policy) need(s shapegroups.Shape, place int) {
	switch g := p.groups[s]; {
	case g == nil:
	case g.resident:
		p.take(g)
		g.needed = place
		p.add(g)
	default:
		g.needed = place
	}
}

// Ready tells that a group for which standing said Busy may be free by now. It must be
// told of each: until then only what is not free is looked for there.
func (p *Policy) Ready(g *Group) {
	if g.resident {
		p.setAside(g, false)
	}
}

// Victim is the group to evict now, nil if none may go; the caller removes it.
// standing is asked for the groups looked at; nil means that all are free. Free
// groups go before busy ones, which go only up to most; in both the unannounced before
// the announced, of those the one needed last; unannounced ones in the lowest cost
// class first, and within a class by the policy.
func (p *Policy) Victim(standing func(*Group) Standing, most Standing) *Group {
	if standing == nil {
		standing = func(*Group) Standing { return Free }
	}
	g, _ := p.find(standing, most, kinds, func() bool { return true })
	return g
}

// VictimOfBytes is Victim among those that hold bytes, while left says that there is time:
// over is false if it ended before. Those that are busy are not looked at again.
func (p *Policy) VictimOfBytes(standing func(*Group) Standing, most Standing, left func() bool) (g *Group, over bool) {
	return p.find(standing, most, holding, left)
}

func (p *Policy) find(standing func(*Group) Standing, most Standing, among int, left func() bool) (g *Group, over bool) {
	p.arrange()
	over = true
	for s := Free; s <= most && s < Fixed; s++ {
		may := func(g *Group) (Standing, bool) {
			if over = left(); !over {
				return Fixed, true
			}
			stands := standing(g)
			return stands, stands <= s // what is aside may be free by now
		}
		g := p.unannounced(s, among, may)
		if g == nil {
			g = p.neededLast(s, among, may)
		}
		switch {
		case !over:
			return nil, false
		case g != nil:
			return g, true
		}
	}
	return nil, true
}

// Sift sets aside busy groups that a Victim, or Worth, would find before one that may go,
// while left says that there is time; also one that follows a request, by which the other
// directory of a duel may come to choose.
func (p *Policy) Sift(standing func(*Group) Standing, left func() bool) {
	p.arrange()
	every := p.duel != nil && p.duel.worth // countsLess asks all classes
	over := false
	may := func(g *Group) (Standing, bool) {
		if over = !left(); over {
			return Fixed, true // the walk ends at it, used again or not
		}
		s := standing(g)
		return s, s == Free
	}
	for _, c := range p.classes {
		var found *Group
		if p.kind == Duel {
			p.lowest(c, free, kinds, may)
			found = p.first(&c.queue, free, kinds, may)
		} else {
			found = p.victim(c, free, kinds, may)
		}
		if over || found != nil && !every {
			return
		}
	}
}

// partOf is the part that has those of a standing.
func partOf(s Standing) uint8 {
	if s == Busy {
		return aside
	}
	return free
}

func (p *Policy) unannounced(s Standing, among int, may may) *Group {
	for _, c := range p.classes {
		if g := p.victim(c, partOf(s), among, may); g != nil {
			return g
		}
	}
	return nil
}

// neededLast is the announced resident needed last of those that may go.
func (p *Policy) neededLast(s Standing, among int, may may) *Group {
	return p.first(&p.needed, partOf(s), among, may)
}

// Worth says whether shape, just requested and not resident, should be
// registered although a group has to go for it. It is always true without
// keep=worth (SPEC S7). False: compute it, use it, do not call Admit.
func (p *Policy) Worth(shape shapegroups.Shape, standing func(*Group) Standing) bool {
	if p.duel == nil || p.keep != Worth {
		return true
	}
	if standing == nil {
		standing = func(*Group) Standing { return Free }
	}
	p.arrange()
	isFree := func(g *Group) (Standing, bool) {
		s := standing(g)
		return s, s == Free
	}
	need, announced := p.ahead[shape]
	if p.unannounced(Free, kinds, isFree) != nil {
		return announced || !p.duel.countsChoose() || !p.countsLess(shape, isFree)
	}
	if last := p.neededLast(Free, kinds, isFree); last != nil {
		return announced && need+1 < last.needed
	}
	return true
}

// countsLess says that shape's use count is below that of every group that may
// go; there is one.
func (p *Policy) countsLess(shape shapegroups.Shape, may may) bool {
	var uses count
	if g := p.groups[shape]; g != nil {
		uses = g.count
	}
	for _, c := range p.classes {
		if low := p.lowest(c, free, kinds, may); low != nil && !uses.below(low.count) {
			return false
		}
	}
	return true
}
