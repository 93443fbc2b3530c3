package artefacts

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/limit"
)

// users is the set of owners that used an artefact; the empty name stands for
// callers without one. A set is immutable and never empty.
type users struct {
	one  string
	more map[string]struct{} // besides one
}

var nobody = &users{} // what most artefacts are used by: no allocation

func usersOf(owner string) *users {
	if owner == "" {
		return nobody
	}
	return &users{one: owner}
}

func (u *users) has(owner string) bool {
	if u.one == owner {
		return true
	}
	_, ok := u.more[owner]
	return ok
}

func (u *users) only(owner string) bool { return u.one == owner && len(u.more) == 0 }

func (u *users) with(owner string) *users {
	more := make(map[string]struct{}, len(u.more)+1)
	maps.Copy(more, u.more)
	more[owner] = struct{}{}
	return &users{one: u.one, more: more}
}

// without gives the set less owner, who must not be the only one in it.
func (u *users) without(owner string) *users {
	less := &users{one: u.one, more: maps.Clone(u.more)}
	if owner != u.one {
		delete(less.more, owner)
		return less
	}
	for next := range less.more {
		less.one = next
		delete(less.more, next)
		break
	}
	return less
}

// all walks the owners.
func (u *users) all(yield func(string) bool) {
	if !yield(u.one) {
		return
	}
	for owner := range u.more {
		if !yield(owner) {
			return
		}
	}
}

// credit adds owner to the set that p holds: readers on a hit and the actor may
// change it at the same time. Only the first use by an owner allocates.
func credit(p *atomic.Pointer[users], owner string) {
	for {
		u := p.Load()
		if u.has(owner) || p.CompareAndSwap(u, u.with(owner)) {
			return
		}
	}
}

// discredit takes owner out of the set and reports whether nobody is left; the
// set is then as it was.
func discredit(p *atomic.Pointer[users], owner string) bool {
	for {
		u := p.Load()
		if !u.has(owner) {
			return false
		}
		if u.only(owner) {
			return true
		}
		if p.CompareAndSwap(u, u.without(owner)) {
			return false
		}
	}
}

// tenants are the owners that have a floor.
//
// INVARIANT: their floors are together within the capacity in bytes, unless that
// is 0 and nothing is kept at all.
type tenants map[string]*tenant

// tenant is one of them: what it uses has an order of its own, so that the
// choice of a victim passes over all that a floor holds at once. An artefact
// that several tenants use counts to the floor of one.
//
// INVARIANT: bytes are those of the residents in its order.
type tenant struct {
	order
	floor int64
	bytes int64
}

// charge counts bytes; a nil tenant does not.
func (t *tenant) charge(bytes int64) {
	if t != nil {
		t.bytes += bytes
	}
}

// holds reports whether its floor would be touched if n went.
func (t *tenant) holds(n *node) bool { return t.bytes-n.Value.kept() < t.floor }

// kept is what n takes of the bytes: nothing before it has landed.
func (e *entry) kept() int64 {
	if e.resident.Load() {
		return e.bytes
	}
	return 0
}

// of gives the tenant to whose floor n counts best: one that is below it, else
// any that uses n, else nil.
func (all tenants) of(n *node) (t *tenant) {
	if len(all) == 0 {
		return nil
	}
	for owner := range n.Value.users.Load().all {
		if other := all[owner]; other != nil {
			if t = other; t.bytes < t.floor {
				break
			}
		}
	}
	return t
}

// size is the number of entries.
func (s *state) size() int {
	n := s.order.size
	for _, t := range s.tenants {
		n += t.size
	}
	return n
}

// each calls fn, which may evict what it is given, on every entry.
func (s *state) each(fn func(*node)) {
	walk := func(o *order) {
		for n := o.oldest; n != nil; {
			next := n.Value.newer
			fn(n)
			n = next
		}
	}
	walk(&s.order)
	for _, t := range s.tenants {
		walk(&t.order)
	}
}

// enter puts n, which is in no order, among what t uses, or what nobody with a
// floor does, where its last use belongs.
func (s *state) enter(n *node, t *tenant) {
	n.Value.tenant = t
	if t == nil {
		s.order.insert(n)
		return
	}
	t.insert(n)
	t.charge(n.Value.kept())
}

// withdraw takes n out of its order, if it is in one.
func (s *state) withdraw(n *node) {
	if in := n.Value.in; in != nil {
		in.remove(n)
		n.Value.tenant.charge(-n.Value.kept())
		n.Value.tenant = nil
	}
}

func (s *state) move(n *node, t *tenant) {
	s.withdraw(n)
	s.enter(n, t)
}

// Which entries may go.
func either(*node) bool   { return true }
func landed(n *node) bool { return n.Value.resident.Load() }

// victim is the entry that goes next for one of tenant t, who may be nil: of
// those that no floor holds the least recently used, else t's own, else nil.
func (s *state) victim(t *tenant, may func(*node) bool) *node {
	n := s.order.first(may)
	if len(s.tenants) == 0 {
		return n
	}
	for ; n != nil; n = s.order.first(may) {
		other := s.tenants.of(n)
		if other == nil {
			break
		}
		s.move(n, other) // a tenant has come to use it since it was entered
	}
	for _, o := range s.tenants {
		head := s.spare(o, may)
		if head != nil && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
	}
	if n == nil && t != nil {
		n = t.first(may)
	}
	return n
}

