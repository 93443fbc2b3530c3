package pool

import "math/rand/v2"

// line is those that wait for bytes, and what there is for them: the oldest have theirs
// first. What comes is everybody's at once, whoever has all of it by that; each takes its
// part when it is asked after. It is a treap by age (R. Seidel, C. R. Aragon, Randomized
// Search Trees, Algorithmica 16, 1996): each call costs the logarithm of their number.
//
// INVARIANT: there is no more than they want.
type line struct {
	root *place
	has  uint64
}

// place is one of those in a line.
type place struct {
	up, older, newer *place
	luck             uint32 // no more than that of the place above
	want             uint64
	sum              uint64 // that of all below, too
}

func (p *place) all() uint64 {
	if p == nil {
		return 0
	}
	return p.sum
}

// count makes the sums of p, and of all above it, right.
func (p *place) count() {
	for ; p != nil; p = p.up {
		p.sum = p.want + p.older.all() + p.newer.all()
	}
}

// wanted is what all want that have not taken it.
func (l *line) wanted() uint64 { return l.root.all() }

// fill has up to n bytes more be there, and gives how many.
func (l *line) fill(n int64) int64 {
	n = int64(min(uint64(n), l.wanted()-l.has))
	l.has += uint64(n)
	return n
}

// join puts one that wants n bytes at the end.
func (l *line) join(n int64) *place {
	p := &place{luck: rand.Uint32(), want: uint64(n)}
	for p.older = l.root; p.older != nil && p.older.luck >= p.luck; p.older = p.older.newer {
		p.up = p.older
	}
	if p.older != nil {
		p.older.up = p
	}
	if p.up == nil {
		l.root = p
	} else {
		p.up.newer = p
	}
	p.count()
	return p
}

// take gives p what there is for it.
func (l *line) take(p *place) int64 {
	before := p.older.all()
	for at := p; at.up != nil; at = at.up {
		if at == at.up.newer {
			before += at.up.want + at.up.older.all()
		}
	}
	n := min(l.has-min(before, l.has), p.want)
	l.has -= n
	p.want -= n
	p.count()
	return int64(n)
}

// leave takes one out that has taken what there is for it.
func (l *line) leave(p *place) {
	below := merged(p.older, p.newer)
	if below != nil {
		below.up = p.up
	}
	switch {
	case p.up == nil:
		l.root = below
	case p.up.older == p:
		p.up.older = below
	default:
		p.up.newer = below
	}
	p.up.count()
}

// merged makes one tree of two, of which b is the newer.
func merged(a, b *place) *place {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.luck >= b.luck:
		a.newer = merged(a.newer, b)
		a.newer.up = a
		a.sum = a.want + a.older.all() + a.newer.all()
		return a
	default:
		b.older = merged(a, b.older)
		b.older.up = b
		b.sum = b.want + b.older.all() + b.newer.all()
		return b
	}
}
