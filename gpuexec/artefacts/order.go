package artefacts

import "cmp"

// order is an intrusive list of nodes by use. A node is in at most one order at
// a time. Owned by the actor.
type order struct {
	oldest, newest *node
	near           *node // where approach was last, or one older than that; nil = none
	flown          *node // whatever is older flies; nil = not known
}

// push makes n, which is in no order, the newest.
func (o *order) push(n *node) {
	n.Value.in, n.Value.older, n.Value.newer = o, o.newest, nil
	o.link(n)
}

// link has the neighbours of n know it.
func (o *order) link(n *node) {
	if older := n.Value.older; older == nil {
		o.oldest = n
	} else {
		older.Value.newer = n
	}
	if newer := n.Value.newer; newer == nil {
		o.newest = n
	} else {
		newer.Value.older = n
	}
}

// remove takes n out; it reports false if n is not in o.
func (o *order) remove(n *node) bool {
	e := &n.Value
	if e.in != o {
		return false
	}
	if o.near == n {
		o.near = e.older
	}
	if o.flown == n {
		o.flown = cmp.Or(e.newer, e.older)
	}
	if e.older == nil {
		o.oldest = e.newer
	} else {
		e.older.Value.newer = e.newer
	}
	if e.newer == nil {
		o.newest = e.older
	} else {
		e.newer.Value.older = e.older
	}
	e.in, e.older, e.newer = nil, nil, nil
	return true
}

// approach brings near to the youngest that was used before, or to the oldest, while left
// says so, and reports whether it is there. It goes from where it was: a run of places, in
// the order of their uses, costs no more than a walk over o.
func (o *order) approach(used uint64, left func() bool) bool {
	if o.near == nil {
		o.near = o.oldest
	}
	for at := o.near; at != nil && left(); at = o.near {
		older, newer := at.Value.older, at.Value.newer
		switch {
		case at.Value.used > used && older != nil:
			o.near = older
		case newer != nil && newer.Value.used < used:
			o.near = newer
		default:
			return true
		}
	}
	return o.near == nil
}

// insert puts n, which is in no order, where its last use belongs.
func (o *order) insert(n *node) {
	if o.newest == nil || o.newest.Value.used <= n.Value.used { // where most belong
		o.push(n)
	} else {
		o.approach(n.Value.used, always)
		older, newer := o.near, o.near.Value.newer
		if older.Value.used > n.Value.used {
			older, newer = nil, older
		}
		n.Value.in, n.Value.older, n.Value.newer = o, older, newer
		o.link(n)
		o.near = n
	}
	o.came(n)
}

// came notes an entry that was put in, or has landed, at its place.
func (o *order) came(n *node) {
	if o.flown != nil && n.Value.used < o.flown.Value.used {
		o.flown = n
	}
}

// first is the least recently used that may go, or nil. Flights that it had to pass are
// not looked at again, but for those that are older than what has landed since. over is
// false if left said before that there is no time.
func (o *order) first(may scope, left func() bool) (n *node, over bool) {
	if may == either {
		return o.oldest, true
	}
	for n := cmp.Or(o.flown, o.oldest); n != nil; n = n.Value.newer {
		if o.flown = n; n.Value.resident.Load() {
			return n, true
		}
		if !left() {
			return nil, false
		}
	}
	return nil, true
}

// first is that of o, in a turn that has time while left says so.
func (s *state) first(o *order, may scope, left func() bool) (n *node, over bool) {
	return o.first(may, func() bool { s.touched.Add(1); return left() })
}

// touch makes n the newest, if it is in o at all.
func (o *order) touch(n *node) {
	if o.newest != n && o.remove(n) {
		o.push(n)
	}
}

// each walks all entries, which may go meanwhile. It misses those of a tenant that is
// being forgotten.
func (s *state) each(yield func(*node) bool) {
	walk := func(o *order) bool {
		for n := o.oldest; n != nil; {
			next := n.Value.newer
			if !yield(n) {
				return false
			}
			n = next
		}
		return true
	}
	if !walk(&s.order) {
		return
	}
	for _, t := range s.tenants {
		if !walk(&t.order) {
			return
		}
	}
}

// enter puts n, which is in no order, among what t uses, or what nobody with a
// floor does, where its last use belongs.
func (s *state) enter(n *node, t *tenant) {
	s.gauges.entries.Add(1)
	n.Value.tenant = t
	if t == nil {
		s.order.insert(n)
		return
	}
	t.insert(n)
	t.charge(n.Value.kept())
	s.ranks.update(t)
}

// withdraw takes n out of its order, if it is in one.
func (s *state) withdraw(n *node) {
	if in := n.Value.in; in != nil {
		in.remove(n)
		s.gauges.entries.Add(-1)
		n.Value.tenant.charge(-n.Value.kept())
		s.ranks.update(n.Value.tenant)
		n.Value.tenant = nil
	}
}

// move has n be among what t uses, or nobody with a floor does, if left says that there is
// time to find its place there. Where it reports false, it goes on when it is called again.
func (s *state) move(n *node, t *tenant, left func() bool) bool {
	to := &s.order
	if t != nil {
		to = &t.order
	}
	step := func() bool { s.touched.Add(1); return left() }
	if !left() || to.newest != nil && to.newest.Value.used > n.Value.used && !to.approach(n.Value.used, step) {
		return false
	}
	s.touched.Add(1)
	s.withdraw(n)
	s.enter(n, t)
	return true
}
