package primitive

import (
	"context"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// making is one creator of an entry, on its way through the artefact cache.
type making struct {
	*request
	given  *Descriptor // nil, or what to make the primitive of
	origin Origin      // of the descriptor; for the flight's caller after its end
}

// describe is the creator of a descriptor's own entry.
func (m *making) describe(ctx context.Context) (artefacts.Built, error) {
	return entry(m.obtain(ctx, m.key))
}

// describeAlone is describe without waiting for anybody.
func (m *making) describeAlone(ctx context.Context) (artefacts.Built, error) {
	return entry(m.build(ctx))
}

// entry is what the artefact cache holds of a descriptor.
func entry(d *Descriptor, err error) (artefacts.Built, error) {
	if err != nil {
		return artefacts.Built{}, err
	}
	return d.request.engine.index.enters(d, artefacts.Built{Value: d, Bytes: d.about.Bytes}), nil
}

// create is the creator of a primitive's entry.
func (m *making) create(ctx context.Context) (artefacts.Built, error) {
	return m.compose(ctx, m.engine.cfg.Library.Create)
}

// load makes the entry from a blob.
func (m *making) load(ctx context.Context, blob []byte) (artefacts.Built, error) {
	return m.compose(ctx, func(ctx context.Context, d *Descriptor) (artefacts.Built, error) {
		return m.engine.loader.Load(ctx, d, blob)
	})
}

// obtain gives the descriptor that the entry elsewhere has, or that somebody holds still, or
// builds it.
func (m *making) obtain(ctx context.Context, elsewhere string) (*Descriptor, error) {
	if m.key != "" {
		if d := m.engine.peek(ctx, elsewhere); d != nil {
			m.origin = Shared
			return d, nil
		}
		if d := m.engine.index.held(m.key); d != nil {
			m.origin = Cached
			return d, nil
		}
	}
	return m.build(ctx)
}

// own gives the descriptor for a primitive, pinned: the one given, if its caller
// has not left and released it, or that of the descriptor's own entry, or a new
// one.
func (m *making) own(ctx context.Context) (*Descriptor, error) {
	if m.given != nil && m.given.cell.Pin() {
		m.engine.index.enter(m.given)
		return m.given, nil
	}
	return m.obtain(ctx, m.alone)
}

// compose brings the descriptor and what a library makes of it together. The
// primitive holds a pin of the descriptor from here to its own release.
func (m *making) compose(ctx context.Context, native func(context.Context, *Descriptor) (artefacts.Built, error)) (b artefacts.Built, err error) {
	d, err := m.own(ctx)
	if err != nil {
		return artefacts.Built{}, err
	}
	made := false
	defer func() { // the library may panic
		if !made {
			d.Release()
		}
	}()
	if b, err = native(ctx, d); err != nil {
		return artefacts.Built{}, err
	}
	b.Value = &Primitive{d, b.Value}
	if b.Bytes >= 0 { // else the cache refuses it
		b.Bytes += d.about.Bytes
	}
	made = true
	return m.engine.index.enters(d, b), nil
}
