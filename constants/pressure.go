package constants

import (
	"context"
	"slices"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// shrinkMsg asks for the removal of tensors in the order given, as many as it takes to
// free so many bytes. It is answered when they have been freed.
type shrinkMsg struct {
	nodes []*node
	bytes int64
	reply actors.Reply[pressure.Freed]
}

func (shrinkMsg) isMessage() {}

func (m shrinkMsg) handle(s *shell) {
	freed := s.state.shrink(m.nodes, m.bytes)
	s.publish()
	s.letGoLater()
	s.gone.Soon(func() { s.idle.Soon(func() { m.reply.Send(freed) }) })
}

func (m shrinkMsg) Fail(err error) { m.reply.Fail(err) }

func (t *tensor) item() pressure.Item {
	return pressure.Item{Bytes: t.bytes, Seconds: t.cost.Seconds(), Tier: pressure.Last}
}

// every wants each value.
func every(any) bool { return true }

// unused are the residents that nobody uses, at this moment, of the values wanted.
func (e *Engine) unused(of func(value any) bool) (nodes []*node) {
	e.shell.state.table.All(func(n *node) bool {
		if !n.Value.cell.Leased() && of(n.Value.value) {
			nodes = append(nodes, n)
		}
		return true
	})
	return nodes
}

// shrink removes tensors that nobody uses, in their order, until that many bytes are
// freed.
func (s *state) shrink(nodes []*node, bytes int64) (freed pressure.Freed) {
	for _, n := range nodes {
		if freed.Bytes >= bytes {
			break
		}
		s.touched.Add(1)
		if !n.Value.cell.Leased() && s.evict(n) {
			freed.Add(pressure.Freed{Bytes: n.Value.bytes})
		}
	}
	return freed
}

// Engines are the engines that there are at this moment, in no order.
func (c *Cache) Engines() []*Engine {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.enginesLocked(func(engineID) bool { return true })
}

// offer lists the resident tensors that nobody uses, for the memory limit of the
// process. It waits for nothing; a closed engine offers nothing.
func (c *Cache) offer(context.Context) (items []pressure.Item) {
	for _, e := range c.Engines() {
		for _, n := range e.unused(every) {
			items = append(items, n.Value.item())
		}
	}
	return items
}

// shrink removes of these, engine by engine, until at least n bytes went or none is left;
// in each engine the cheapest seconds a byte go first, some in a turn. Their callbacks get
// Evicted, whatever the policy: it speaks of room for newcomers.
func (c *Cache) shrink(ctx context.Context, n int64, tier pressure.Tier) (freed pressure.Freed) {
	if tier == pressure.Last {
		freed.Bytes = c.spare(ctx, every, n)
	}
	return freed
}

// spare is shrink for the values wanted.
func (c *Cache) spare(ctx context.Context, of func(value any) bool, n int64) int64 {
	var freed pressure.Freed
	for _, e := range c.Engines() {
		nodes := e.unused(of)
		slices.SortStableFunc(nodes, func(a, b *node) int { return pressure.Cheaper(a.Value.item(), b.Value.item()) })
		if freed.Bytes >= n {
			break
		}
		freed.Add(pressure.InParts(nodes, n-freed.Bytes, func(part []*node, n int64) pressure.Freed {
			of, _ := actors.Ask(ctx, e.ref, func(r actors.Reply[pressure.Freed]) message { return shrinkMsg{part, n, r} })
			return of
		}))
	}
	return freed.Bytes
}
