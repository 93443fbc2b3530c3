package kiln

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
)

// Lookup gives the value of a name that is there, of type T. It takes no lock,
// makes nothing, waits for nothing and allocates nothing. The value is good until
// the group is closed. It reports false if the name is absent, holds a value of
// another type, or the group was closed.
func Lookup[T any](g *Group, name string, o ...Option) (T, bool) {
	_, v, ok := look[T](g, name, o)
	return v, ok
}

// LookupID is Lookup of a shared name by the id that Session.Intern gave for it,
// at a fraction of the cost: the name is not hashed, and Stats counts no hit. A
// listener is told of it all the same.
func LookupID[T any](g *Group, id NameID) (T, bool) {
	_, v, ok := lookID[T](g, id)
	return v, ok
}

func look[T any](g *Group, name string, o []Option) (ref sessioncache.Ref, v T, ok bool) {
	if g.none() {
		return ref, v, false
	}
	start := g.clock()
	if ref, ok = g.room.Lookup(name, settle(o).lane); ok {
		v, ok = as[T](ref.Value())
	}
	if ok && g.listen != nil {
		g.found(context.Background(), start, name, ref, nil)
	}
	return ref, v, ok
}

func lookID[T any](g *Group, id NameID) (ref sessioncache.Ref, v T, ok bool) {
	if g.none() {
		return ref, v, false
	}
	start := g.clock()
	if ref, ok = g.room.LookupID(id); ok {
		v, ok = as[T](ref.Value())
	}
	if ok && g.listen != nil {
		g.found(context.Background(), start, id.String(), ref, nil)
	}
	return ref, v, ok
}

// Ref is a held reference to the value of a name: it may be kept and copied at
// will, for longer than the group, and keeps nothing alive. Checking it is the
// fastest hit there is. The zero Ref refers to nothing. Safe for concurrent use.
//
//	if !ref.Resident() {
//		ref, ok = kiln.Refer[*Program](group, id) // look again
//	}
type Ref[T any] struct {
	at    sessioncache.Ref
	value T
}

// Refer gives a reference to the value of an interned name that is there. It is a
// look-up like LookupID.
func Refer[T any](g *Group, id NameID) (Ref[T], bool) {
	at, v, ok := lookID[T](g, id)
	if !ok {
		return Ref[T]{}, false
	}
	return Ref[T]{at, v}, true
}

// Resident reports whether a look-up would still find this value: two atomic loads.
func (r Ref[T]) Resident() bool { return r.at.Resident() }

// Value is the value, resident or not. What it holds outside of Go's memory is
// good while a group through which it was seen is open, or a Lease on it: before
// use without either, Acquire it.
func (r Ref[T]) Value() T { return r.value }

// Bytes is what the value was said to hold.
func (r Ref[T]) Bytes() int64 { return r.at.Bytes() }

// Cost is what the value took to make.
func (r Ref[T]) Cost() time.Duration { return r.at.Cost() }

// Acquire pins the value until the lease's End. It reports false if the value was
// freed, or is about to be: then look again.
func (r Ref[T]) Acquire() (*Lease[T], bool) {
	l, ok := r.at.Acquire()
	if !ok {
		return nil, false
	}
	return &Lease[T]{at: l, value: r.value}, true
}

// Lease is the right to use a value until End, whatever is closed, evicted or
// overwritten meanwhile. Safe for concurrent use.
type Lease[T any] struct {
	at    *sessioncache.Lease
	value T
}

// Acquire gives a lease on the value of a name that is there. It outlives the
// group: the value is good until the lease's End. It reports false where Lookup
// does.
func Acquire[T any](g *Group, name string, o ...Option) (*Lease[T], bool) {
	at, v, ok := look[T](g, name, o)
	if !ok {
		return nil, false
	}
	return Ref[T]{at, v}.Acquire()
}

// Value is the leased value; not to be used after End.
func (l *Lease[T]) Value() (v T) {
	if l != nil {
		v = l.value
	}
	return v
}

// End gives the lease up. If the value has no other use and is no longer resident,
// it is freed before End returns. A group through which it was seen is a use until
// its close is noticed, soon after Close returned. Further calls do nothing.
func (l *Lease[T]) End() {
	if l != nil && l.at != nil {
		l.at.End()
	}
}
