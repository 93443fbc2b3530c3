package policy

import "math"

// The parts of a queue.
const (
	free  = iota // those not known to be busy
	aside        // those found busy, until the caller tells that they are Ready
	parts
)

// Of each part those that hold bytes are apart from those that hold none.
const (
	holding = 1 + iota // of these kinds the first: those that hold bytes
	kinds
)

// queue has residents in the order in which they go. Those that may not go are kept
// apart from those that may, so that a victim costs the logarithm of their number,
// however many are busy.
type queue [parts][kinds]part

// part has its groups by key: those of a class by their last use where the policy is lru
// or duel, else as they were registered; those that are announced, the one needed last
// first. With duel it has those of a class by use counts too.
type part struct {
	tree
	counts heap
}

func newQueue() (q queue) {
	for i := range parts * kinds {
		q[i/kinds][i%kinds].counts.kind = byResidence
	}
	return q
}

// at is where a member is, or belongs.
func (q *queue) at(g *Group) *part {
	i, j := free, 0
	if g.aside {
		i = aside
	}
	if g.empty {
		j = holding
	}
	return &q[i][j]
}

// after is the first group of some parts behind a place, nil if there is none.
func after(of []part, p place) (found *Group) {
	for i := range of {
		if g := of[i].after(p); g != nil && (found == nil || g.place.below(found.place)) {
			found = g
		}
	}
	return found
}

// fewest is the group of some parts with the lowest use count, nil if there is none.
func fewest(of []part) (found *Group) {
	for i := range of {
		if g := of[i].counts.lowest(); g != nil && (found == nil || g.rank().below(found.rank())) {
			found = g
		}
	}
	return found
}

// queueOf is the one that a resident is in, or belongs to.
func (p *Policy) queueOf(g *Group) *queue {
	if g.announced() {
		return &p.needed
	}
	return &g.class.queue
}

// add puts a resident where it is looked for, take takes it out. They come after and
// before each change of what says where that is.
func (p *Policy) add(g *Group) {
	key, byUse := uint64(0), p.kind == LRU || p.kind == Duel
	switch {
	case g.announced():
		key = math.MaxInt - uint64(g.needed)
	case byUse:
		key = g.last
	}
	at := p.queueOf(g).at(g)
	at.push(g, key)
	if p.kind == Duel && !g.announced() {
		at.counts.push(g)
	}
}

func (p *Policy) take(g *Group) {
	at := p.queueOf(g).at(g)
	at.remove(g)
	if at.counts.has(g) {
		at.counts.remove(g)
	}
}

// setAside has a resident be passed over, or no more.
func (p *Policy) setAside(g *Group, busy bool) {
	if g.aside != busy {
		p.take(g)
		g.aside = busy
		p.add(g)
	}
}

// use notes in its queue that a resident was asked for.
func (p *Policy) use(g *Group) {
	switch {
	case p.kind == Sieve:
		g.visited = true
	case g.announced() || p.kind == FIFO:
	default:
		at := p.queueOf(g).at(g)
		at.remove(g)
		at.push(g, g.last)
		at.counts.renew(g)
	}
}

// may gives the standing of a group and whether it may go: Fixed and true ends the search
// with it.
type may func(*Group) (Standing, bool)

// victim is the group to go of a part of a class, of the first kinds of it, nil if none
// may. Those found busy are set aside.
func (p *Policy) victim(c *class, from uint8, among int, may may) *Group {
	switch {
	case p.kind == Sieve:
		return p.walk(c, from, among, may)
	case p.kind == Duel && p.duel.countsChoose():
		return p.lowest(c, from, among, may)
	}
	return p.first(&c.queue, from, among, may)
}

// first is the first that may go.
func (p *Policy) first(q *queue, from uint8, among int, may may) *Group {
	of := q[from][:among]
	for g := after(of, place{}); g != nil; g = after(of, g.place) {
		s, ok := may(g)
		if ok {
			return g
		}
		if s == Busy {
			p.setAside(g, true)
		}
	}
	return nil
}

// lowest is the one with the lowest use count that may go.
func (p *Policy) lowest(c *class, from uint8, among int, may may) *Group {
	var passed []*Group
	of := c.queue[from][:among]
	found := fewest(of)
	for ; found != nil; found = fewest(of) {
		s, ok := may(found)
		if ok {
			break
		}
		if s == Busy && !found.aside {
			p.setAside(found, true)
			continue
		}
		passed = append(passed, found)
		c.queue.at(found).counts.remove(found)
	}
	for _, g := range passed {
		c.queue.at(g).counts.push(g)
	}
	return found
}

// walk is sieve's search: it passes over what was used again, once for each time it
// comes by. What may not go keeps its mark, and moves no hand. After one round every group
// that may go is unmarked: two rounds find one if there is one.
func (p *Policy) walk(c *class, from uint8, among int, may may) *Group {
	of, at := c.queue[from][:among], c.hand
	all := 0
	for i := range of {
		all += of[i].len
	}
	for range 2 * all {
		g := after(of, place{number: at})
		if g == nil {
			g = after(of, place{})
		}
		if g == nil {
			break
		}
		at = g.number
		s, ok := may(g)
		switch {
		case ok && s == Fixed:
			return g
		case ok && !g.visited:
			c.hand = at - 1 // it stands at g, and has passed what is in other parts
			return g
		case ok:
			p.copy(g)
			g.visited = false
			c.hand = at
		case s == Busy:
			p.setAside(g, true)
		}
	}
	return nil
}
