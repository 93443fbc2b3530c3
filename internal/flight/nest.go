package flight

import (
	"context"
	"sync"
)

// nest is where a flight lies among those under whose contexts others were begun: in one
// tree for each flight that was begun under none. But for tree it does not change.
type nest struct {
	up     *node // under whose context it was begun; nil = it is the root of its tree
	jump   *node // above, so that a walk to any depth takes the logarithm of the way
	depth  int
	outer  *rooms // scopes above that differ from that of the flight
	root   *node
	around bool // others were begun under it: it is in the tree; under its lock
	ended  bool // likewise
	at     int  // likewise: where it is among the running of its place

	tree struct { // of a root
		sync.Mutex
		running map[place][]*node // those that others were begun under, and that have not ended
	}
}

// place names what a flight computes.
type place struct {
	scope any
	key   string
}

// rooms are the scopes around a flight, each once.
type rooms struct {
	scope any
	more  *rooms
}

func (r *rooms) has(scope any) bool {
	for r != nil && r.scope != scope {
		r = r.more
	}
	return r != nil
}

// begin sets where n lies. What others rely on is set before anybody knows n.
func (n *node) begin(id *identity) {
	n.root, n.jump = n, n
	if id != nil {
		n.parent = id.nodes
	}
	up := creatorOf(id)
	if up == nil {
		return
	}
	n.up, n.root, n.depth, n.jump = up, up.root, up.depth+1, up
	if far := up.jump; up.depth-far.depth == far.depth-far.jump.depth {
		n.jump = far.jump
	}
	if n.outer = up.outer; up.scope != n.scope && !up.outer.has(up.scope) {
		n.outer = &rooms{up.scope, up.outer}
	}
	t := &up.root.tree
	t.Lock()
	defer t.Unlock()
	if up.around || up.ended {
		return
	}
	up.around = true
	if t.running == nil {
		t.running = make(map[place][]*node)
	}
	at := place{up.scope, up.key}
	up.at = len(t.running[at])
	t.running[at] = append(t.running[at], up)
}

// end takes n, which has ended, out of its tree.
func (n *node) end() {
	t := &n.root.tree
	t.Lock()
	defer t.Unlock()
	if n.ended = true; !n.around {
		return
	}
	at := place{n.scope, n.key}
	all := t.running[at]
	last := len(all) - 1
	all[n.at], all[last].at = all[last], n.at
	all[last] = nil
	if t.running[at] = all[:last]; last == 0 {
		delete(t.running, at)
	}
}

// above gives the node at a depth on the way from n to its root.
func (n *node) above(depth int) *node {
	for n.depth > depth {
		if n.jump.depth >= depth {
			n = n.jump
		} else {
			n = n.up
		}
	}
	return n
}

// creatorOf gives the flight whose creator runs under an identity, or nil.
func creatorOf(id *identity) *node {
	if id == nil || len(id.nodes) == 0 || id.nodes[0].owner {
		return nil
	}
	return id.nodes[0]
}

// Within reports whether ctx lies inside a flight of this scope and key that has not ended,
// at any depth: what joins nothing (force-create) cannot wait in a circle but can
// recurse for ever. What is owned (Own) does not count: its creator is no flight's. It
// costs the logarithm of the depth for each that runs of this key in the tree, or the depth
// where that is less.
func Within(ctx context.Context, scope any, key string) bool {
	n := creatorOf(identityOf(ctx))
	if n == nil {
		return false
	}
	t := &n.root.tree
	t.Lock()
	defer t.Unlock()
	if n.runs(scope, key) {
		return true
	}
	all := t.running[place{scope, key}]
	if n.depth < len(all) { // there are fewer to look at on the way up
		for n = n.up; n != nil && !n.runs(scope, key); n = n.up {
		}
		return n != nil
	}
	for _, m := range all {
		if m.depth < n.depth && n.above(m.depth) == m {
			return true
		}
	}
	return false
}

// runs reports whether n computes that, and has not ended. The lock of its tree is held.
func (n *node) runs(scope any, key string) bool {
	return n.scope == scope && n.key == key && !n.ended
}

// Inside reports whether ctx lies inside a flight of this scope, at any depth. It costs as
// much as there are scopes on the way.
func Inside(ctx context.Context, scope any) bool {
	n := creatorOf(identityOf(ctx))
	return n != nil && (n.scope == scope || n.outer.has(scope))
}
