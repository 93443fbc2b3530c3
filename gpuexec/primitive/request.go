package primitive

import (
	"context"
	"errors"
	"slices"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/fault"
)

// request is one request that was no hit. It holds nothing of its caller's data,
// since what runs for it may outlive the caller.
type request struct {
	engine     *Engine
	spec       Spec
	key        string      // of the primitive; empty if it has none
	unhashable string      // then the input to blame (SPEC K6)
	given      *Descriptor // nil, or what to make the primitive of
	shared     bool        // the descriptor came from a primitive; set before the flight ends
}

func (e *Engine) request(s *Spec) (*request, error) {
	r := &request{engine: e, spec: s.clone()}
	if !r.spec.Op.backward() {
		r.spec.Hints = nil
	}
	var buf [1024]byte
	enc, err := e.append(buf[:0], &r.spec)
	if err == nil {
		r.key = string(enc)
		return r, nil
	}
	var refused *fault.Error
	if errors.As(err, &refused) && refused.Reason == fault.KeyRefused {
		r.unhashable = refused.Field
		return r, nil
	}
	return nil, err
}

// asking is what the artefact cache is asked for; the key of one that has none
// is only printed.
func (r *request) asking(key string) artefacts.Request {
	if r.unhashable != "" {
		key = r.spec.Kind
	}
	return artefacts.Request{Key: key, Backend: r.engine.cfg.Backend, Unhashable: r.unhashable}
}

// alone is the key of the descriptor's own entry.
func (r *request) alone() string { return string(appendForm([]byte(r.key))) }

// descriptor brings a descriptor that was not resident.
func (r *request) descriptor(ctx context.Context) (*Descriptor, Origin, error) {
	if r.unhashable == "" {
		// Ahead of a flight of its own, which would take an entry's place.
		if d, err := r.engine.peek(ctx, r.key); d != nil || err != nil {
			return d, Shared, err
		}
	}
	q := r.asking(r.alone())
	q.Create = r.describe
	l, o, err := r.engine.cache.Get(ctx, q)
	if err != nil {
		return nil, "", err
	}
	defer l.End()
	d := pinned(l.Value()) // the entry's own pin is held by the lease
	switch {
	case o.Event != artefacts.Miss:
		return d, Cached, nil
	case r.shared:
		return d, Shared, nil
	}
	return d, Built, nil
}

// peek gives the descriptor of what is under a key, waiting for it if it is
// being made. The other side's failure is not this one's, nor is a circle, of
// two that wait for each other's descriptor: who is told of it builds. An error
// is the context's.
func (e *Engine) peek(ctx context.Context, key string) (*Descriptor, error) {
	l, _, err := e.cache.Peek(ctx, key)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, nil
	}
	if l == nil {
		return nil, nil
	}
	defer l.End()
	return pinned(l.Value()), nil
}

// describe is the creator of a descriptor's own entry.
func (r *request) describe(ctx context.Context) (artefacts.Built, error) {
	d, err := r.obtain(ctx, r.key)
	if err != nil {
		return artefacts.Built{}, err
	}
	return artefacts.Built{Value: d, Bytes: d.about.Bytes, Free: d.Release}, nil
}

// obtain gives the descriptor that the entry elsewhere has, or builds it.
func (r *request) obtain(ctx context.Context, elsewhere string) (*Descriptor, error) {
	if r.unhashable == "" {
		if d, err := r.engine.peek(ctx, elsewhere); d != nil || err != nil {
			r.shared = d != nil
			return d, err
		}
	}
	return r.build(ctx)
}

// build has the library describe the implementation of the request's number
// among those that are valid and not to be skipped (SPEC D1).
func (r *request) build(ctx context.Context) (*Descriptor, error) {
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
	return nil, end(&r.spec)
}
