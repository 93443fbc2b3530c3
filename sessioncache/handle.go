package sessioncache

import (
	"context"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/shapegroups"
)

// View is an uncounted reference to a shape group, for readers that look up
// several names. Once the group is evicted it finds nothing. The zero View is
// empty. Safe for concurrent use.
type View struct {
	g    *group
	held bool // by a Group: an evicted group goes on serving
}

// Resident reports whether the group is still registered.
func (g View) Resident() bool { return g.g != nil && !g.g.dead.Load() }

// Lookup looks up a name of one lane, or with lane 0 one that all lanes share. It
// sees no other lane's.
func (g View) Lookup(name string, lane Lane) (Ref, bool) {
	if g.g == nil {
		return Ref{}, false
	}
	n := g.g.names.Lookup(name, uint64(lane))
	if n == nil || !g.held && g.g.dead.Load() {
		return Ref{}, false
	}
	return Ref{n}, true
}

// LookupID looks up a shared name by its id, without hashing.
func (g View) LookupID(id NameID) (Ref, bool) {
	if g.g == nil {
		return Ref{}, false
	}
	if s := g.g.slots.Load(); s != nil && id.of == g.g.of && uint(id.slot) < uint(len(s.at)) {
		if n := s.at[id.slot].Load(); n != nil && (g.held || !g.g.dead.Load()) {
			return Ref{n}, true
		}
	}
	return g.Lookup(id.name, 0)
}

// Group is a lease on a shape group from one request. Close it when the
// request is done. Safe for concurrent use; Close must come last.
type Group struct {
	View
	session *Session
	phase   uint32 // of the grace it entered
	stripe  uint32 // where its hits are counted

	mu struct {
		sync.Mutex
		closed  bool
		adopted []*node // values it uses that its group does not hold
	}
}

// Shape is the shape compiled, after bucketing.
func (h *Group) Shape() shapegroups.Shape { return h.g.shape }

// Close ends the lease. Further calls do nothing.
func (h *Group) Close() {
	h.mu.Lock()
	closed, adopted := h.mu.closed, h.mu.adopted
	h.mu.closed, h.mu.adopted = true, nil
	h.mu.Unlock()
	if closed {
		return
	}
	for _, n := range adopted {
		if n.Value.cell.Drop() {
			h.g.of.bin.now(n)
		}
	}
	h.session.leave(h.g, h.phase)
}

// adopt keeps a value alive until Close. It reports false if that has come
// already: then the pin is given back.
func (h *Group) adopt(n *node) bool {
	n.Value.cell.Pin() // cannot fail: who calls holds another pin
	h.mu.Lock()
	open := !h.mu.closed
	if open {
		h.mu.adopted = append(h.mu.adopted, n)
	}
	h.mu.Unlock()
	if !open && n.Value.cell.Drop() {
		h.g.of.bin.now(n)
	}
	return open
}

// Get gives the value of a name, having create make it if it is absent.
// Of concurrent callers for one shape, name and lane one creator runs, and all
// get its value (SPEC F1). The value is good until the handle is closed; pin it
// with Acquire to use it for longer.
//
// An error is the creator's own, its PanicError or ErrGoexit, the context's,
// ErrCycle, ErrClosed or ErrInvalid; nothing was kept then. A value that does
// not fit the byte capacity is given all the same, and not kept.
func (h *Group) Get(ctx context.Context, name string, o Options, create Create) (Ref, Event, error) {
	if r, ok := h.Lookup(name, o.Lane); ok {
		return r, Hit, nil
	}
	const op = "get or create"
	if err := checkName(op, name); err != nil {
		return Ref{}, "", err
	}
	if create == nil {
		return Ref{}, "", fault.Invalidf(room+op, "no creator for %q: use Get to look a name up", name)
	}
	r, event, err := h.miss(ctx, name, o, create)
	return r, event, failed(op, name, err)
}

// Lookup is Get for a name that is there: it counts the hit, and spares
// whoever has to make one a creator.
func (h *Group) Lookup(name string, lane Lane) (Ref, bool) {
	r, ok := h.View.Lookup(name, lane)
	if ok {
		h.session.hits[h.stripe].Add(1)
	}
	return r, ok
}

// miss asks the actor, until the name is there or its creator has ended.
func (h *Group) miss(ctx context.Context, name string, o Options, create Create) (Ref, Event, error) {
	s := h.session
	for {
		if err := ctx.Err(); err != nil {
			return Ref{}, "", err
		}
		if s.closed.Load() {
			return Ref{}, "", ErrClosed
		}
		a := &ask{session: s, group: h.g, name: name, hash: h.g.names.Hash(name), options: o, create: create}
		a.flight.Begin(ctx, s, name)
		a.flight.Start()
		if !s.send(a) {
			a.flight.Leave()
			return Ref{}, "", ErrClosed
		}
		n, event, err := h.wait(ctx, a)
		if err != nil || n != nil {
			return Ref{n}, event, err
		}
	}
}

// wait waits for the outcome of an ask. Neither node nor error: ask again.
func (h *Group) wait(ctx context.Context, a *ask) (n *node, event Event, err error) {
	open := true
	take := func(end *ask) {
		if end.node == nil { // it says to join another flight
			return
		}
		n = end.node
		if end.loose || end.group != h.g {
			open = h.adopt(n)
		}
	}
	err = a.flight.Wait(ctx, func(end *ask) {
		end.taken = true
		take(end)
	})
	if err != nil {
		return nil, "", err
	}
	event = Miss
	switch {
	case a.hit:
		event = Hit
		h.session.hits[h.stripe].Add(1)
	case a.deserted:
		return nil, "", a.other.flight.WaitEnd(ctx)
	case a.other != nil:
		event = Joined
		if err := a.other.flight.Wait(ctx, take); err != nil {
			return nil, "", err
		}
		h.session.joined.Add(1)
	}
	if !open {
		return nil, "", ErrClosed
	}
	return n, event, nil
}

// release is what a flight's end leaves to do once nobody looks at it any more.
func release(a *ask) {
	switch {
	case a.node != nil:
		if a.node.Value.cell.Drop() {
			a.session.bin.throw(trash{node: a.node})
		}
	case a.other != nil && !a.deserted && !a.taken: // joined for a caller who has left
		a.other.flight.Leave()
	}
}

// run is the creator's goroutine.
func (a *ask) run() {
	guard.Guard(func() (err error) {
		a.value, err = a.create(a.flight.Context())
		return err
	}, func(err error) {
		a.ended, a.failed = true, err
		a.session.actor.Tell(a) // the actor does not stop while a creator runs
	})
}
