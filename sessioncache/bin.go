package sessioncache

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// bin runs the Free of values, in the order they were thrown in and never in an
// actor's turn: at most one lent goroutine works it off. Safe for concurrent use.
type bin struct {
	logger *slog.Logger
	name   string

	mu struct {
		sync.Mutex
		waiting []trash
		working bool
	}
}

// trash is one thing to free: what is set of it.
type trash struct {
	group *group // all of its names; it is dead and no handle is open
	node  *node  // one whose last pin was dropped
	value func() // the Free of a value that never got a node
	fence func() // called when everything thrown in before is freed
}

func (b *bin) throw(all ...trash) {
	if len(all) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.waiting = append(b.mu.waiting, all...)
	if !b.mu.working {
		b.mu.working = true
		actors.GoOn(b.work)
	}
}

// work frees what waits, until nothing does.
func (b *bin) work() {
	for {
		runtime.Gosched() // whoever waits for the turn that threw this goes first
		b.mu.Lock()
		if len(b.mu.waiting) == 0 {
			b.mu.waiting, b.mu.working = nil, false
			b.mu.Unlock()
			return
		}
		next := b.mu.waiting[0]
		b.mu.waiting[0] = trash{}
		b.mu.waiting = b.mu.waiting[1:]
		b.mu.Unlock()
		b.free(next)
	}
}

// free frees one thing. A panic that is not a Free's own is an error of this
// package: it is logged, and what waits behind it is freed all the same.
func (b *bin) free(t trash) {
	defer func() {
		if v := recover(); v != nil {
			b.logger.Error("session: freeing values", "session", b.name, "error", &fault.PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	switch {
	case t.group != nil:
		b.tear(t.group)
	case t.node != nil:
		b.now(t.node)
	case t.value != nil:
		b.guard(t.value)
	case t.fence != nil:
		t.fence()
	}
}

// tear drops the pins that a dead group holds on its names. Whoever comes
// second does nothing.
func (b *bin) tear(g *group) {
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
		if n.Value.cell.Drop() {
			b.now(n)
		}
	})
}

// now frees a value whose last pin was dropped, on the caller's goroutine.
func (b *bin) now(n *node) {
	defer n.Value.group.of.memory.Add(-n.Value.own()) // also after a Free that ends its goroutine
	b.guard(n.Value.cell.Free)
}

func (b *bin) guard(free func()) {
	if free == nil {
		return
	}
	guard.Call(free, func(err error) {
		b.logger.Error("session: freeing a value", "session", b.name, "error", err)
	})
}
