package flight

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// node is a flight as the waits-for graph sees it. The graph is process-wide,
// since a circle may run through several rooms, but has no lock of its own: each
// node guards the edges that leave it, so that flights that have nothing to do
// with each other never wait for each other.
type node struct {
	scope   any
	key     string
	parent  []*node      // under whose context the flight was started
	owner   bool         // no flight, but code that owns flights (Own); it has no parent
	awaited atomic.Int32 // edges that lead here

	mu struct {
		sync.Mutex
		waits map[*node]int // whom it waits for, how often
	}
}

type identityKey struct{}

// identityOf gives the nodes on whose behalf the code under ctx runs: nil for an
// ordinary caller, its flight for a creator; where the code owns flights, a node for
// all of those comes last. It is a pointer so that handing it out costs nothing.
func identityOf(ctx context.Context) *[]*node {
	id, _ := ctx.Value(identityKey{}).(*[]*node)
	return id
}

// Within reports whether ctx lies inside a flight of this scope and key, at any
// depth: what joins nothing (force-create) cannot wait in a circle but can
// recurse for ever. What is owned (Own) does not count: its creator is no flight's.
func Within(ctx context.Context, scope any, key string) bool {
	id := identityOf(ctx)
	return id != nil && within(*id, scope, key)
}

// Inside reports whether ctx lies inside a flight of this scope, at any depth.
func Inside(ctx context.Context, scope any) bool {
	id := identityOf(ctx)
	return id != nil && inside(*id, scope)
}

func inside(id []*node, scope any) bool {
	return slices.ContainsFunc(id, func(n *node) bool { return n.scope == scope || inside(n.parent, scope) })
}

func within(id []*node, scope any, key string) bool {
	for _, n := range id {
		if n.scope == scope && n.key == key || within(n.parent, scope, key) {
			return true
		}
	}
	return false
}

// enter adds the edges from all of from to to. If that closes a circle, it takes
// them back and reports false.
//
// Of callers that close one circle at one time at least one finds it: each adds
// its edges before it looks. circular then lets only one of them break it.
func enter(from []*node, to *node) bool {
	oblige(from, []*node{to})
	for _, n := range from {
		for n.awaited.Load() > 0 { // nobody waits for n: no circle runs through it
			path := to.pathTo(func(at *node) bool { return at == n })
			if path == nil {
				break
			}
			closed, again := circular(path)
			if closed {
				exit(slices.DeleteFunc(slices.Clone(from), func(m *node) bool { return m == n }), to)
				return false
			}
			if !again {
				break
			}
		}
	}
	return true
}

// oblige adds the edges from all of from to all of to and looks for no circle.
func oblige(from, to []*node) {
	for _, n := range from {
		for _, m := range to {
			n.mu.Lock()
			if n.mu.waits == nil {
				n.mu.waits = make(map[*node]int)
			}
			n.mu.waits[m]++
			n.mu.Unlock()
			m.awaited.Add(1)
		}
	}
}

// exit takes edges back.
func exit(from []*node, to *node) {
	for _, n := range from {
		n.mu.Lock()
		n.unlinkLocked(to)
		n.mu.Unlock()
	}
}

// unlinkLocked takes one edge away, unless n has ended meanwhile: then a goroutine
// of its creator outlived it.
func (n *node) unlinkLocked(to *node) {
	if n.mu.waits[to] == 0 {
		return
	}
	if n.mu.waits[to]--; n.mu.waits[to] == 0 {
		delete(n.mu.waits, to)
	}
	to.awaited.Add(-1)
}

// settle forgets whom an ended flight waited for.
func (n *node) settle() {
	n.mu.Lock()
	waits := n.mu.waits
	n.mu.waits = nil
	n.mu.Unlock()
	for to, times := range waits {
		to.awaited.Add(-int32(times))
	}
}

// waiting reports whether n waits for anything.
func (n *node) waiting() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.mu.waits) > 0
}

// pathTo gives a path of edges from n to a goal, or nil. The edges are read one
// node after the other, so they need not all have been there at one time.
func (n *node) pathTo(goal func(*node) bool) (path []*node) {
	before := map[*node]*node{n: nil}
	for next := []*node{n}; len(next) > 0; {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		if goal(at) {
			for ; at != nil; at = before[at] {
				path = append(path, at)
			}
			slices.Reverse(path)
			return path
		}
		at.mu.Lock()
		for to := range at.mu.waits {
			if _, seen := before[to]; !seen {
				before[to] = at
				next = append(next, to)
			}
		}
		at.mu.Unlock()
	}
	return nil
}

// breaking is held by the one that holds the locks of several nodes.
var breaking sync.Mutex

// circular looks again at a path whose end waits for its start, with all of its
// edges at one time. If it is a circle, that last edge, which is the caller's, is
// taken away, so that one caller alone breaks the circle. If it is none any more,
// again says whether there may be another.
func circular(path []*node) (closed, again bool) {
	breaking.Lock()
	defer breaking.Unlock()
	for _, n := range path {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	start, end := path[0], path[len(path)-1]
	if end.mu.waits[start] == 0 {
		return false, false // the caller's flight has ended: its creator waits for nothing
	}
	for i, n := range path[:len(path)-1] {
		if n.mu.waits[path[i+1]] == 0 {
			return false, true
		}
	}
	end.unlinkLocked(start)
	return true, false
}
