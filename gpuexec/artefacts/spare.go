package artefacts

import (
	"cmp"
	"context"
	"slices"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/sums"
)

// spare is a resident that nobody leases, as it was in some turn.
type spare struct {
	pressure.Item
	n      *node
	used   uint64
	tenant *tenant
	above  int64 // what the tenant has above its floor
}

// unused lists the residents among nodes that nobody leases.
func (s *state) unused(nodes []*node) (list []spare) {
	for _, n := range nodes {
		s.touched.Add(1)
		if n.Value.kept() == 0 || n.Value.cell.Leased() {
			continue
		}
		one := spare{pressure.Item{Bytes: n.Value.bytes, Seconds: n.Value.cost.Seconds()}, n, n.Value.used, n.Value.tenant, 0}
		if t := one.tenant; t != nil {
			one.above = t.bytes - t.floor
		}
		list = append(list, one)
	}
	return list
}

// rank puts the cheapest to make again first, and of those the least recently used. The
// tier of each is that which it has when those before it have gone.
func rank(list []spare) {
	slices.SortFunc(list, func(a, b spare) int {
		return cmp.Or(pressure.Cheaper(a.Item, b.Item), cmp.Compare(a.used, b.used))
	})
	gone := make(map[*tenant]int64)
	for i := range list {
		if one := &list[i]; one.tenant != nil {
			if gone[one.tenant] = sums.Add(gone[one.tenant], one.Bytes); gone[one.tenant] > one.above {
				one.Tier = pressure.Floors
			}
		}
	}
}

// give evicts the first of a list until that many bytes are freed: those that nobody
// has come to lease, and no floor to hold, meanwhile.
func (s *state) give(list []spare, bytes int64) (freed pressure.Freed) {
	for _, one := range list {
		if freed.Bytes >= bytes {
			break
		}
		s.touched.Add(1)
		n := one.n
		held := one.Tier == pressure.Spare && n.Value.tenant != nil && n.Value.tenant.holds(n)
		if n.Value.kept() == 0 || n.Value.cell.Leased() || held {
			continue
		}
		freed.Add(pressure.Freed{Bytes: one.Bytes})
		s.evict(n, ForMemory)
	}
	return freed
}

// unused ranks the residents that nobody leases, for the memory limit of the process. A
// closed cache has none.
func (c *Cache) unused(ctx context.Context) (list []spare) {
	var all []*node
	c.table.All(func(n *node) bool {
		all = append(all, n)
		return true
	})
	for nodes := range slices.Chunk(all, pressure.Part) {
		some, _ := actors.Ask(ctx, c.ref, func(r actors.Reply[[]spare]) message { return &offer{nodes: nodes, reply: r} })
		list = append(list, some...)
	}
	rank(list)
	return list
}

func (c *Cache) offerUnused(ctx context.Context) (items []pressure.Item) {
	for _, one := range c.unused(ctx) {
		items = append(items, one.Item)
	}
	return items
}

// shrinkUnused evicts of those, the cheapest seconds a byte first, until at least
// n bytes are freed or nothing of that tier is left.
func (c *Cache) shrinkUnused(ctx context.Context, n int64, tier pressure.Tier) pressure.Freed {
	list := slices.DeleteFunc(c.unused(ctx), func(one spare) bool { return one.Tier != tier })
	return pressure.InParts(list, n, func(part []spare, n int64) pressure.Freed {
		of, _ := actors.Ask(ctx, c.ref, func(r actors.Reply[pressure.Freed]) message { return &shrink{list: part, bytes: n, reply: r} })
		return of
	})
}
