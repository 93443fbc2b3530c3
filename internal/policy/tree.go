package policy

// tree has groups by place. It is a treap: a search tree by place, and above all below it
// the group whose number comes first when they are mixed. So it is about as deep as the
// logarithm of its length, in whatever order groups come and go.
type tree struct {
	root *Group
	last *Group // behind all others: what was used last
	len  int
}

// place is where a group is in a tree. Those with one key are as they were registered.
type place struct{ key, number uint64 }

func (p place) below(q place) bool { return p.key < q.key || p.key == q.key && p.number < q.number }

// branch is what a tree keeps in a group that is in it.
type branch struct {
	place
	mixed      uint64 // the number
	less, more *Group
	up         *Group // nil: it is the root
}

// push takes in g, which is in no tree. One that comes last is where it belongs after
// about two steps.
func (t *tree) push(g *Group, key uint64) {
	g.branch = branch{place: place{key, g.number}, mixed: mix(g.number)}
	t.len++
	if t.last == nil || t.last.place.below(g.place) {
		var below *Group
		for g.up = t.last; g.up != nil && g.up.mixed <= g.mixed; g.up = g.up.up {
			below = g.up
		}
		t.last, g.less = g, below.under(g)
		t.put(g.up, nil, g)
		return
	}
	at := &t.root
	for (*at).mixed > g.mixed {
		g.up, at = *at, (*at).towards(g)
		if *at == nil {
			break
		}
	}
	less, more := split(*at, g)
	g.less, g.more = less.under(g), more.under(g)
	*at = g
}

func (t *tree) remove(g *Group) {
	if t.last == g {
		t.last = g.up
		for last := g.less; last != nil; last = last.more {
			t.last = last
		}
	}
	t.put(g.up, g, join(g.less, g.more).under(g.up))
	g.less, g.more, g.up = nil, nil, nil
	t.len--
}

// put has what is above g, or above one that goes, lead to another.
func (t *tree) put(up, gone, g *Group) {
	switch {
	case up == nil:
		t.root = g
	case up.less == gone && gone != nil:
		up.less = g
	default:
		up.more = g
	}
}

// under notes what is above g.
func (g *Group) under(up *Group) *Group {
	if g != nil {
		g.up = up
	}
	return g
}

// after is the first group behind a place, nil if there is none.
func (t *tree) after(p place) (found *Group) {
	for g := t.root; g != nil; {
		if p.below(g.place) {
			found, g = g, g.less
		} else {
			g = g.more
		}
	}
	return found
}

func (b *branch) towards(g *Group) **Group {
	if g.place.below(b.place) {
		return &b.less
	}
	return &b.more
}

// split parts a tree into what is before g and what is behind it.
func split(t, g *Group) (less, more *Group) {
	switch {
	case t == nil:
		return nil, nil
	case g.place.below(t.place):
		less, more = split(t.less, g)
		t.less = more.under(t)
		return less, t
	}
	less, more = split(t.more, g)
	t.more = less.under(t)
	return t, more
}

// join makes one tree of two, all of the first being before all of the second.
func join(less, more *Group) *Group {
	switch {
	case less == nil:
		return more
	case more == nil:
		return less
	case less.mixed > more.mixed:
		less.more = join(less.more, more).under(less)
		return less
	}
	more.less = join(less, more.less).under(more)
	return more
}

// mix gives each number another, with no order left (splitmix64, by Vigna).
func mix(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
