// Package touched counts the things (entries, groups, names) that a turn of an actor
// touches, so that it stays short however large the room is.
package touched

import "sync/atomic"

// Most is how many things a turn touches at most. What there is to do beyond that is
// done in further turns, with other messages between them.
const Most = 4096

// Often is how many turns one thing takes at most to make room for itself: others may
// take the room that it made.
const Often = 256

// Notes is how many uses that an actor heeds before a message count as one thing: by what is
// used, one takes a fortieth to a third of the time that a group takes to go. They are not
// cut into turns, since all messages that wait have to find them heeded; they count as a
// turn of their own, and package recency bounds them.
const Notes = 10

// Gauge counts for one actor. All but Most belong to the actor.
type Gauge struct {
	now   int64
	notes int64 // uses
	most  atomic.Int64
}

// Add counts n things more.
func (g *Gauge) Add(n int) { g.now += int64(n) }

// Noted counts a use that is heeded before the turn's message.
func (g *Gauge) Noted() { g.notes++ }

// Left reports whether the turn may begin with more: half of the most is for what one
// more may bring with it.
func (g *Gauge) Left() bool { return g.now < Most/2 }

// Turn ends a turn.
func (g *Gauge) Turn() {
	if n := max(g.now, g.notes/Notes); n > g.most.Load() {
		g.most.Store(n)
	}
	g.now, g.notes = 0, 0
}

// Most is the most that one turn has touched so far. Safe for concurrent use.
func (g *Gauge) Most() int64 { return g.most.Load() }
