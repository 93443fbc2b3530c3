package kiln

import (
	"context"
	"errors"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Set gives a name in a group a value of its own, without a key, in place of what
// it had: what a forward pass leaves for the backward pass. The value belongs to
// the group's session from the call on, whatever it returns: Made.Free runs once,
// after the last use. Made.Blob is not heeded. What Take gave keeps the key that it was
// made from (SPEC G13).
//
// ErrTooLarge: it is more than the session's capacity in bytes, or than the floors of
// other sessions leave of Config.SessionBytes; ErrClosed. Where it would fit but the others
// hold too much, the error is nil, and the value is found through this group alone, until
// that is closed (SPEC Q3).
func Set[T any](ctx context.Context, g *Group, name string, m Made[T], o ...Option) error {
	if g.none() {
		if m.Free != nil {
			m.Free()
		}
		return noGroup("kiln: set")
	}
	set := settle(o)
	err := g.room.Set(ctx, name, sessioncache.Value{Any: m.Value, Bytes: m.Bytes, Cost: m.Cost, Free: m.Free, Key: m.key, Leased: m.leased},
		sessioncache.Options{Owner: set.owner, Lane: set.lane})
	return failedOn("kiln: set", name, err)
}

// failedOn wraps an error of the room below, unless it is nil, with what was done to which
// name.
func failedOn(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fault.Error{Op: op, Key: name, Err: bare(err, name, name)}
}

// Take moves the value of a name out of its group: the name is absent afterwards,
// and the value is the caller's, who calls Made.Free once, or gives it to Set. What
// the value holds is released by that call, or later, by the last Lease on it and
// the Close of the last group through which it may have been seen. One of several
// callers at once gets it.
//
// ErrNotFound: the name is absent; ErrInvalid: it holds another type, and stays;
// ErrClosed.
func Take[T any](ctx context.Context, g *Group, name string, o ...Option) (Made[T], error) {
	const op = "kiln: take"
	if g.none() {
		return Made[T]{}, noGroup(op)
	}
	var other error // it holds another type; written before the answer
	v, err := g.room.Take(ctx, name, settle(o).lane, func(v any) bool {
		if _, ok := as[T](v); !ok {
			other = want[T](op, "name", name, v)
		}
		return other == nil
	})
	switch {
	case errors.Is(err, ErrInvalid) && other != nil:
		return Made[T]{}, other
	case err != nil:
		return Made[T]{}, failedOn(op, name, err)
	}
	t, _ := as[T](v.Any)
	return Made[T]{Value: t, Bytes: v.Bytes, Cost: v.Cost, Free: v.Free, key: v.Key, leased: v.Leased}, nil
}

// Remove removes a name from the group, and reports whether it was there. Its
// value is freed after its last use. A closed group has no names.
func (g *Group) Remove(name string, o ...Option) bool {
	return !g.none() && g.room.Remove(name, settle(o).lane)
}
