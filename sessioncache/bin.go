package sessioncache

import (
	"log/slog"
	"runtime"
	"slices"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/zone"
)

// trash is one thing to free: what is set of it.
type trash struct {
	group *group // all of its names; it is dead and no handle is open
	node  *node  // one whose last pin was dropped
	value func() // the Free of a value that never got a node
}

// frees is where a session's values are freed. Safe for concurrent use.
type frees struct {
	bin    lease.Bin[trash]
	lend   func(func())    // runs a function on another goroutine
	zone   *zone.Zone      // what runs there: Frees and listeners
	memory *pressure.Watch // is told of it; nil where nobody watches
	logger *slog.Logger
	name   string // of the session
}

func newFrees(c Config) *frees {
	f := &frees{lend: c.lend, zone: new(zone.Zone), memory: c.memory, logger: c.Logger, name: c.Name}
	if f.lend == nil {
		f.lend = actors.Go
	}
	f.lend = f.zone.Lend(f.lend)
	f.bin.Init(f.lend, f.free, f.failed)
	return f
}

// free frees what was thrown into the bin.
func (f *frees) free(t trash) {
	switch {
	case t.group != nil:
		f.tear(t.group)
	case t.node != nil:
		f.freeNow(t.node)
	default:
		t.value()
	}
}

// tear drops the pins that a dead group holds on its names. Tearing it again does
// nothing.
func (f *frees) tear(g *group) {
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
		n.Value.group.of.frees.freeNow(n)
	}
}

// freeNow frees a value whose last pin was dropped.
func (f *frees) freeNow(n *node) {
	defer f.memory.Add(-n.Value.own()) // also after a Free that ends its goroutine
	guard.Call(n.Value.cell.Free, f.failed)
}

// failed is told of a panic in a Free.
func (f *frees) failed(err error) {
	f.logger.Error("session: freeing a value", "session", f.name, "error", err)
}
