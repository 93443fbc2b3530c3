package sessioncache

import (
	"cmp"
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
)

// write puts a name that fits the byte capacity into a registered group, and
// reports whether it is kept: where nothing but this group is left to make room,
// the group goes and begins anew with this name alone. It is not kept where other
// sessions hold what the name would need.
func (s *state) write(g *group, n *node) bool {
	if !s.makeRoom(0, growth(g, n), g) {
		gone := g
		s.evict(g, s.crowded(g, n))
		if !s.makeRoom(1, n.Value.bytes, nil) {
			return false
		}
		g = s.published.newGroup(gone.shape, gone.at.Hash())
		s.register(g)
	}
	s.put(g, n)
	return true
}

// crowded is why a group goes for a name of its own.
func (s *state) crowded(g *group, n *node) Cause { return cmp.Or(s.short(0, growth(g, n)), ForPool) }

// growth is how many bytes more a group would hold with n in it.
func growth(g *group, n *node) int64 {
	if old := g.names.Hashed(n.Hash(), n.Key, n.Sub); old != nil {
		return n.Value.bytes - old.Value.bytes
	}
	return n.Value.bytes
}

// put enters a name, replacing the one of the same key. Readers never see it
// absent in between.
func (s *state) put(g *group, n *node) {
	n.Value.group = g
	id := s.published.ids.Hashed(n.Hash(), n.Key, 0)
	if id != nil {
		n.Key = id.Key // one string for all groups
	}
	old := g.names.Hashed(n.Hash(), n.Key, n.Sub)
	s.count(g, old, n)
	vacate(g, old)
	g.names.Put(n)
	if old != nil {
		s.retire(g, old)
	}
	if owner := n.Value.owner; owner != "" {
		if g.owners == nil {
			g.owners = make(map[string]*node)
		}
		if n.Value.older = g.owners[owner]; n.Value.older != nil {
			n.Value.older.Value.newer = n
		} else {
			s.credit(owner, g)
		}
		g.owners[owner] = n
	}
	if id != nil && n.Sub == 0 {
		s.place(g, n, id.Value.slot)
	}
	g.filled.Store(true)
	s.weigh(g)
}

// count takes the name that goes out of its group's sums and adds the one that
// comes; either may be nil. Each total changes once, so that a reader sees it as it
// was before or as it is after.
func (s *state) count(g *group, goes, comes *node) {
	var objects, bytes int64
	if goes != nil {
		objects--
		bytes -= goes.Value.bytes
		g.leased -= goes.Value.bytes - goes.Value.own()
		g.cost.Sub(goes.Value.cost)
	}
	if comes != nil {
		objects++
		bytes += comes.Value.bytes
		g.leased += comes.Value.bytes - comes.Value.own()
		g.cost.Add(comes.Value.cost)
	}
	g.objects += objects
	g.bytes += bytes
	if g.registered {
		s.published.objects.Add(objects)
		s.published.bytes.Add(bytes)
		s.share.changed(bytes)
	}
}

// weigh tells the policy what a group holds after names have come or gone.
func (s *state) weigh(g *group) {
	if g.registered {
		s.policy.Resize(g.policy, g.bytes, g.cost.Value().Seconds())
	}
}

// remove takes a name out of its group. weigh follows.
func (s *state) remove(g *group, n *node) {
	vacate(g, n)
	g.names.Remove(n)
	s.count(g, n, nil)
	s.retire(g, n)
}

// vacate empties the slot of a name that is about to leave the table. INVARIANT:
// a slot never outlives its name in the table, so that a look-up by id does not see
// a value that a look-up by name has found gone before.
func vacate(g *group, n *node) {
	if n != nil && n.Value.slot >= 0 {
		g.slots.Load().of(n.Value.slot).Store(nil)
	}
}

