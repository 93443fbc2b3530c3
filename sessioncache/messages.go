package sessioncache

import (
	"context"
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
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
	use *asked
}

func (m acquire) Fail(err error) { m.Reply.Fail(err) }

// write is Set: by a shape, or into the group of a handle.
type write struct {
	actors.Reply[struct{}]
	use     *asked // nil if group is there
	group   *group
	name    string
	options Options
	value   Value
	taken   atomic.Bool // the value has its owner: the turn, or Set that gave up before it
	claimed bool        // it has waited for others to make room
}

// shape is the compiled one.
func (m *write) shape() shapegroups.Shape {
	if m.group != nil {
		return m.group.shape
	}
	return m.use.compiled
}

// take makes the caller the one who answers for the value.
func (m *write) take() bool { return m.taken.CompareAndSwap(false, true) }

func (m *write) Fail(err error) { m.Reply.Fail(err) }

// ask is one call of Get whose name was absent a moment ago. It brings
// a flight of its own and waits on that alone: either the flight becomes the one
// of its name, or it ends at once and says what to do instead. One allocation
// serves the request, the creator's result and the outcome.
type ask struct {
	session *Session
	flight  flight.Flight[*ask]
	group   *group // of the handle
	name    string
	hash    uint64 // of name, as tables place it
	options Options
	create  Create

	next *ask // of those running with the same hash; the actor's

	// Set by the creator before the ask is sent a second time, as its end.
	ended  bool
	value  Value
	failed error

	// Set by the actor before the flight ends.
	node     *node // pinned for the flight
	loose    bool  // no group holds it
	hit      bool
	other    *ask // join this one's flight
	deserted bool // or rather wait for its end and ask again
	err      error
	answered bool // the flight has ended
	void     bool // cleared or overwritten meanwhile: not to be kept (SPEC F7)
	forsaken bool // all callers have left; its creator may still run

	taken   bool // the waiter has seen the outcome; ordered by the flight
	claimed bool // the value has waited for others to make room
}

func (m *ask) Fail(err error) { m.flight.Finish(nil, err, nil) }

// at is the place of its flight.
func (m *ask) at() uint64 { return flightHash(m.group.at.Hash(), m.hash) }

func flightHash(shape, name uint64) uint64 { return bits.RotateLeft64(shape, 32) ^ name }

// flights are the asks whose creators run, one a key (SPEC F1): chains by the
// hashes that their groups and names have in the tables anyway.
type flights map[uint64]*ask

func (f flights) find(at uint64, shape shapegroups.Shape, name string, lane Lane) *ask {
	a := f[at]
	for a != nil && (a.group.shape != shape || a.name != name || a.options.Lane != lane) {
		a = a.next
	}
	return a
}

// add enters one whose key has none.
func (f flights) add(a *ask) {
	at := a.at()
	a.next = f[at]
	f[at] = a
}

// remove takes one out, if it is there.
func (f flights) remove(a *ask) {
	at := a.at()
	first := f[at]
	switch {
	case first == a && a.next == nil:
		delete(f, at)
	case first == a:
		f[at] = a.next
	default:
		for b := first; b != nil; b = b.next {
			if b.next == a {
				b.next = a.next
			}
		}
	}
	a.next = nil
}

func (f flights) all() iter.Seq[*ask] {
	return func(yield func(*ask) bool) {
		for _, a := range f {
			for ; a != nil; a = a.next {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// vacated says that a phase of a group's grace lost its last handle. The one
// who closed it waits for the answer, if a Reply is there.
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
	lane  Lane
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
// when what it released has been freed.
type reset struct {
	actors.Reply[struct{}]
	owner string
}

func (m reset) Fail(err error) { m.Reply.Fail(err) }

// resize is SetGroups and SetBytes: the one that is given.
type resize struct {
	actors.Reply[struct{}]
	groups, bytes Limit
}

func (m resize) Fail(err error) { m.Reply.Fail(err) }

type intern struct {
	actors.Reply[NameID]
	name string
}

func (m intern) Fail(err error) { m.Reply.Fail(err) }

// look runs a function in a turn, for statistics that only the actor knows.
type look struct {
	actors.Reply[struct{}]
	at func(*state)
}

func (m look) Fail(err error) { m.Reply.Fail(err) }

// roomMade is a write or the end of a creator that waited for other sessions to
// make room for its value. The claim says whether they did.
type roomMade struct {
	silent
	held  message
	claim *pool.Claim
}

// give asks for bytes of the pool that another session needs.
type give struct{ gift pool.Gift }

func (m give) Fail(error) { m.gift.Answered() }

// shrink asks for bytes that the process has to do without. It is answered when
// what went has been freed.
type shrink struct {
	actors.Reply[pressure.Freed]
	bytes int64
	tier  pressure.Tier
}

func (m shrink) Fail(err error) { m.Reply.Fail(err) }

// closing empties the session; drained is closed when no creator runs.
type closing struct {
	silent
	drained context.CancelFunc
}
