package artefacts

import (
	"context"
	"errors"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/limit"
)

// message is what the actor takes.
type message interface{ handle(*shell) }

type kind uint8

const (
	normal kind = iota // the resident one, a flight, or a new flight
	lone               // a new flight that joins nothing and is not joined
	peek               // the resident one or a flight
	kernel             // as normal, in the kernel layer
)

// call is one call on its way through the actor.
type call struct {
	Request
	cache *Cache
	ctx   context.Context // for its values and the flight's identity; the caller's alone to wait on
	kind  kind
	given []byte // a blob to load in place of Create; then neither that nor the store is asked
	reply actors.Reply[ticket]
}

func (k *call) asking(r actors.Reply[ticket]) message {
	k.reply = r
	return k
}

// Fail answers a caller whose turn panicked.
func (k *call) Fail(err error) { k.reply.Fail(err) }

type role uint8

const (
	found   role = iota // ticket.n is resident and pinned for the caller
	started             // the caller has joined the flight that it caused
	joined              // the caller has joined another's flight
	late                // the flight takes nobody; wait for its end
	missing             // a peek found nothing
)

// ticket is the answer to a call.
type ticket struct {
	role   role
	n      *node
	flight *flight.Flight[*node] // kept here, since the node forgets it at its end
	reason fault.Reason
}

// failure says why the flight of this ticket failed, for the one who caused it.
func (t ticket) failure(err error) Outcome {
	closed := errors.Is(err, fault.ErrClosed) // then the creator may still be at work
	if t.role == started && !closed && t.flight.Finished() {
		return Outcome{Reason: t.n.Value.origin.Reason, Field: t.n.Value.origin.Field}
	}
	return Outcome{}
}

type (
	// drain lets the log of uses be read before it grows.
	drain struct{}

	// credited says that an owner has used n for the first time.
	credited struct {
		n     *node
		owner string
	}

	// forsaken says that the last waiter has left a flight.
	forsaken struct {
		n      *node
		flight *flight.Flight[*node]
		reply  actors.Reply[struct{}]
	}

	resize struct {
		entries, bytes limit.Limit
		reply          actors.Reply[struct{}]
	}

	dropOwner struct {
		owner string
		reply actors.Reply[struct{}]
	}

	// addFloor changes a tenant's floor.
	addFloor struct {
		owner string
		bytes int64
		reply actors.Reply[struct{}]
	}

	// offer and shrink are for the memory limit of the process.
	offer  struct{ reply actors.Reply[[]pressure.Item] }
	shrink struct {
		bytes int64
		tier  pressure.Tier
		reply actors.Reply[pressure.Freed]
	}

	// settle waits for the store writes that are under way in its turn.
	settle struct {
		left  int // of these
		reply actors.Reply[struct{}]
	}

	// saving is a store write under way.
	saving struct{ awaited []*settle }

	closing struct{}

	// jobEnded says that a lent goroutine has done its work.
	jobEnded struct {
		saved *saving
		freed []*node // their kernels are still pinned
	}

	// idle says that a kernel may have lost its last user.
	idle struct{ n *node }
)

func (m *forsaken) Fail(err error)  { m.reply.Fail(err) }
func (m *resize) Fail(err error)    { m.reply.Fail(err) }
func (m *dropOwner) Fail(err error) { m.reply.Fail(err) }
func (m *settle) Fail(err error)    { m.reply.Fail(err) }
func (m *addFloor) Fail(err error)  { m.reply.Fail(err) }
func (m *offer) Fail(err error)     { m.reply.Fail(err) }
func (m *shrink) Fail(err error)    { m.reply.Fail(err) }
