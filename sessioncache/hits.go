package sessioncache

import (
	"math/rand/v2"
	"sync/atomic"
)

// tally counts hits of one group's handles. When the group has gone, the tally goes
// on with a new one and keeps its count: the sum of all that were ever made is the
// session's hits, exact and never falling, though nobody locks or adds it up.
type tally struct {
	next  *tally // of all, the latest first
	cells []cell
}

type cell struct {
	atomic.Uint64
	_ [56]byte // so that no two share a line
}

// A group has two tallies, for memory's sake: one place for a handle that is alone
// when it is opened, and the places of a crowd, of which each handle draws one, from
// the first moment that the group has two handles.
const (
	alone = iota
	crowd
)

var places = [...]int{alone: 1, crowd: 16}

// tallies are those of a group, the crowd's nil until it comes.
type tallies [len(places)]atomic.Pointer[tally]

func (ts *tallies) sum() (n uint64) {
	for i := range ts {
		if t := ts[i].Load(); t != nil {
			n += t.sum()
		}
	}
	return n
}

func (t *tally) sum() (n uint64) {
	for i := range t.cells {
		n += t.cells[i].Load()
	}
	return n
}

// hits are those of the handles of g, which has not gone; the actor's.
func (g *group) hits() uint64 { return g.tallies.sum() - g.before }

// newTally makes one that all sums count.
func (p *published) newTally(places int) *tally {
	t := &tally{cells: make([]cell, places)}
	for t.next = p.tallies.Load(); !p.tallies.CompareAndSwap(t.next, t); {
		t.next = p.tallies.Load()
	}
	return t
}

// counted gives a new group the tallies of one that has gone, if there are any.
func (p *published) counted(g *group) {
	for i, spare := range p.spare {
		if last := len(spare) - 1; last >= 0 {
			g.tallies[i].Store(spare[last])
			p.spare[i] = spare[:last]
		} else if i == alone {
			g.tallies[i].Store(p.newTally(places[i]))
		}
	}
	g.before = g.tallies.sum()
}

// uncounted takes them back: g has no handle any more.
func (p *published) uncounted(g *group) {
	for i := range g.tallies {
		if t := g.tallies[i].Load(); t != nil {
			p.spare[i] = append(p.spare[i], t)
		}
	}
}

// place is where a handle of g that was opened just now counts its hits.
func (p *published) place(g *group) *cell {
	which := crowd
	if g.grace.handles[0].Load()+g.grace.handles[1].Load() == 1 {
		which = alone
	}
	at := &g.tallies[which]
	if at.Load() == nil {
		at.CompareAndSwap(nil, p.newTally(places[which])) // one too many counts nothing
	}
	return &at.Load().cells[rand.IntN(places[which])]
}

// hits are those of all handles.
func (p *published) hits() (n uint64) {
	for t := p.tallies.Load(); t != nil; t = t.next {
		n += t.sum()
	}
	return n
}
