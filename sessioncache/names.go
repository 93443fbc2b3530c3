package sessioncache

import (
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
)

// ask looks again, for the call of a Get: the value is there by now, or a creator
// runs for it, or one is to be started.
func (s *state) ask(c *call) {
	if s.closed {
		s.refuse(c, fault.ErrClosed)
		return
	}
	if n := s.find(c); n != nil {
		c.hit = true
		s.hand(c, n)
		return
	}
	at := c.place()
	if other, found := s.desk.Find(at); found {
		if err := another("get", c.name, other.options.Key, c.options.Key); err != nil {
			s.refuse(c, err)
			return
		}
		c.other, c.late, _ = s.desk.Join(at, 0)
		s.awaited(other, true)
		s.effects.answer = append(s.effects.answer, c)
		return
	}
	s.desk.Begin(at, c, 0)
	c.began = true
	c.group.flights++
	s.published.running.Add(1)
	s.effects.start = append(s.effects.start, c)
}

// left is told that the caller of an ask has gone before its end. The creator of
// a flight that nobody is left to wait for is cancelled (SPEC F4). A group that
// holds nothing else goes with the last caller, not when the creator ends: so that
// caller finds the counts exact (SPEC G9).
func (s *state) left(c *call) {
	f := c
	switch {
	case c.other != nil:
		f = c.other
	case !c.began:
		return
	}
	if alone, _ := s.desk.Leave(f, time.Time{}); alone {
		s.effects.cancel = append(s.effects.cancel, f)
	}
	if f.Callers() == 0 && !f.Over() {
		s.awaited(f, false)
		s.vacated(f.group)
	}
}

// awaited notes whether anybody waits for a flight.
func (s *state) awaited(f *call, is bool) {
	if f.forsaken != is {
		return
	}
	f.forsaken = !is
	if is {
		f.group.forsaken--
	} else {
		f.group.forsaken++
	}
}

// find looks in the group of the handle and, if that was evicted, in the one
// that is registered for its shape now.
func (s *state) find(c *call) *node {
	lane := uint64(c.options.Lane)
	if n := c.group.names.Hashed(c.hash, c.name, lane); n != nil {
		return n
	}
	if c.group.registered {
		return nil
	}
	g := s.published.resident(c.group.shape)
	if g == nil {
		return nil
	}
	return g.names.Hashed(c.hash, c.name, lane)
}

// hand pins a value for the callers that wait, and answers.
func (s *state) hand(c *call, n *node) {
	n.Value.cell.Pin() // its group, or its maker, holds a pin
	c.node = n
	s.effects.answer = append(s.effects.answer, c)
}

func (s *state) refuse(c *call, err error) {
	c.err = err
	s.effects.answer = append(s.effects.answer, c)
}

// created is the end of a creator. The value is kept unless its flight was
// cleared, its group has gone, its name was set meanwhile, or it can never fit.
func (s *state) created(c *call, v Value, err error) {
	g := c.group
	if err == nil && s.createdWaits(c, v) {
		return
	}
	s.published.running.Add(-1)
	g.flights--
	s.awaited(c, true)
	first, may := s.desk.End(c.place(), c)
	if err == nil {
		err = v.validate("create", c.name, c.options)
	}
	switch {
	case !first: // closed meanwhile
		s.free(v)
	case err != nil:
		s.free(v)
		s.published.failures.Add(1)
		s.refuse(c, err)
	default:
		s.published.misses.Add(1)
		n := s.newNode(g, c.hash, c.name, c.options, v)
		kept := may && s.keep(c, n)
		n.Value.loose = !kept
		s.hand(c, n)
		if !kept {
			n.Value.dead.Store(true)
			s.drop(n) // the callers that wait pin it themselves
		}
	}
	s.vacated(g)
}

// keep puts a created value where it may stay. It stays nowhere if its name was
// set while the creator ran, its group has gone, or it can never fit. A group that
// went since nobody waited for it is no obstacle: another takes its place (SPEC F4).
func (s *state) keep(c *call, n *node) bool {
	g := c.group
	switch {
	case g.names.Hashed(c.hash, n.Key, n.Sub) != nil:
		return false
	case !g.registered && g.vacant && !g.grace.open():
		return s.keepLate(g.shape, n)
	case !g.registered:
	case !s.fitsNow(n.Value.bytes):
		return false
	case g.filled.Load() || !s.over(0, n.Value.bytes) || s.worth(g):
		return s.write(g, n)
	default:
		s.evict(g)
	}
	if !g.grace.open() {
		return false
	}
	s.put(g, n) // for the handles that it serves
	return true
}

