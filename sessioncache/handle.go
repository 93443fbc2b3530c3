package sessioncache

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
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

// Group is a lease on a shape group from one request. Close it when the request
// is done: from then on its look-ups find nothing, and all else is ErrClosed. Safe
// for concurrent use; what a call that overlaps Close returns may be freed.
type Group struct {
	View
	session *Session
	phase   uint32 // of the grace it entered
	stripe  uint32 // where its hits are counted
	closed  atomic.Bool

	mu struct {
		sync.Mutex
		adopted []*node // values it uses that its group does not hold
	}
}

// Shape is the shape compiled, after bucketing.
func (h *Group) Shape() shapegroups.Shape { return h.g.shape }

// Close ends the lease. Further calls do nothing.
func (h *Group) Close() {
	h.mu.Lock()
	closed, adopted := h.closed.Swap(true), h.mu.adopted
	h.mu.adopted = nil
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
	open := !h.closed.Load()
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
	const op = "get"
	if r, ok := h.Lookup(name, o.Lane); ok {
		if o.Key != "" {
			if err := another(op, name, r.at.Value.key, o.Key); err != nil {
				return Ref{}, "", err
			}
		}
		return r, Hit, nil
	}
	if err := checkName(op, name); err != nil {
		return Ref{}, "", err
	}
	if create == nil {
		return Ref{}, "", fault.Invalidf(room+op, "no creator for %q: use Lookup to look a name up", name)
	}
	r, event, err := h.miss(ctx, name, o, create)
	if err == nil {
		err = another(op, name, r.at.Value.key, o.Key)
	}
	if err != nil {
		return Ref{}, "", failed(op, name, err)
	}
	return r, event, nil
}

// Lookup gives the value of a name that is there, and counts a hit. The value is
// good until the group is closed. It creates nothing and waits for nothing.
func (h *Group) Lookup(name string, lane Lane) (Ref, bool) {
	return h.found(h.View.Lookup(name, lane))
}

// LookupID is Lookup for an interned name: it costs no hash, and counts no hit.
func (h *Group) LookupID(id NameID) (Ref, bool) {
	r, ok := h.View.LookupID(id)
	if ok && h.closed.Load() {
		return Ref{}, false
	}
	return r, ok
}

// found passes on what was found before the group was closed.
func (h *Group) found(r Ref, ok bool) (Ref, bool) {
	if !ok || h.closed.Load() {
		return Ref{}, false
	}
	h.session.hits[h.stripe].Add(1)
	return r, true
}

// Set puts a value under a name of the group, in place of what had the name. The
// session owns v whatever is returned. It is no request, and the group stays the
// one that this handle sees: where v does not fit, the group is evicted and serves
// its open handles. ErrTooLarge: v is above the byte capacity, nothing was changed.
func (h *Group) Set(ctx context.Context, name string, v Value, o Options) error {
	if h.closed.Load() {
		h.session.discard(v)
		return failed("set", name, ErrClosed)
	}
	return h.session.put(ctx, &write{group: h.g, name: name, options: o, value: v})
}

// Take removes a name and gives its value to the caller, who calls Free when done
// with it (it is never nil here) or passes the value on to Set. The value is the
// caller's at once, and no session counts its bytes. What Free does is put off
// while a lease on the value has not ended and while a group is open that may have
// seen it, this one included. ErrNotFound: there is no such name. If ctx ends
// during the call, the name may be gone; its value is freed then.
func (h *Group) Take(ctx context.Context, name string, lane Lane) (Value, error) {
	const op = "take"
	if h.closed.Load() {
		return Value{}, failed(op, name, ErrClosed)
	}
	n, err := actors.Ask(ctx, h.session.actor, func(r actors.Reply[*node]) message { return take{r, h.g, name, lane} })
	if err != nil {
		return Value{}, failed(op, name, err)
	}
	e := &n.Value
	return Value{Any: e.value, Bytes: e.bytes, Cost: e.cost, Key: e.key, Leased: e.lease, Free: sync.OnceFunc(func() {
		if e.cell.Drop() {
			e.group.of.bin.now(n)
		}
	})}, nil
}

// Remove removes a name of the group and reports whether there was one. Its value
// is freed when nobody uses it any more.
func (h *Group) Remove(name string, lane Lane) bool {
	v, err := h.Take(context.Background(), name, lane)
	if err != nil {
		return false
	}
	v.Free()
	return true
}

// miss asks the actor, until the name is there or its creator has ended.
func (h *Group) miss(ctx context.Context, name string, o Options, create Create) (Ref, Event, error) {
	s := h.session
	for {
		if err := ctx.Err(); err != nil {
			return Ref{}, "", err
		}
		if s.closed.Load() || h.closed.Load() {
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
