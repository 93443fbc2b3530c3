package artefacts

import (
	"slices"

	"github.com/kiln-cache/kiln/internal/pressure"
)

// unused lists the residents that nobody leases, the cheapest to make again first.
// The tier of each is that which it has when those before it have gone.
func (s *state) unused() (nodes []*node, items []pressure.Item) {
	for n := range s.each {
		s.touched.Add(1)
		if n.Value.kept() > 0 && !n.Value.cell.Leased() {
			nodes = append(nodes, n)
		}
	}
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

// give evicts unused residents of one tier until that many bytes are freed, or none
// is left.
func (s *state) give(bytes int64, tier pressure.Tier) (freed pressure.Freed) {
	nodes, items := s.unused()
	for i, n := range nodes {
		if items[i].Tier == tier && freed.Bytes < bytes {
			freed.Bytes += items[i].Bytes
			s.evict(n, ForMemory)
		}
	}
	return freed
}
