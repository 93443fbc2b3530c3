package sessioncache

import (
	"runtime"
	"slices"

	"github.com/kiln-cache/kiln/internal/guard"
)

// trash is one thing to free: what is set of it.
type trash struct {
	group *group // all of its names; it is dead and no handle is open
	node  *node  // one whose last pin was dropped
	value func() // the Free of a value that never got a node
}

// free frees what was thrown into the session's bin.
func (p *published) free(t trash) {
	switch {
	case t.group != nil:
		p.tear(t.group)
	case t.node != nil:
		p.freeNow(t.node)
	default:
		t.value()
	}
}

// tear drops the pins that a dead group holds on its names. Tearing it again does
// nothing.
func (p *published) tear(g *group) {
	if !g.torn.CompareAndSwap(false, true) {
		return
	}
	names := slices.Concat(g.grace.retired[:]...)
	g.grace.retired = [2][]*node{}
	names = slices.Grow(names, g.names.Len())
	g.names.All(func(n *node) bool {
		names = append(names, n)
		return true
	})
	dropped := 0
	guard.Each(names, func(n *node) {
		if dropped++; dropped%32 == 0 {
			runtime.Gosched()
		}
		unpin(n)
	})
}

// unpin gives a pin back that is not the actor's, and frees the value on this
// goroutine if it was the last.
func unpin(n *node) {
	if n.Value.cell.Drop() {
		n.Value.group.of.freeNow(n)
	}
}

// freeNow frees a value whose last pin was dropped.
func (p *published) freeNow(n *node) {
	defer p.memory.Add(-n.Value.own()) // also after a Free that ends its goroutine
	guard.Call(n.Value.cell.Free, p.failed)
}

// failed is told of a panic in a Free.
func (p *published) failed(err error) {
	p.logger.Error("session: freeing a value", "session", p.name, "error", err)
}
