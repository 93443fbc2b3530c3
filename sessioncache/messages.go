package sessioncache

import (
	"context"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/shapegroups"
)

// message is what the session's actor takes. Those with a Reply are answered in
// their turn, but for closing and reset, whose answer may follow.
type message interface{ Fail(error) }

// silent is the Fail of a message that nobody waits for.
type silent struct{}

func (silent) Fail(error) {}

// admitted is a group whose grace was entered on behalf of the asker.
type admitted struct {
	group *group
	phase uint32
}

// acquire asks for the group of a shape that was not resident a moment ago.
type acquire struct {
	actors.Reply[admitted]
	use   *asked
	sifts int // see state.sifted
	turns int // see state.roomy
}

func (m acquire) Fail(err error) { m.Reply.Fail(err) }

// write is a Set on its way.
type write struct {
	actors.Reply[struct{}]
	writing
	taken atomic.Bool // the value has its owner: the turn, or Set that gave up before it
}

// take makes the caller answer for the value. It reports false if another does.
func (m *write) take() bool { return m.taken.CompareAndSwap(false, true) }

func (m *write) Fail(err error) { m.Reply.Fail(err) }

// ask is one asking of a Get whose name was absent a moment ago. It brings a
// flight and rides on that alone: either the flight becomes the one of its name,
// or it ends at once with the value that is there, or refers to another flight.
type ask struct {
	call
	session *Session
	flight  flight.Flight[*node]
	create  Create

	// Set by the creator before the ask is sent a second time, as its end.
	ended  bool
	value  Value
	failed error
}

func (m *ask) Fail(err error) { m.flight.Finish(nil, err, nil) }

// left says that the caller of an ask has gone before its end.
type left struct {
	silent
	ask *ask
}

// expired says that the linger time of a flight has ended.
type expired struct {
	silent
	flight *call
}

// vacated says that the last handle of a phase of a group's grace was closed. Close
// waits for the answer, if a Reply is there.
type vacated struct {
	actors.Reply[struct{}]
	group *group
}

func (m vacated) Fail(err error) { m.Reply.Fail(err) }

// take is Take: the answer is pinned for the asker.
type take struct {
	actors.Reply[*node]
	group *group
	name  string
	hash  uint64 // of name, as tables place it
	lane  Lane
	seen  *node // what it found before
	only  bool  // that, and nothing else: nil is the answer where there is another
}

func (m take) Fail(err error) { m.Reply.Fail(err) }

// drain says that a segment of noted uses is full.
type drain struct{ silent }

type hold struct {
	silent
	owner string
}

type announce struct {
	silent
	shapes []shapegroups.Shape
}

// reset is Reset of one owner, or of all if owner is empty: that is answered
// when what it released has been freed. It comes again until it is done.
type reset struct {
	actors.Reply[struct{}]
	owner string
	all   []*group // of all: those that were registered before the call
	left  *clearing
}

func (m reset) Fail(err error) { m.Reply.Fail(err) }

// resize is SetGroups and SetBytes: the one that is given. It comes again until there
// is no surplus.
type resize struct {
	actors.Reply[struct{}]
	groups, bytes Limit
	set           bool
	sifts         int // see state.surplus
}

func (m resize) Fail(err error) { m.Reply.Fail(err) }

type intern struct {
	actors.Reply[NameID]
	name string
	hash uint64 // of name, as tables place it
}

func (m intern) Fail(err error) { m.Reply.Fail(err) }

// looking runs a function in a turn, for statistics that only the actor knows.
type looking struct {
	actors.Reply[struct{}]
	at func(*state)
}

func (m looking) Fail(err error) { m.Reply.Fail(err) }

// save is SavePolicy. It comes again until all is copied.
type save struct {
	actors.Reply[*policy.Snapshot]
	of *policy.Snapshot // nil until it begins
}

func (m save) Fail(err error) { m.Reply.Fail(err) }

// roomMade is a write or the end of a creator that waited for other sessions to
// make room for its value. The claim says whether they did.
type roomMade struct {
	silent
	held  any // *writing or *call
	claim *pool.Claim
}

// give asks for bytes of the pool that another session needs. It comes again until they
// are given.
type give struct {
	gift  pool.Gift
	given int64
	turns int // see state.give
}

func (m give) Fail(error) { m.gift.Answered() }

// shrink asks for bytes that the process has to do without. It is answered when the
// groups that were evicted for it have been freed.
type shrink struct {
	actors.Reply[shrunk]
	bytes int64
	tier  pressure.Tier
	turns *int // of all that one call sends, see state.give
}

func (m shrink) Fail(err error) { m.Reply.Fail(err) }

type shrunk struct {
	pressure.Freed
	more bool // may follow by a further shrink
}

// closing ends the session; emptying, which comes again until all is gone, empties it.
// drained is called when no creator runs.
type closing struct{ actors.Reply[struct{}] }

func (m closing) Fail(err error) { m.Reply.Fail(err) }

type emptying struct {
	silent
	left    *clearing
	drained context.CancelFunc
}
