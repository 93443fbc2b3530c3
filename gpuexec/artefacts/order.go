package artefacts

import "cmp"

// order is an intrusive list of nodes by use. A node is in at most one order at
// a time. Owned by the actor.
type order struct {
	oldest, newest *node
	flown          *node // whatever is older flies; nil = not known
	lanes          [mostLanes]ends
}

// Above the list there are lanes. Each has one in sixteen of the nodes that the one below
// has, so that the way to any place costs the logarithm of their number.
const mostLanes = 5

// ends are those of a lane, or the neighbours of a node in it.
type ends struct{ older, newer *node }

// tower is what a node has that is in so many lanes: most have none.
type tower struct {
	height int
	beside [mostLanes]ends
}

// raise gives a node its tower, if it is to have one, when it comes into its first order.
func (e *entry) raise() {
	if e.raised {
		return
	}
	e.raised = true
	dice, height := mix(e.used), 0
	for ; height < mostLanes && dice>>60 == 15; dice <<= 4 {
		height++
	}
	if height > 0 {
		e.tower = &tower{height: height}
	}
}

// mix is SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number
// generators, OOPSLA 2014): its bits look like chance in whatever rhythm the numbers come.
func mix(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// push makes n, which is in no order, the newest.
func (o *order) push(n *node) {
	n.Value.raise()
	o.link(n, o.newest)
	if t := n.Value.tower; t != nil {
		for l := range t.height {
			o.linkLane(l, n, o.lanes[l].newer)
		}
	}
}

// link puts n after an older node, nil is none.
func (o *order) link(n, older *node) {
	e := &n.Value
	e.in, e.older, e.newer = o, older, o.oldest
	if older == nil {
		o.oldest = n
	} else {
		e.newer, older.Value.newer = older.Value.newer, n
	}
	if e.newer == nil {
		o.newest = n
	} else {
		e.newer.Value.older = n
	}
}

// linkLane is link in a lane.
func (o *order) linkLane(l int, n, older *node) {
	at := &n.Value.tower.beside[l]
	at.older, at.newer = older, o.lanes[l].older
	if older == nil {
		o.lanes[l].older = n
	} else {
		before := &older.Value.tower.beside[l]
		at.newer, before.newer = before.newer, n
	}
	if at.newer == nil {
		o.lanes[l].newer = n
	} else {
		at.newer.Value.tower.beside[l].older = n
	}
}

// unlinkLane takes n out of a lane.
func (o *order) unlinkLane(l int, n *node) {
	at := &n.Value.tower.beside[l]
	if at.older == nil {
		o.lanes[l].older = at.newer
	} else {
		at.older.Value.tower.beside[l].newer = at.newer
	}
	if at.newer == nil {
		o.lanes[l].newer = at.older
	} else {
		at.newer.Value.tower.beside[l].older = at.older
	}
	*at = ends{}
}

// remove takes n out; it reports false if n is not in o.
func (o *order) remove(n *node) bool {
	e := &n.Value
	if e.in != o {
		return false
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
	if e.tower != nil {
		for l := range e.tower.height {
			o.unlinkLane(l, n)
		}
	}
	return true
}

// insert puts n, which is in no order, where its last use belongs. It says how many nodes it
// passed on the way.
func (o *order) insert(n *node) (passed int) {
	if o.newest == nil || o.newest.Value.used <= n.Value.used { // where most belong
		o.push(n)
		o.came(n)
		return 0
	}
	n.Value.raise()
	var at *node // the youngest so far that is no younger than n
	for l := mostLanes - 1; l >= 0; l-- {
		next := o.lanes[l].older
		if at != nil {
			next = at.Value.tower.beside[l].newer
		}
		for ; next != nil && next.Value.used <= n.Value.used; next = next.Value.tower.beside[l].newer {
			at = next
			passed++
		}
		if t := n.Value.tower; t != nil && l < t.height {
			o.linkLane(l, n, at)
		}
	}
	next := o.oldest
	if at != nil {
		next = at.Value.newer
	}
	for ; next.Value.used <= n.Value.used; next = next.Value.newer { // it ends before the newest
		at = next
		passed++
	}
	o.link(n, at)
	o.came(n)
	return passed
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

// entry is any of the entries, flights among them, or nil: however many tenants have none.
func (s *state) entry() *node {
	if s.order.oldest != nil {
		return s.order.oldest
	}
	for _, of := range []*byAge{&s.ranks.above[either], &s.ranks.held[either]} {
		if of.Len() > 0 {
			return of.First().oldest
		}
	}
	return nil
}

// enter puts n, which is in no order, among what t uses, or what nobody with a
// floor does, where its last use belongs.
func (s *state) enter(n *node, t *tenant) {
	s.gauges.entries.Add(1)
	n.Value.tenant = t
	if t == nil {
		s.touched.Add(s.order.insert(n))
		return
	}
	s.touched.Add(t.insert(n))
	t.charge(n, 1)
	s.ranks.update(t)
}

// withdraw takes n out of its order, if it is in one.
func (s *state) withdraw(n *node) {
	if in := n.Value.in; in != nil {
		in.remove(n)
		s.gauges.entries.Add(-1)
		n.Value.tenant.charge(n, -1)
		s.ranks.update(n.Value.tenant)
		n.Value.tenant = nil
	}
}

// move has n be among what t uses, or nobody with a floor does, if left says that there is
// time to find its place there.
func (s *state) move(n *node, t *tenant, left func() bool) bool {
	if !left() {
		return false
	}
	s.touched.Add(1)
	s.withdraw(n)
	s.enter(n, t)
	return true
}
