package sessioncache

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/shapegroups"
)

// View is an uncounted reference to a shape group, for readers that look up several
// names. It finds nothing once the group is evicted; that of a Group finds nothing once
// the Group is closed. The zero View is empty. Safe for concurrent use.
type View struct {
	g    *group
	over *atomic.Bool // it finds nothing any more: of a Group, which an evicted group goes on serving, or of g
}

// Resident reports whether the group is still registered.
func (g View) Resident() bool { return g.g != nil && !g.g.dead.Load() }

// Lookup looks up a name of one lane; lane 0 is the one that all workers share. It
// sees no name of another lane. It waits for nothing and allocates nothing.
func (g View) Lookup(name string, lane Lane) (Ref, bool) {
	if g.g == nil {
		return Ref{}, false
	}
	n := g.g.names.Lookup(name, uint64(lane))
	if n == nil || g.over.Load() { // in this order: else the value may be freed in between
		return Ref{}, false
	}
	return Ref{n}, true
}

// LookupID looks up a shared name by its id, without hashing.
func (g View) LookupID(id NameID) (Ref, bool) {
	if g.g == nil {
		return Ref{}, false
	}
	if s := g.g.slots.Load(); s != nil && id.of == g.g.of {
		if at := s.of(id.slot); at != nil {
			if n := at.Load(); n != nil && !g.over.Load() {
				return Ref{n}, true
			}
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
	hits    *cell  // of a tally of its group
	closed  atomic.Bool

	mu struct {
		sync.Mutex
		adopted map[*node]struct{} // values it uses that its group does not hold
	}
}

// Shape is the shape compiled, after bucketing.
func (h *Group) Shape() shapegroups.Shape { return h.g.shape }

// Close ends the lease on the group. Values seen through it may be freed from then
// on, some of them before Close returns. Where it was the only request for the group
// and nothing came of it, Close waits until the group has gone, 50 ms at most. Further
// calls do nothing.
func (h *Group) Close() {
	h.mu.Lock()
	closed, adopted := h.closed.Swap(true), h.mu.adopted
	h.mu.adopted = nil
	h.mu.Unlock()
	if closed {
		return
	}
	defer h.session.leave(h.g, h.phase) // also after a Free that ends its goroutine
	guard.Each(slices.Collect(maps.Keys(adopted)), unpin)
}

// adopt keeps a value alive until Close. It reports false if that has come
// already.
func (h *Group) adopt(n *node) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Load() {
		return false
	}
	if _, again := h.mu.adopted[n]; !again {
		n.Value.cell.Pin() // cannot fail: the caller holds another pin
		if h.mu.adopted == nil {
			h.mu.adopted = make(map[*node]struct{})
		}
		h.mu.adopted[n] = struct{}{}
	}
	return true
}

// Get gives the value of a name; if the name is absent, create makes it. However
// many callers ask for one shape, name and lane, one creator runs, and all get its
// value (SPEC F1); only Groups that are served apart may ask for two content keys. The value is good until the group is closed; pin it with
// Ref.Acquire to use it for longer. The event says how Get came by it.
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
	r, ok := h.View.Lookup(name, lane)
	if ok {
		h.hits.Add(1)
	}
	return r, ok
}

// Set puts a value under a name of the group and replaces what had the name. The
// session owns v whatever is returned. Set is no request. This Group sees the value
// in every case: where v does not fit beside what cannot go, the group is evicted
// and serves its open Groups. ErrTooLarge: v alone is above the byte capacity, and
// nothing was changed.
func (h *Group) Set(ctx context.Context, name string, v Value, o Options) error {
	if h.closed.Load() {
		h.session.discard(v)
		return failed("set", name, errGroup)
	}
	return h.session.put(ctx, h.g.shape, writing{group: h.g, name: name, options: o, value: v})
}

// Take removes a name and gives its value to the caller. The caller calls Free when
// done with it (Free is never nil here), or passes the value on to Set. No session
// counts the value's bytes any more. It is freed after that Free, after the last
// lease on it, and after the Close of each Group that may have seen it, this one
// included. ErrNotFound: there is no such name, or it has the value of a Group that is
// served apart, and that was taken there. ErrInvalid: fits, if it is not nil, says that
// the value is not one for the caller; it stays. If ctx ends during the call, the name
// may be gone; then its value is freed.
func (h *Group) Take(ctx context.Context, name string, lane Lane, fits func(value any) bool) (Value, error) {
	const op = "take"
	if h.closed.Load() {
		return Value{}, failed(op, name, errGroup)
	}
	n, err := h.take(ctx, name, lane, fits)
	if err != nil {
		return Value{}, failed(op, name, err)
	}
	e, once := &n.Value, new(sync.Once) // OnceFunc would make a panic of a Free that ends its goroutine
	return Value{Any: e.value, Bytes: e.bytes, Cost: e.cost, Key: e.key, Leased: e.lease, Free: func() { once.Do(func() { unpin(n) }) }}, nil
}

