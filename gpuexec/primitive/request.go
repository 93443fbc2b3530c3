package primitive

import (
	"context"
	"errors"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// request is what was asked for, with hints only where they count, and its keys. It
// is immutable and holds nothing of its first caller's data, since what runs for it
// may outlive that.
type request struct {
	engine     *Engine
	spec       Spec
	key        string // of the primitive; empty if it has none
	alone      string // of the descriptor's own entry
	unhashable string // the input to blame for having no key (SPEC K6)

	primitive artefacts.Request // without an owner
}

func (e *Engine) request(s *Spec) (*request, error) {
	r := &request{engine: e, spec: s.clone()}
	var buf [1024]byte
	enc, err := e.append(buf[:0], &r.spec)
	if err == nil {
		r.key, r.alone = string(enc), string(appendForm(enc))
	} else if r.unhashable = unhashable(err); r.unhashable == "" {
		return nil, err
	}
	r.primitive = r.asking(r.key)
	r.primitive.Part = r.alone
	r.primitive.Create = func(ctx context.Context) (artefacts.Built, error) { return (&making{request: r}).create(ctx) }
	if r.unhashable != "" {
		return r, nil
	}
	stored, err := r.spec.append(buf[:0], false)
	if err != nil {
		return nil, err
	}
	r.primitive.StoredKey = string(stored) // without a Load a store is told of it (SPEC P17)
	blobs := false
	if err := guard.Guarded(func() error { blobs = e.loader != nil && e.loader.Blobs(&r.spec); return nil }); err != nil {
		return nil, fault.Wrap("primitive: describe", r.spec.Kind, "the library", err)
	}
	if blobs {
		r.primitive.Load = func(ctx context.Context, blob []byte) (artefacts.Built, error) {
			return (&making{request: r}).load(ctx, blob)
		}
	}
	return r, nil
}

// unhashable gives the input for which there is no key, if err is about one.
func unhashable(err error) string {
	var refused *fault.Error
	if errors.As(err, &refused) && refused.Reason == fault.KeyRefused {
		return refused.Field
	}
	return ""
}

// asking is what the artefact cache is asked for. Where there is no key, it has one
// that is only printed.
func (r *request) asking(key string) artefacts.Request {
	if r.unhashable != "" {
		key = r.spec.Kind
	}
	return artefacts.Request{Key: key, Backend: r.engine.cfg.Backend, Identity: &r.engine.cfg.Identity, Unhashable: r.unhashable}
}

// resident gives the descriptor, pinned, if it is in the cache.
func (r *request) resident() (*Descriptor, Origin) {
	if ref, ok := r.engine.cache.Lookup(r.key); ok {
		if d := pinned(ref.Value()); d != nil {
			return d, Shared
		}
	}
	if ref, ok := r.engine.cache.Lookup(r.alone); ok {
		return pinned(ref.Value()), Cached
	}
	return nil, ""
}

// descriptor brings a descriptor that was not resident.
func (r *request) descriptor(ctx context.Context) (*Descriptor, Origin, error) {
	if r.key != "" {
		// Ahead of a flight of its own, which would take an entry's place.
		if d := r.engine.peek(ctx, r.key); d != nil {
			return d, Shared, nil
		}
	}
	m := &making{request: r, origin: Built}
	q := r.asking(r.alone)
	q.Create, q.Whole = m.describe, r.key
	l, o, err := r.engine.cache.Get(ctx, q)
	if errors.Is(err, fault.ErrCycle) {
		// The entry's flight waits for a primitive whose creator waits for this.
		// A descriptor for this call alone need not.
		q.Create = m.describeAlone
		l, o, err = r.engine.cache.Force(ctx, q)
	}
	if err != nil {
		return nil, "", err
	}
	defer l.End()
	d := pinned(l.Value()) // the entry's own pin is held by the lease
	if o.Event == artefacts.Hit || o.Event == artefacts.NestedHit || o.Event == artefacts.Joined {
		return d, Cached, nil
	}
	return d, m.origin, nil // m is this call's own flight, and has ended
}

// peek gives the descriptor of what is under a key, or nil; it waits if that is
// being made. A failure of the other side is not the caller's. Nor is a circle of two
// that wait for each other's descriptor: the one that is told of it builds its own.
// What is made under ctx itself is not waited for in the first place.
func (e *Engine) peek(ctx context.Context, key string) *Descriptor {
	if flight.Within(ctx, e.cache, key) {
		return nil
	}
	l, _, err := e.cache.Peek(ctx, key)
	if err != nil || l == nil {
		return nil
	}
	defer l.End()
	return pinned(l.Value())
}

// pinned gives the descriptor that a cached value has, pinned for the caller, or
// nil if its last user has gone.
func pinned(value any) *Descriptor {
	var d *Descriptor
	switch v := value.(type) {
	case *Primitive:
		d = v.desc
	case *Descriptor:
		d = v
	}
	if d == nil || !d.cell.Pin() {
		return nil
	}
	return d
}

// build has the library describe the implementation of the request's number
// among those that are valid and not to be skipped (SPEC D1).
func (r *request) build(ctx context.Context) (d *Descriptor, err error) {
	whole := false
	defer func() { // the library may panic behind what it described, as its list ends
		if d != nil && !whole {
			d.Release()
		}
	}()
	position, id := -1, 0
	for impl, err := range r.engine.cfg.Library.Implementations(ctx, &r.spec) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		position++
		if slices.Contains(r.spec.Skip, position) || !impl.Accepts() {
			continue
		}
		if id < r.spec.Impl {
			id++
			continue
		}
		if d, err = r.describe(impl, position); err != nil {
			return nil, err
		}
		break
	}
	if whole = true; d == nil {
		return nil, end(&r.spec)
	}
	return d, nil
}

func (r *request) describe(impl Implementation, position int) (*Descriptor, error) {
	about, err := impl.Describe()
	if err != nil {
		return nil, err
	}
	if about.Bytes < 0 {
		if about.Free != nil {
			about.Free()
		}
		return nil, fault.Invalidf("primitive: describe", "%s: the library reported %d bytes: want 0 or more", r.spec.Kind, about.Bytes)
	}
	return newDescriptor(r, position, about), nil
}
