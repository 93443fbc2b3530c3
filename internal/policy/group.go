package policy

import "github.com/kiln-cache/kiln/shapegroups"

// Group is what a policy knows of one shape: a handle for Use and Remove. A
// group that is not resident may be one whose use count is remembered. It
// belongs to the policy's goroutine.
type Group struct {
	Of any // the caller's, who sets it while the group is resident

	shape  shapegroups.Shape
	needed int // its place, plus 1, in the announcement; 0 is none

	// What the use of a resident group touches, side by side.
	resident bool
	known    bool           // reachable through Policy.groups
	used     bool           // is in Policy.used
	visited  bool           // sieve: used since the hand last passed
	saved    byte           // parts, while a saved state is read
	copied   uint64         // the last snapshot that has it, or that began before it was known
	aside    bool           // it was found busy, and is not known to be Ready
	empty    bool           // it holds no bytes
	number   uint64         // of its registration
	cost     int            // exponent of the class it belongs to by cost
	class    *class         // cost class it is in now, while resident
	since    uint64         // when it was last asked for, or last dropped a class
	aged     uint64         // its place in the list by age
	last     uint64         // when it was last asked for or registered
	count    count          // of uses
	slots    [heapKinds]int // place in a heap, plus 1; 0 is none
	links    [listKinds]link
	branch   // in a queue
}

// Shape is the shape it stands for.
func (g *Group) Shape() shapegroups.Shape { return g.shape }

// Resident says that it is registered.
func (g *Group) Resident() bool { return g.resident }

// announced says that a waiting request needs it.
func (g *Group) announced() bool { return g.needed > 0 }

// The lists that a group may be in, at most one of each kind.
const (
	inShadow = iota // duel's shadow directory by recency
	inClass         // its class's members, while resident, as they were registered
	inAge           // all residents by when they drop a class
	inKnown         // all that are known
	listKinds
)

type link struct{ newer, older *Group }

// list is an intrusive list from newest to oldest.
type list struct {
	kind           int
	newest, oldest *Group
	len            int
	pushes         uint64
}

func (l *list) has(g *Group) bool {
	return g.links[l.kind].newer != nil || l.newest == g
}

func (l *list) remove(g *Group) {
	at := g.links[l.kind]
	if at.newer != nil {
		at.newer.links[l.kind].older = at.older
	} else {
		l.newest = at.older
	}
	if at.older != nil {
		at.older.links[l.kind].newer = at.newer
	} else {
		l.oldest = at.newer
	}
	g.links[l.kind] = link{}
	l.len--
}

// renew makes g, which is in l, its newest.
func (l *list) renew(g *Group) {
	if l.newest != g {
		l.remove(g)
		l.push(g)
	}
}

// push makes g, which is not in l, its newest.
func (l *list) push(g *Group) {
	g.links[l.kind].older = l.newest
	if l.newest != nil {
		l.newest.links[l.kind].newer = g
	} else {
		l.oldest = g
	}
	l.newest = g
	l.len++
	if l.pushes++; l.kind == inAge {
		g.aged = l.pushes
	}
}
