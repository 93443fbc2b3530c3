package sessioncache

import (
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/shapegroups"
)

// place is what a flight is for: one flight a place at a time (SPEC F1).
type place struct {
	shape shapegroups.Shape
	name  string
	lane  Lane
	own   *group // of this group alone, see board; nil for all of the shape
}

// call is one asking for the value of a name, as the core sees it. One that finds
// neither value nor flight is the flight that it begins.
type call struct {
	flight.Seats
	of      any    // what the shell has of it
	group   *group // of the handle
	name    string
	hash    uint64 // of name, as tables place it
	options Options

	at       place   // of the flight that it is
	shared   []*call // who came aboard it from other groups of the shape
	began    bool    // it is a flight of the desk
	forsaken bool    // it is a flight that nobody waits for
	claimed  bool    // its value has waited for others to make room
	turns    int     // in which its value made room, see roomy
	sifts    int     // see sifted

	linger time.Duration // that this caller wishes for its flight
	own    time.Duration // of that, what its creator lingers itself
	rest   time.Duration // until the creator of this flight, among the effects to cancel, is to be asked about; 0 = at once

	making *making // of its owner; nil where it has none
	resets uint64  // of the owner, when it began

	// The outcome, when it is among the effects to answer.
	node  *node // pinned for the callers that wait
	hit   bool  // the value was there
	other *call // the flight to go aboard of
	late  bool  // whose creator was cancelled before
	err   error
}

// board gives the flight that a call may go aboard of, or where it may begin one: that of
// its own group, else that of another group of its shape, which has the name for another key
// perhaps. Then it is a flight apart (SPEC G13).
func (s *state) board(c *call) (at place, f *call) {
	own := place{c.group.shape, c.name, c.options.Lane, c.group}
	if f, found := s.desk.Find(own); found {
		return own, f
	}
	at = own
	at.own = nil
	f, found := s.desk.Find(at)
	if found && f.group != c.group && another("get", c.name, f.options.Key, c.options.Key) != nil {
		return own, nil
	}
	return at, f
}

// lost is a group that was evicted.
type lost struct {
	shape shapegroups.Shape
	why   Cause
}

// effects is what a turn wants done, in this order. The shell empties it.
type effects struct {
	memory  int64    // bytes more, or less, for the memory limit
	trash   []trash  // to be freed
	start   []*call  // run the creators
	answer  []*call  // end the flights, with the outcome that stands in the call
	cancel  []*call  // end the creators' contexts, or ask for that after their rest
	lost    []lost   // tell that they were evicted
	vacated []*group // tell the actor so, in another turn
}