// take asks for the name. fits is asked beforehand, not in the turn, so that may find
// that another value has come meanwhile: then it is asked again.
func (h *Group) take(ctx context.Context, name string, lane Lane, fits func(any) bool) (*node, error) {
	for hash := h.g.of.placed(name); ; {
		seen, err := h.fitting(name, hash, lane, fits)
		if err != nil {
			return nil, err
		}
		n, err := actors.Ask(ctx, h.session.actor, func(r actors.Reply[*node]) message {
			return take{r, h.g, name, hash, lane, seen, fits != nil}
		})
		if n != nil || err != nil {
			return n, err
		}
	}
}

// fitting shows what a take would give to fits, if there are both. It pins it meanwhile:
// h holds nothing of the group that has taken the place of its own.
func (h *Group) fitting(name string, hash uint64, lane Lane, fits func(any) bool) (*node, error) {
	if fits == nil {
		return nil, nil
	}
	n := h.g.of.candidate(h.g, name, hash, lane)
	for n != nil && !n.Value.cell.Pin() { // freed: its group is not found any more, or h was closed
		if h.closed.Load() {
			return nil, errGroup
		}
		n = h.g.of.candidate(h.g, name, hash, lane)
	}
	if n == nil {
		return nil, nil
	}
	defer unpin(n)
	if !fits(n.Value.value) {
		return nil, fault.ErrInvalid
	}
	return n, nil
}

// Remove removes a name of the group and reports whether there was one. Its value
// is freed when nobody uses it any more.
func (h *Group) Remove(name string, lane Lane) bool {
	v, err := h.Take(context.Background(), name, lane, nil)
	if err != nil {
		return false
	}
	v.Free()
	return true
}

// miss rides to the value: one that is there by now, or one that a creator makes.
func (h *Group) miss(ctx context.Context, name string, o Options, create Create) (Ref, Event, error) {
	r := &rider{group: h, name: name, options: o, create: create, open: true}
	_, err := flight.Ride[*node](ctx, r)
	switch {
	case err != nil:
		return Ref{}, "", err
	case !r.open:
		return Ref{}, "", errGroup
	case r.ask.hit:
		h.hits.Add(1)
		return Ref{r.node}, Hit, nil
	case r.ask.other != nil:
		h.session.joined.Add(1)
		return Ref{r.node}, Joined, nil
	}
	return Ref{r.node}, Miss, nil
}

// rider is one call of Get that found nothing, see flight.Ride. The first ask is
// part of it, so that it costs one allocation.
type rider struct {
	group   *Group
	name    string
	options Options
	create  Create

	ask   *ask // the last one
	node  *node
	open  bool // the group was, when the value came
	first ask
}

// Ask sends a new ask: its answer is what happens to its flight.
func (r *rider) Ask(ctx context.Context) (flight.Ticket[*node], error) {
	h, s := r.group, r.group.session
	switch {
	case s.closed.Load():
		return flight.Ticket[*node]{}, errClosed
	case h.closed.Load():
		return flight.Ticket[*node]{}, errGroup
	}
	if r.ask == nil {
		r.ask = &r.first
	} else {
		r.ask = new(ask) // the actor may still look at the one before
	}
	a := r.ask
	a.session, a.create = s, r.create
	a.call = call{of: a, group: h.g, name: r.name, hash: h.g.names.Hash(r.name), options: r.options,
		linger: max(0, cmp.Or(r.options.Linger, s.linger))}
	if r.options.Lingers {
		a.call.own = a.call.linger
	}
	a.flight.Begin(ctx, s, r.name)
	a.flight.Start()
	if !s.do(a) {
		a.flight.GetOff()
		return flight.Ticket[*node]{}, errClosed
	}
	return flight.Ticket[*node]{Flight: &a.flight}, nil
}

// Take keeps a value alive until the group is closed. Its own names it holds
// anyway.
func (r *rider) Take(n *node) {
	r.node = n
	if n.Value.loose || n.Value.group != r.group.g {
		r.open = r.group.adopt(n)
	}
}

// Leave says that the caller has gone.
func (r *rider) Leave(flight.Ticket[*node]) { r.group.session.send(left{ask: r.ask}) }

// run is the creator's goroutine.
func (a *ask) run() {
	guard.Guard(func() (err error) {
		a.value, err = a.create(a.flight.Context())
		return err
	}, func(err error) {
		a.flight.Settle()
		a.ended, a.failed = true, err
		a.session.actor.Do(a, nil) // the actor does not stop while a creator runs
	})
}
