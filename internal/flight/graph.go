package flight

import (
	"context"
	"sync"
)

// node is a flight as the waits-for graph sees it.
type node struct {
	scope  any
	key    string
	parent []*node       // under whose context the flight was started
	waits  map[*node]int // whom it waits for, how often; under graph.mu
}

// graph is process-wide since a circle may run through several rooms. Only
// waits of creators enter it, so the one lock is cold.
var graph struct{ sync.Mutex }

type identityKey struct{}

// identityOf gives the flights on whose behalf the code under ctx runs: nil for
// an ordinary caller, one for a creator, more for a creator that owns constants.
// It is a pointer so that handing it out costs nothing.
func identityOf(ctx context.Context) *[]*node {
	id, _ := ctx.Value(identityKey{}).(*[]*node)
	return id
}

// Within reports whether ctx lies inside a flight of this scope and key, at any
// depth: what joins nothing (force-create) cannot wait in a circle but can
// recurse for ever.
func Within(ctx context.Context, scope any, key string) bool {
	id := identityOf(ctx)
	return id != nil && within(*id, scope, key)
}

func within(id []*node, scope any, key string) bool {
	for _, n := range id {
		if n.scope == scope && n.key == key || within(n.parent, scope, key) {
			return true
		}
	}
	return false
}

// enter adds the edges from all of from to to, unless one would close a circle.
func enter(from []*node, to *node) bool {
	graph.Lock()
	defer graph.Unlock()
	seen := make(map[*node]bool)
	for _, n := range from {
		if reaches(to, n, seen) {
			return false
		}
		clear(seen)
	}
	for _, n := range from {
		addLocked(n, to)
	}
	return true
}

// oblige adds the edges from all of from to all of to, which close no circle.
func oblige(from, to []*node) {
	graph.Lock()
	defer graph.Unlock()
	for _, n := range from {
		for _, m := range to {
			addLocked(n, m)
		}
	}
}

func addLocked(from, to *node) {
	if from.waits == nil {
		from.waits = make(map[*node]int)
	}
	from.waits[to]++
}

func exit(from []*node, to *node) {
	if len(from) == 0 {
		return
	}
	graph.Lock()
	defer graph.Unlock()
	for _, n := range from {
		if n.waits == nil {
			continue // settled meanwhile: a goroutine of the creator outlived it
		}
		if n.waits[to]--; n.waits[to] <= 0 {
			delete(n.waits, to)
		}
	}
}

// awaits lists the keys in scope that n waits for.
func (n *node) awaits(scope any) (keys []string) {
	graph.Lock()
	defer graph.Unlock()
	for to := range n.waits {
		if to.scope == scope {
			keys = append(keys, to.key)
		}
	}
	return keys
}

func (n *node) awaitsNode(to *node) bool {
	graph.Lock()
	defer graph.Unlock()
	return n.waits[to] > 0
}

// settle forgets whom an ended flight waited for.
func settle(n *node) {
	graph.Lock()
	n.waits = nil
	graph.Unlock()
}

// reaches reports whether goal can be reached from n. The graph has no circle
// before the edge in question, so the search ends; seen keeps it linear.
func reaches(n, goal *node, seen map[*node]bool) bool {
	if n == goal {
		return true
	}
	if seen[n] {
		return false
	}
	seen[n] = true
	for next := range n.waits {
		if reaches(next, goal, seen) {
			return true
		}
	}
	return false
}
