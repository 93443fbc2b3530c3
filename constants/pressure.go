package constants

import (
	"context"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/pressure"
)

type (
	offerMsg struct {
		reply actors.Reply[[]pressure.Item]
	}
	shrinkMsg struct {
		bytes int64
		reply actors.Reply[pressure.Freed]
	}
)

func (offerMsg) isMessage()  {}
func (shrinkMsg) isMessage() {}

func (m offerMsg) Fail(err error)  { m.reply.Fail(err) }
func (m shrinkMsg) Fail(err error) { m.reply.Fail(err) }

func (t *tensor) item() pressure.Item {
	return pressure.Item{Bytes: t.bytes, Seconds: t.cost.Seconds(), Tier: pressure.Last}
}

// offer lists what the residents that nobody uses hold.
func (s *state) offer() (items []pressure.Item) {
	s.table.All(func(n *node) bool {
		if !n.Value.cell.Leased() {
			items = append(items, n.Value.item())
		}
		return true
	})
	return items
}

// shrink removes of these the cheapest to make again until n bytes are freed.
func (s *state) shrink(bytes int64) (freed pressure.Freed) {
	var used []*node
	for freed.Bytes < bytes && len(s.worth) > 0 {
		n := s.worth.pop()
		if n.Value.cell.Leased() {
			used = append(used, n)
			continue
		}
		freed.Bytes += n.Value.bytes
		s.remove(n, Evicted)
	}
	for _, n := range used {
		s.worth.push(n)
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
// process. It waits for a turn of each engine; a closed one offers nothing.
func (c *Cache) offer(ctx context.Context) (items []pressure.Item) {
	for _, e := range c.Engines() {
		of, _ := actors.Ask(ctx, e.ref, func(r actors.Reply[[]pressure.Item]) message { return offerMsg{r} })
		items = append(items, of...)
	}
	return items
}

// shrink removes of these, engine by engine, until at least n bytes went or none is
// left; in each engine the cheapest seconds a byte go first. Their callbacks get
// Evicted, whatever the policy: it speaks of room for newcomers.
func (c *Cache) shrink(ctx context.Context, n int64, tier pressure.Tier) (freed pressure.Freed) {
	if tier != pressure.Last {
		return freed
	}
	for _, e := range c.Engines() {
		if freed.Bytes >= n {
			break
		}
		of, _ := actors.Ask(ctx, e.ref, func(r actors.Reply[pressure.Freed]) message {
			return shrinkMsg{bytes: n - freed.Bytes, reply: r}
		})
		freed.Bytes += of.Bytes
	}
	return freed
}
