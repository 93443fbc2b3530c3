package kiln

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Get gives the value of a name in a group. If the name is absent, Get looks for the
// artefact of r.Key in memory, whichever session made it, then in the store (r.Load),
// and else runs r.Make. From then on the name stands for that artefact. However many
// callers ask for one key at a time, one of Make and Load runs (SPEC F1). The value
// is good until the group is closed; Acquire keeps it for longer. A name that Set has
// given a value is found as it is, whatever the key of the recipe.
//
// An error is that of Make, its PanicError or ErrGoexit, the context's, ErrCycle,
// ErrClosed, or ErrInvalid: the name or the artefact holds a value of another
// type, or the name stands for another key (SPEC G13). Nothing was kept then, but an
// artefact of another type has the name all the same. A caller whose context ends
// leaves alone, and others get the value.
//
// A hit takes no lock and allocates nothing here, but the closures of a recipe
// are the caller's to make: Lookup asks without one.
func Get[T any](ctx context.Context, g *Group, name string, r Recipe[T], o ...Option) (T, error) {
	var v T
	if g.none() {
		return v, noGroup(opGet)
	}
	if r.Unhashable != "" {
		return alone(ctx, g, name, &r, settle(o))
	}
	set, start := settle(o), g.clock()
	ref, ok := g.room.Lookup(name, set.lane)
	if !ok {
		ref, err := g.ask(ctx, start, name, set, g.session.runtime.announced(r.request()), is[T])
		if err == nil {
			v, _ = as[T](ref.Value())
		}
		return v, err
	}
	var err error
	if key := ref.Key(); key != r.Key && key != "" {
		err = anotherKey(opGet, name, key, r.Key)
	} else if v, ok = as[T](ref.Value()); !ok {
		err = want[T](opGet, "name", name, ref.Value())
	}
	if g.listen != nil {
		g.found(ctx, start, name, ref, err)
	}
	return v, err
}

const (
	opGet   = "kiln: get"
	opStore = "kiln: store"
)

// is refuses a value of another type than T.
func is[T any](what, name string, v any) error {
	if _, ok := as[T](v); !ok {
		return want[T](opGet, what, name, v)
	}
	return nil
}

// ask has a name stand for the artefact of a request. fits refuses what this caller
// cannot use: others who wait for the name may be able to.
func (g *Group) ask(ctx context.Context, start time.Time, name string, set options, q artefacts.Request, fits func(what, name string, v any) error) (sessioncache.Ref, error) {
	var made, how artefacts.Outcome // made is the creator's, who may outlive this call
	ref, event, err := sessioncache.Ref{}, sessioncache.Event(""), g.prepare(&q, set.linger)
	if err == nil {
		ref, event, err = g.room.Get(ctx, name, sessioncache.Options{Owner: set.owner, Lane: set.lane, Key: q.Key, Linger: q.Linger, Lingers: true}, func(ctx context.Context) (sessioncache.Value, error) {
			lease, outcome, err := g.session.runtime.artefacts.Get(ctx, q)
			if err != nil {
				return sessioncache.Value{}, err
			}
			made = outcome
			g.session.record.note(g, name, &q, lease.Cost())
			return sessioncache.Value{Any: lease.Value(), Bytes: lease.Bytes(), Cost: lease.Cost(), Free: lease.End, Leased: true}, nil
		})
	}
	switch {
	case err != nil:
		err = failed(name, &q, err)
	case event == sessioncache.Miss:
		how = made // this call waited for its creator's end
		err = fits("artefact", q.Key, ref.Value())
	default:
		err = fits("name", name, ref.Value())
	}
	g.tell(start, Event{Context: ctx, Name: name, Key: q.Key, Kind: Kind(event), Cost: ref.Cost()}, how, err)
	return ref, err
}

// failed is the error of a call that the rooms below gave, of which the caller knows none:
// instead of theirs it has the door's operation, and the key, backend and reason.
func failed(name string, q *artefacts.Request, err error) error {
	reason, field := fault.ReasonOf(err)
	return &fault.Error{Op: opGet, Key: cmp.Or(q.StoredKey, q.Key), Backend: q.Backend, Reason: reason, Field: field, Err: bare(err, name, q.Key)}
}

// bare is what the rooms below have said of an error, of which the caller knows none, left
// out.
func bare(err error, name, key string) error {
	for {
		layer, ok := err.(*fault.Error)
		if !ok || layer.Err == nil || layer.Key != "" && layer.Key != name && layer.Key != key {
			return err // of another key, which a creator asked for
		}
		if room, _, _ := strings.Cut(layer.Op, ":"); room != "sessioncache" && room != "artefacts" && room != "shapegroups" && layer.Op != opGet && layer.Op != opStore {
			return err
		}
		err = layer.Err
	}
}

// alone makes an artefact whose key does not cover it, for this group alone (SPEC
// K6).
func alone[T any](ctx context.Context, g *Group, name string, r *Recipe[T], set options) (t T, err error) {
	start := g.clock()
	q := g.session.runtime.announced(r.request())
	var how artefacts.Outcome
	var cost time.Duration
	if err = g.prepare(&q, set.linger); err == nil {
		err = g.open()
	}
	if err == nil {
		var lease *artefacts.Lease
		until, leave := g.session.within(ctx)
		lease, how, err = g.session.runtime.artefacts.Get(until, q)
		if err == nil {
			cost = lease.Cost()
			t, _ = as[T](lease.Value()) // it was made by this very recipe
			err = g.keep(lease)
		} else if context.Cause(until) == errSession && errors.Is(err, context.Canceled) {
			err = errSession
		}
		leave()
	}
	if err != nil {
		err = failed(name, &q, err)
	}
	g.tell(start, Event{Context: ctx, Name: name, Key: q.Key, Kind: Miss, Cost: cost}, how, err)
	if err != nil {
		var zero T
		return zero, err
	}
	return t, nil
}

// prepare refuses a request that no cache could answer.
func (g *Group) prepare(q *artefacts.Request, linger time.Duration) error {
	switch {
	case q.Key == "":
		return fault.Invalidf(opGet, "the recipe has no key: want the canonical key of the artefact, or use Set for a value without one")
	case q.Create == nil:
		return fault.Invalidf(opGet, "the recipe of %q has no Make: want the function that makes the artefact", q.Key)
	}
	q.Owner = g.session.owner
	r := g.session.runtime
	if q.Linger = cmp.Or(linger, r.cfg.Linger); r.cfg.Artefacts == nil { // a cache that is brought has a time of its own
		q.Linger = cmp.Or(q.Linger, lingering)
	}
	return nil
}
