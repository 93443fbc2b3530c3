package policy

// tree has groups by place. It is a treap: a search tree by place, and above all below it
// the group whose number comes first when they are mixed. So it is about as deep as the
// logarithm of its length, in whatever order groups come and go.
type tree struct {
	root *Group
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
}

// push takes in g, which is in no tree.
func (t *tree) push(g *Group, key uint64) {
	g.branch = branch{place: place{key, g.number}, mixed: mix(g.number)}
	at := &t.root
	for *at != nil && (*at).mixed > g.mixed {
		at = (*at).towards(g)
	}
	g.less, g.more = split(*at, g)
	*at = g
	t.len++
}

func (t *tree) remove(g *Group) {
	at := &t.root
	for *at != g {
		at = (*at).towards(g)
	}
	*at = join(g.less, g.more)
	g.less, g.more = nil, nil
	t.len--
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
		less, t.less = split(t.less, g)
		return less, t
	}
	t.more, more = split(t.more, g)
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
		less.more = join(less.more, more)
		return less
	}
	more.less = join(less, more.less)
	return more
}

// mix gives each number another, with no order left (splitmix64, by Vigna).
func mix(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