// retire ends a name that has left the table: its owner's list, and its group's
// pin as soon as no handle can have seen it.
func (s *state) retire(g *group, n *node) {
	e := &n.Value
	e.dead.Store(true)
	switch {
	case e.newer != nil:
		e.newer.Value.older = e.older
	case e.owner != "" && e.older != nil:
		g.owners[e.owner] = e.older
	case e.owner != "":
		delete(g.owners, e.owner)
		s.uncredit(e.owner, g)
	}
	if e.older != nil {
		e.older.Value.newer = e.newer
	}
	e.newer, e.older = nil, nil
	g.grace.retire(n)
	s.settle(g)
}

// manySlots is how many slots a group may have in a row for ids, whatever its names are; beyond
// it has eight for each name at most, and a name that is too far from the others none.
const manySlots = 1 << 13

// slotsInALine are made, and count, as one thing.
const slotsInALine = 8

// place stores a name where LookupID finds it.
func (s *state) place(g *group, n *node, id int) {
	at := g.slots.Load()
	if at == nil {
		at = &slots{first: id}
	}
	if at.of(id) == nil {
		if at = s.wider(at, id, g.names.Len()); at == nil {
			return
		}
		g.slots.Store(at)
	}
	n.Value.slot = id
	at.of(id).Store(n)
}

// wider gives slots that have one for id, too, nil if the names are too few for that.
func (s *state) wider(at *slots, id, names int) *slots {
	first, end := min(id, at.first), max(id+1, at.first+len(at.at))
	if end-first > manySlots {
		return s.farther(at, id, names)
	}
	if more := len(at.at) / 4; id < at.first { // more than one, so that all of them cost their number
		first = max(0, first-more)
	} else {
		end += more
	}
	s.touched.Add((end - first) / slotsInALine)
	grown := &slots{first: first, at: make([]atomic.Pointer[node], end-first), far: at.far, parts: at.parts}
	for i := range grown.at {
		if before := at.of(first + i); before != nil {
			grown.at[i].Store(before.Load())
		}
	}
	return grown
}

// farther is wider for an id far from the others.
func (s *state) farther(at *slots, id, names int) *slots {
	if (at.parts+1)*manyFarSlots > 8*names {
		return nil
	}
	part := id / manyFarSlots
	grown := &slots{first: at.first, at: at.at, parts: at.parts + 1}
	grown.far = make([]*farSlots, max(len(at.far), part+1))
	copy(grown.far, at.far)
	grown.far[part] = new(farSlots)
	s.touched.Add((len(grown.far) + manyFarSlots) / slotsInALine)
	return grown
}

func (s *state) hold(owner string) { s.holds[owner]++ }

// clearing is what a reset, or the end of the session, has still to remove.
type clearing struct {
	all     []*group            // whole groups
	serving int                 // and the names of so many of those that serve, the last first
	group   *group              // of either kind, the one that is being cleared
	names   table.Walk[entry]   // over its names
	owner   string              // or the names of one owner
	groups  map[*group]struct{} // in which it had some
	before  *clearing           // the reset of this owner that is under way, too
	over    bool
}

// making is for an owner of names that are being made.
type making struct {
	calls  int    // flights
	resets uint64 // of the owner, since the first of these began
}

// reset begins to remove the names of one owner, or for the empty owner everything: the
// groups of all, and the names of those that serve handles. Calls of clear follow. nil:
// there is nothing to do.
func (s *state) reset(owner string, all []*group) (*clearing, error) {
	if s.closed {
		return nil, errClosed
	}
	if owner == "" {
		s.desk.VoidAll()
		s.evicted = make(map[shapegroups.Shape]*group)
		return &clearing{all: all, serving: len(s.serving)}, nil
	}
	if n := s.holds[owner]; n > 0 {
		if s.holds[owner]--; n == 1 {
			delete(s.holds, owner)
		}
		return nil, nil
	}
	if m := s.makings[owner]; m != nil {
		m.resets++
	}
	c := &clearing{owner: owner, groups: s.owners[owner], before: s.clearing[owner]}
	delete(s.owners, owner) // names that are set from now on are credited anew
	s.clearing[owner] = c
	return c, nil
}

