package artefacts

import (
	"cmp"
	"container/list"
	"context"
	"errors"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/table"
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

// call is one call that was no hit, on its way through the actor to a flight and
// to that flight's end.
type call struct {
	Request
	cache *Cache
	kind  kind
	given []byte // a blob to load in place of Create; then neither that nor the store is asked
	// barred is why it cannot be stored, and bars the field that is at fault; empty = it can.
	barred fault.Reason
	bars   string
	placed
	answer
}

// placed are the hashes of the keys of a call, as the table places them.
type placed struct{ key, part, whole uint64 }

// placedBy gives them. That is user code: not in a turn.
func (r *Request) placedBy(t *table.Table[entry]) (p placed) {
	p.key = t.Hash(r.Key)
	if r.Part != "" {
		p.part = t.Hash(r.Part)
	}
	if r.Whole != "" {
		p.whole = t.Hash(r.Whole)
	}
	return p
}

// Ask brings the call through a turn, with a flight of its own that may fly.
func (k *call) Ask(ctx context.Context) (flight.Ticket[*node], error) {
	m := &making{call: k, began: k.cache.cfg.Now()}
	k.placed = k.placedBy(k.cache.table)
	var scope any = k.cache
	if k.kind == kernel { // it ends with the artefact that it is for
		scope = &k.cache.state.kernels
	} else {
		m.linger = max(0, cmp.Or(k.Linger, k.cache.cfg.Linger))
	}
	m.flight.Begin(ctx, scope, k.Key)
	a, err := actors.Ask(ctx, k.cache.ref, func(r actors.Reply[answer]) message {
		m.reply = r
		return asked{m}
	})
	if err != nil {
		return flight.Ticket[*node]{}, err
	}
	if k.answer = a; a.aboard == nil {
		return flight.Ticket[*node]{}, nil
	}
	return flight.Ticket[*node]{Flight: &a.aboard.flight, Late: a.late, Others: a.role == joined && a.aboard.call.given != nil}, nil
}

// Take pins what the flight made.
func (k *call) Take(n *node) { n.Value.cell.Pin() }

// Leave takes the caller off the flight that it was aboard of.
func (k *call) Leave(flight.Ticket[*node]) { k.cache.ref.Tell(left{k.aboard}) }

// failure says why a flight failed, to the caller that caused it.
func (k *call) failure(err error) Outcome {
	closed := errors.Is(err, fault.ErrClosed) // then the creator may still be at work
	if k.role == started && !closed && k.aboard.flight.Finished() {
		return Outcome{Reason: k.n.Value.origin.Reason, Field: k.n.Value.origin.Field}
	}
	if k.bars != "" {
		return Outcome{Reason: k.barred, Field: k.bars}
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

	// asked brings a call to its turn, and left takes one off the flight of a making.
	// landed brings the end of that.
	asked  struct{ *making }
	left   struct{ *making }
	landed struct{ *making }

	// expired is the end of a flight's linger time.
	expired struct{ *making }

	// resize, dropOwner and addFloor, which changes a tenant's floor, are sweeps.
	resize struct {
		entries, bytes limit.Limit
		set            bool
		ordered
	}
	dropOwner struct {
		owner string
		uses  uses // that it had when it was dropped
		ordered
	}
	addFloor struct {
		owner   string
		bytes   int64
		leaving *leaving // once it is, if it has no floor left
	}

	// offer and shrink are for the memory limit of the process.
	offer struct {
		nodes []*node
		reply actors.Reply[[]spare]
	}
	shrink struct {
		list  []spare
		bytes int64
		reply actors.Reply[pressure.Freed]
	}

	// settle asks for what is closed when the store writes that are under way in its turn
	// have ended.
	settle struct{ reply actors.Reply[chan struct{}] }

	// settling is closed when all writes up to the last have ended.
	settling struct {
		last uint64
		over chan struct{}
	}
	waking struct{} // the rest of those

	// saving is a store write under way.
	saving struct {
		number uint64
		at     *list.Element // in shell.saves
	}

	// stopping and closing are the two steps of a close: callers go, then artefacts.
	stopping struct{}
	closing  struct{}

	// saved and freed say that work off the turn has ended. The kernels of what was
	// freed are still pinned.
	saved struct{ *saving }
	freed struct{ kernels []*node }

	// ending says that n is to be freed, and which of its kernels have not learnt it yet.
	ending struct {
		n       *node
		kernels []*node
	}

	// told says that a listener, or the log, has been told of something.
	told struct{}

	// unleased says that the last lease of an evicted artefact has ended.
	unleased struct{ n *node }

	// idle says that a kernel may have lost its last user.
	idle struct{ n *node }
)

func (m asked) Fail(err error)   { m.reply.Fail(err) }
func (m *settle) Fail(err error) { m.reply.Fail(err) }
func (m *offer) Fail(err error)  { m.reply.Fail(err) }
func (m *shrink) Fail(err error) { m.reply.Fail(err) }