// keepLate puts a value into the group that is registered for its shape, or into a
// new one.
func (s *state) keepLate(shape shapegroups.Shape, n *node) bool {
	g := s.published.resident(shape)
	switch {
	case !s.published.capacity().Groups.Allows(1) || !s.fitsNow(n.Value.bytes):
		return false
	case g != nil:
		return g.names.Hashed(n.Hash(), n.Key, n.Sub) == nil && s.write(g, n)
	case !s.makeRoom(1, n.Value.bytes, nil):
		return false
	}
	g = s.published.newGroup(shape)
	s.register(g)
	return s.write(g, n)
}

// worth asks whether a group that is registered and still empty is worth what
// has to go for it.
func (s *state) worth(g *group) bool {
	s.own = g
	defer func() { s.own = nil }()
	return s.policy.Worth(g.shape, s.standing)
}

// write puts a name that fits the byte capacity into a registered group, and
// reports whether it is kept: where nothing but this group is left to make room,
// the group goes and begins anew with this name alone. It is not kept where other
// sessions hold what the name would need.
func (s *state) write(g *group, n *node) bool {
	if !s.makeRoom(0, growth(g, n), g) {
		shape := g.shape
		s.evict(g)
		if !s.makeRoom(1, n.Value.bytes, nil) {
			return false
		}
		g = s.published.newGroup(shape)
		s.register(g)
	}
	s.put(g, n)
	return true
}

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
		}
		g.owners[owner] = n
	}
	if id != nil && n.Sub == 0 {
		s.place(g, n, id.Value.slot)
	}
	g.filled.Store(true)
	if g.registered {
		s.policy.Resize(g.policy, g.bytes, g.cost.Seconds())
	}
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
		g.cost -= goes.Value.cost
	}
	if comes != nil {
		objects++
		bytes += comes.Value.bytes
		g.leased += comes.Value.bytes - comes.Value.own()
		g.cost += comes.Value.cost
	}
	g.objects += objects
	g.bytes += bytes
	if g.registered {
		s.published.objects.Add(objects)
		s.published.bytes.Add(bytes)
		s.share.changed(bytes)
	}
}

// remove takes a name out of its group.
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
		g.slots.Load().at[n.Value.slot].Store(nil)
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
	}
	if e.older != nil {
		e.older.Value.newer = e.newer
	}
	e.newer, e.older = nil, nil
	g.grace.retire(n, s.drop)
}

// place stores a name where LookupID finds it.
func (s *state) place(g *group, n *node, slot int) {
	n.Value.slot = slot
	at := g.slots.Load()
	if at == nil || slot >= len(at.at) {
		room := s.interned
		if at != nil {
			room = max(room, len(at.at)+len(at.at)/4)
		}
		grown := &slots{at: make([]atomic.Pointer[node], room)}
		if at != nil {
			for i := range at.at {
				grown.at[i].Store(at.at[i].Load())
			}
		}
		grown.at[slot].Store(n)
		g.slots.Store(grown)
		return
	}
	at.at[slot].Store(n)
}

// set is Set: it creates the group on the way and overwrites. It reports whether
// it waits for other sessions to make room; then it is called again.
func (s *state) set(m *writing) (waits bool, err error) {
	switch {
	case s.closed:
		s.free(m.value)
		return false, fault.ErrClosed
	case !s.fitsEver(m.value.Bytes):
		s.free(m.value)
		return false, fault.ErrTooLarge
	}
	g := m.group
	if g == nil {
		g = s.published.resident(m.use.compiled)
		if !m.claimed {
			s.published.remember(m.use)
			s.request(m.use, g == nil)
		}
	}
	s.void(m.shape(), m.name, m.options.Lane)
	switch {
	case m.group != nil && !g.registered:
		return false, s.storeHeld(m)
	case m.group == nil && !s.published.capacity().Groups.Allows(1): // disabled: nothing is kept
		s.free(m.value)
	case s.writeWaits(m, g):
		return true, nil
	case m.group != nil:
		return false, s.storeHeld(m)
	default:
		s.store(m, g)
	}
	return false, nil
}