// clear removes as much as a turn may, and reports whether nothing is left.
func (s *state) clear(c *clearing) (done bool) {
	if c.over || c.before != nil && !s.clear(c.before) {
		return c.over
	}
	for g := range c.groups {
		s.touched.Add(1)
		for n := g.owners[c.owner]; n != nil && s.lives(g); n = g.owners[c.owner] {
			if !s.touched.Left() {
				return false
			}
			s.touched.Add(1)
			s.remove(g, n)
		}
		s.weigh(g)
		delete(c.groups, g)
		if !s.touched.Left() && len(c.groups) > 0 {
			return false
		}
	}
	for s.nextOf(c) {
		g := c.group
		if s.touched.Add(1); g.registered {
			s.evict(g, Cleared)
		}
		for over := false; !(over && !g.unsettled) && !s.closed && s.lives(g); {
			if !s.touched.Left() || over {
				return false
			}
			var looked int
			looked, over = c.names.Step(g.names, slotsAtOnce, func(n *node) { s.remove(g, n) })
			s.touched.Add(looked)
		}
		if c.group, c.names = nil, (table.Walk[entry]{}); !s.touched.Left() {
			return false
		}
	}
	if c.over, c.before = true, nil; s.clearing[c.owner] == c {
		delete(s.clearing, c.owner)
	}
	return true
}

// slotsAtOnce is how many slots of a group's names a step of clear looks at.
const slotsAtOnce = 64

// nextOf sees to it that c has a group to clear as a whole, if there is one more. What
// serves from now on is not among them, but one may be cleared twice.
func (s *state) nextOf(c *clearing) bool {
	if c.group != nil {
		return true
	}
	if last := len(c.all) - 1; last >= 0 {
		c.group, c.all = c.all[last], c.all[:last]
		return true
	}
	if c.serving = min(c.serving, len(s.serving)); c.serving == 0 || s.closed {
		return false
	}
	c.serving--
	c.group = s.serving[c.serving]
	return true
}

// may reports whether what a call makes may stay: not if its owner was reset meanwhile.
func (s *state) may(c *call) bool {
	return s.desk.May(c) && (c.making == nil || c.making.resets == c.resets)
}

// begin and end count the flights of owners.
func (s *state) begin(c *call) {
	owner := c.options.Owner
	if owner == "" {
		return
	}
	m := s.makings[owner]
	if m == nil {
		m = new(making)
		s.makings[owner] = m
	}
	m.calls++
	c.making, c.resets = m, m.resets
}

func (s *state) end(c *call) {
	if m := c.making; m != nil {
		if m.calls--; m.calls == 0 {
			delete(s.makings, c.options.Owner)
		}
	}
}

// credit notes that an owner has names in a group, uncredit that it has none any more,
// or that the group has gone.
func (s *state) credit(owner string, g *group) {
	if s.owners[owner] == nil {
		s.owners[owner] = make(map[*group]struct{})
	}
	s.owners[owner][g] = struct{}{}
}

func (s *state) uncredit(owner string, g *group) {
	if delete(s.owners[owner], g); len(s.owners[owner]) == 0 {
		delete(s.owners, owner)
	}
}

// intern gives the place of a name among the interned ones. Groups that hold it
// already learn its place by learn: until then it is found by its hash.
func (s *state) intern(name string, hash uint64) NameID {
	if n := s.published.ids.Hashed(hash, name, 0); n != nil {
		return n.Value
	}
	if s.closed {
		return NameID{name: name}
	}
	n := s.published.ids.HashedNode(hash, name, 0)
	n.Value = NameID{name: name, slot: s.interned, of: s.published}
	s.interned++
	s.published.ids.Put(n)
	return n.Value
}

// learn has groups that are registered know the place of an interned name, as far as a turn
// goes, and gives the others.
func (s *state) learn(id NameID, hash uint64, groups []*group) (rest []*group) {
	for ; len(groups) > 0 && s.touched.Left(); groups = groups[1:] {
		s.touched.Add(1)
		g := groups[0]
		if held := g.names.Hashed(hash, id.name, 0); held != nil && g.registered {
			s.place(g, held, id.slot)
		}
	}
	return groups
}
