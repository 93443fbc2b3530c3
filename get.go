package kiln

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Get gives the value of a name in a group. Where the name is absent it stands
// for the artefact of r.Key from then on: the one that any session has in memory,
// one that r.Load makes from a stored blob, or one that r.Make makes. However many
// callers ask for one key at a time, one of Make and Load runs (SPEC F1). The value
// is good until the group is closed; Acquire keeps it for longer.
//
// An error is that of Make, its PanicError or ErrGoexit, the context's, ErrCycle,
// ErrClosed, or ErrInvalid: the name or the artefact holds a value of another
// type, or the name stands for another key (SPEC G13). Nothing was kept then. A
// caller whose context ends leaves alone, and others get the value.
//
// A hit takes no lock and allocates nothing here, but the closures of a recipe
// are the caller's to make: Lookup asks without one.
func Get[T any](ctx context.Context, g *Group, name string, r Recipe[T], o ...Option) (T, error) {
	const op = "kiln: get"
	var zero T
	if g == nil {
		return zero, nilGroup(op)
	}
	set := settle(o)
	if r.Unhashable != "" {
		return alone(ctx, g, name, &r)
	}
	ref, ok := g.find(ctx, name, set.lane)
	if !ok {
		var err error
		if ref, err = g.ask(ctx, name, set, r.request(), is[T]); err != nil {
			return zero, err
		}
	}
	if key := ref.Key(); key != r.Key && key != "" {
		return zero, anotherKey(op, name, key, r.Key)
	}
	v, ok := as[T](ref.Value())
	if !ok {
		return zero, want[T](op, "name", name, ref.Value())
	}
	return v, nil
}

// is refuses an artefact of another type than T.
func is[T any](key string, v any) error {
	if _, ok := as[T](v); !ok {
		return want[T]("kiln: get", "artefact", key, v)
	}
	return nil
}

// find is a look-up of a name, by a way of its own while nobody listens.
func (g *Group) find(ctx context.Context, name string, lane Lane) (sessioncache.Ref, bool) {
	if g.listen == nil {
		return g.room.Lookup(name, lane)
	}
	start := time.Now()
	ref, ok := g.room.Lookup(name, lane)
	g.found(ctx, start, name, ref, ok)
	return ref, ok
}

// findID is find for an interned name.
func (g *Group) findID(id NameID) (sessioncache.Ref, bool) {
	if g.listen == nil {
		return g.room.LookupID(id)
	}
	start := time.Now()
	ref, ok := g.room.LookupID(id)
	g.found(context.Background(), start, id.String(), ref, ok)
	return ref, ok
}

// found tells of a hit. A look-up that found nothing answered nothing.
func (g *Group) found(ctx context.Context, start time.Time, name string, ref sessioncache.Ref, ok bool) {
	if ok {
		g.tell(start, Event{Context: ctx, Name: name, Key: ref.Key(), Kind: Hit, Cost: ref.Cost()}, artefacts.Outcome{}, nil)
	}
}

// ask has a name stand for the artefact of a request. fits refuses an artefact
// that the caller could not use, before the name stands for it.
func (g *Group) ask(ctx context.Context, name string, set options, q artefacts.Request, fits func(key string, v any) error) (sessioncache.Ref, error) {
	start := g.clock()
	var made, how artefacts.Outcome // made is the creator's, who may outlive this call
	ref, event, err := sessioncache.Ref{}, sessioncache.Event(""), g.prepare(&q)
	if err == nil {
		ref, event, err = g.room.Get(ctx, name, sessioncache.Options{Owner: set.owner, Lane: set.lane, Key: q.Key}, func(ctx context.Context) (sessioncache.Value, error) {
			lease, outcome, err := g.obtain(ctx, q)
			if err != nil {
				return sessioncache.Value{}, err
			}
			if err := fits(q.Key, lease.Value()); err != nil {
				lease.End()
				return sessioncache.Value{}, err
			}
			made = outcome
			return sessioncache.Value{Any: lease.Value(), Bytes: lease.Bytes(), Cost: lease.Cost(), Free: lease.End, Leased: true}, nil
		})
	}
	if err == nil && event == sessioncache.Miss {
		how = made // this call waited for its creator's end
	}
	g.tell(start, Event{Context: ctx, Name: name, Key: q.Key, Kind: Kind(event), Cost: ref.Cost()}, how, err)
	return ref, err
}

// alone makes an artefact whose key does not cover it, for this group alone (SPEC
// K6).
func alone[T any](ctx context.Context, g *Group, name string, r *Recipe[T]) (t T, err error) {
	start := g.clock()
	q := r.request()
	var how artefacts.Outcome
	var cost time.Duration
	if err = g.prepare(&q); err == nil {
		err = g.open()
	}
	if err == nil {
		var lease *artefacts.Lease
		if lease, how, err = g.obtain(ctx, q); err == nil {
			cost = lease.Cost()
			t, _ = as[T](lease.Value()) // it was made by this very recipe
			err = g.keep(lease)
		}
	}
	g.tell(start, Event{Context: ctx, Name: name, Key: q.Key, Kind: Miss, Cost: cost}, how, err)
	if err != nil {
		var zero T
		return zero, err
	}
	return t, nil
}

// prepare refuses a request that no cache could answer, and one that the store
// could not keep where there must be one.
func (g *Group) prepare(q *artefacts.Request) error {
	const op = "kiln: get"
	switch {
	case q.Key == "":
		return fault.Invalidf(op, "the recipe has no key: want the canonical key of the artefact, or use Set for a value without one")
	case q.Create == nil:
		return fault.Invalidf(op, "the recipe of %q has no Make: want the function that makes the artefact", q.Key)
	}
	q.Owner = g.session.owner
	_, err := g.session.runtime.storable(q)
	return err
}

// obtain asks the artefact cache.
func (g *Group) obtain(ctx context.Context, q artefacts.Request) (*artefacts.Lease, artefacts.Outcome, error) {
	r := g.session.runtime
	lease, how, err := r.artefacts.Get(ctx, q)
	if how.Event == artefacts.Miss && how.Reason == ReasonAbsent {
		if field, _ := r.storable(&q); field != "" {
			how.Reason, how.Field = ReasonDisabled, field // SPEC P17
		}
	}
	return lease, how, err
}