// spare is the least recently used of t's that no floor holds. What another
// tenant's floor would hold goes over to that one.
func (s *state) spare(t *tenant, may func(*node) bool) *node {
	for n := t.first(may); n != nil && !t.holds(n); n = t.first(may) {
		other := s.tenants.of(n)
		if other == nil || other == t || other.bytes >= other.floor {
			return n
		}
		s.move(n, other)
	}
	return nil
}

// surplus is the entry that goes next where the capacity itself has shrunk: then
// floors give way, too.
func (s *state) surplus(may func(*node) bool) *node {
	n := s.victim(nil, may)
	if n != nil {
		return n
	}
	for _, t := range s.tenants {
		if head := t.first(may); head != nil && (n == nil || head.Value.used < n.Value.used) {
			n = head
		}
	}
	return n
}

// floors is the sum of all.
func (all tenants) floors() (bytes int64) {
	for _, t := range all {
		bytes += t.floor
	}
	return bytes
}

// fit refuses so many bytes more of floors than a capacity holds.
func (all tenants) fit(more int64, capacity limit.Limit) error {
	most, counted := capacity.Value()
	if !counted || most == 0 {
		most = math.MaxInt64
	}
	if floors := all.floors(); more > most-floors {
		return fmt.Errorf("%w: floors of %d bytes, and %d more, in %v bytes: raise the capacity or lower the floors",
			fault.ErrTooLarge, floors, more, capacity)
	}
	return nil
}

// addFloor raises or lowers the floor of an owner.
func (s *state) addFloor(owner string, bytes int64) error {
	if bytes > 0 {
		if err := s.tenants.fit(bytes, s.bytes); err != nil {
			return err
		}
	}
	t := s.tenants[owner]
	if t == nil {
		t = new(tenant)
		s.tenants[owner] = t
	}
	if t.floor += bytes; t.floor > 0 {
		return nil
	}
	delete(s.tenants, owner)
	for t.oldest != nil {
		s.move(t.oldest, s.tenants.of(t.oldest))
	}
	return nil
}

// unused are the residents that nobody leases, the cheapest to make again first,
// each with the tier it is in once those before it have gone.
func (s *state) unused() (nodes []*node, items []pressure.Item) {
	s.each(func(n *node) {
		if n.Value.kept() > 0 && !n.Value.cell.Leased() {
			nodes = append(nodes, n)
		}
	})
	item := func(n *node) pressure.Item {
		return pressure.Item{Bytes: n.Value.bytes, Seconds: n.Value.cost.Seconds()}
	}
	slices.SortStableFunc(nodes, func(a, b *node) int { return pressure.Cheaper(item(a), item(b)) })
	gone := make(map[*tenant]int64)
	for _, n := range nodes {
		it := item(n)
		if t := n.Value.tenant; t != nil {
			if gone[t] += it.Bytes; t.bytes-gone[t] < t.floor {
				it.Tier = pressure.Floors
			}
		}
		items = append(items, it)
	}
	return nodes, items
}

// give evicts of these, of one tier, until so many bytes are freed.
func (s *state) give(bytes int64, tier pressure.Tier) (freed pressure.Freed) {
	nodes, items := s.unused()
	for i, n := range nodes {
		if items[i].Tier == tier && freed.Bytes < bytes {
			freed.Bytes += items[i].Bytes
			s.evict(n)
		}
	}
	return freed
}

// AddFloor raises what others cannot take of an owner's artefacts by so many
// bytes, or lowers it by a negative number. What only tenants above their floors
// use goes first, and what nobody with a floor uses; where the floors of others
// are all there is, a newcomer is not kept. An artefact used by several tenants
// counts to the floor of one. ErrTooLarge, and nothing is changed: the floors of
// all would be more than the capacity in bytes. Lowering the capacity in entries
// heeds no floor.
func (c *Cache) AddFloor(owner string, bytes int64) error {
	const op = "artefacts: floor"
	if owner == "" {
		return fault.Invalidf(op, "the owner's name is empty")
	}
	return c.order(op, func(r actors.Reply[struct{}]) message { return &addFloor{reply: r, owner: owner, bytes: bytes} })
}

// offerUnused lists the resident artefacts that nobody leases, for the memory limit
// of the process. A closed cache offers nothing.
func (c *Cache) offerUnused(ctx context.Context) []pressure.Item {
	items, _ := actors.Ask(ctx, c.ref, func(r actors.Reply[[]pressure.Item]) message { return &offer{reply: r} })
	return items
}

// shrinkUnused evicts of those, the cheapest seconds a byte first, until at least
// n bytes are freed or nothing of that tier is left.
func (c *Cache) shrinkUnused(ctx context.Context, n int64, tier pressure.Tier) pressure.Freed {
	freed, _ := actors.Ask(ctx, c.ref, func(r actors.Reply[pressure.Freed]) message {
		return &shrink{reply: r, bytes: n, tier: tier}
	})
	return freed
}