// void has what is being made for a name not be kept: it is older than what is
// done to the name now.
func (s *state) void(shape shapegroups.Shape, name string, lane Lane) {
	if s.desk.Len() == 0 {
		return
	}
	if c, found := s.desk.Find(place{shape, name, lane}); found {
		s.desk.Void(c)
	}
}

// storeHeld writes a value into the group that a handle sees, which is evicted
// for it where it does not fit.
func (s *state) storeHeld(m *writing) error {
	g := m.group
	n := s.newNode(g, g.names.Hash(m.name), m.name, m.options, m.value)
	if g.registered && !(s.fitsNow(m.value.Bytes) && s.makeRoom(0, growth(g, n), g)) {
		s.evict(g)
	}
	if !s.lives(g) { // the handle was closed meanwhile
		s.drop(n)
		return fault.ErrClosed
	}
	s.put(g, n)
	return nil
}

// lives reports whether names may still be put into a group and taken out.
func (s *state) lives(g *group) bool {
	_, serving := s.serving[g]
	return g.registered || serving
}

// take takes a name out of a handle's group and out of the one registered for its
// shape. It pins the one that the handle would have found.
func (s *state) take(g *group, name string, lane Lane) (taken *node, err error) {
	if s.closed {
		return nil, fault.ErrClosed
	}
	s.void(g.shape, name, lane)
	for _, g := range []*group{g, s.published.resident(g.shape)} {
		if g == nil || !s.lives(g) {
			continue
		}
		n := g.names.Lookup(name, uint64(lane))
		if n == nil {
			continue
		}
		first := taken == nil
		if first {
			n.Value.cell.Pin() // its group holds a pin
			taken = n
		}
		s.remove(g, n)
		if first {
			s.effects.memory -= n.Value.own()
			n.Value.taken = true
		}
		if g.registered {
			s.policy.Resize(g.policy, g.bytes, g.cost.Seconds())
		}
	}
	if taken == nil {
		return nil, fault.ErrNotFound
	}
	return taken, nil
}

// store writes the value of Set, unless other sessions hold what it would need;
// what had the name is gone in any case. g is nil where the shape is new.
func (s *state) store(m *writing, g *group) {
	kept := s.fitsNow(m.value.Bytes)
	if g == nil && kept {
		if kept = s.makeRoom(1, m.value.Bytes, nil); kept {
			g = s.published.newGroup(m.use.compiled)
			s.register(g)
		}
	}
	if kept {
		n := s.newNode(g, g.names.Hash(m.name), m.name, m.options, m.value)
		if !s.write(g, n) {
			s.drop(n)
		}
		return
	}
	if g != nil {
		if old := g.names.Lookup(m.name, uint64(m.options.Lane)); old != nil {
			s.remove(g, old)
		}
	}
	s.free(m.value)
}

// free throws away a value that got no node.
func (s *state) free(v Value) {
	if v.Free != nil {
		s.effects.trash = append(s.effects.trash, trash{value: v.Free})
	}
}

func (s *state) hold(owner string) { s.holds[owner]++ }

// reset removes the names of one owner from every group, or, for the empty
// owner, everything.
func (s *state) reset(owner string) error {
	if s.closed {
		return fault.ErrClosed
	}
	if owner == "" {
		s.resetAll()
		return nil
	}
	if n := s.holds[owner]; n > 0 {
		if s.holds[owner]--; n == 1 {
			delete(s.holds, owner)
		}
		return nil
	}
	for c := range s.desk.All() {
		if c.options.Owner == owner {
			s.desk.Void(c)
		}
	}
	strip := func(g *group) {
		for n := g.owners[owner]; n != nil; n = g.owners[owner] {
			s.remove(g, n)
		}
		if g.registered {
			s.policy.Resize(g.policy, g.bytes, g.cost.Seconds())
		}
	}
	s.published.shapes.All(func(at *table.Node[group]) bool {
		strip(&at.Value)
		return true
	})
	for g := range s.serving {
		strip(g)
	}
	return nil
}

// resetAll takes every group out, and every name of those that serve handles.
func (s *state) resetAll() {
	s.desk.VoidAll()
	s.evictAll()
	for g := range s.serving {
		var all []*node
		g.names.All(func(n *node) bool {
			all = append(all, n)
			return true
		})
		for _, n := range all {
			s.remove(g, n)
		}
	}
}
