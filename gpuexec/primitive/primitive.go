package primitive

import (
	"context"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/fault"
)

// Primitive is a compiled operation with its descriptor, immutable and shared by
// all who asked for the same. It is used under a Lease.
type Primitive struct {
	desc   *Descriptor
	native any
}

// Descriptor is the primitive's own; it lives as long as the lease. Who wants it
// longer asks the Engine for it.
func (p *Primitive) Descriptor() *Descriptor { return p.desc }

// Native is the library's own object.
func (p *Primitive) Native() any { return p.native }

// Lease is the right to use a primitive until End. Safe for concurrent use.
type Lease struct{ *artefacts.Lease }

// Primitive is what is leased; not to be used after End.
func (l Lease) Primitive() *Primitive { return l.Value().(*Primitive) }

// Primitive gives a lease on the primitive of a request, for an owner (SPEC C10)
// or, with an empty name, nobody in particular. The outcome is that of
// artefacts.Cache.Get, and a descriptor that is there or being built is taken.
// Errors as in Descriptor.
func (e *Engine) Primitive(ctx context.Context, s *Spec, owner string) (Lease, artefacts.Outcome, error) {
	r, err := e.primitive(s)
	if err != nil {
		return Lease{}, artefacts.Outcome{}, err
	}
	return r.primitive(ctx, owner)
}

// Make is Primitive for the request of a descriptor of this engine, and needs
// neither its key nor its descriptor made again. The descriptor stays the
// caller's to release.
func (e *Engine) Make(ctx context.Context, d *Descriptor, owner string) (Lease, artefacts.Outcome, error) {
	if d.engine != e {
		return Lease{}, artefacts.Outcome{}, fault.Invalidf("primitive: make", "the descriptor is another engine's: want one of this engine")
	}
	if d.key == "" {
		return e.Primitive(ctx, &d.spec, owner)
	}
	r := &request{engine: e, spec: d.spec, key: d.key, given: d}
	return r.primitive(ctx, owner)
}

// FromBlob is Primitive with a blob in place of a build; see
// artefacts.Cache.FromBlob. ErrUnsupported if the library has no blobs.
func (e *Engine) FromBlob(ctx context.Context, s *Spec, owner string, blob []byte) (Lease, artefacts.Outcome, error) {
	if len(blob) == 0 {
		return Lease{}, artefacts.Outcome{}, fault.Invalidf("primitive: create from blob", "the blob is empty: want what Blob gave")
	}
	r, err := e.primitive(s)
	if err != nil {
		return Lease{}, artefacts.Outcome{}, err
	}
	q, err := r.asked(owner)
	if err != nil {
		return Lease{}, artefacts.Outcome{}, err
	}
	l, o, err := e.cache.FromBlob(ctx, q, blob)
	return Lease{l}, o, err
}

// Blob gives the resident primitive of a descriptor as bytes; see
// artefacts.Cache.Blob.
func (e *Engine) Blob(ctx context.Context, d *Descriptor) ([]byte, error) {
	if d.key == "" {
		return nil, &fault.Error{Op: "primitive: blob", Key: d.spec.Kind, Reason: fault.KeyRefused, Err: fault.ErrNotFound}
	}
	return e.cache.Blob(ctx, d.key)
}

func (e *Engine) primitive(s *Spec) (*request, error) {
	if err := s.reach(); err != nil {
		return nil, err
	}
	return e.request(s)
}

func (r *request) primitive(ctx context.Context, owner string) (Lease, artefacts.Outcome, error) {
	q, err := r.asked(owner)
	if err != nil {
		return Lease{}, artefacts.Outcome{}, err
	}
	l, o, err := r.engine.cache.Get(ctx, q)
	return Lease{l}, o, err
}

// asked is what the artefact cache is asked for to get the primitive.
func (r *request) asked(owner string) (artefacts.Request, error) {
	q := r.asking(r.key)
	q.Owner, q.Create = owner, r.create
	if r.unhashable == "" && r.engine.blobs(&r.spec) {
		stored, err := r.spec.AppendPortable(nil)
		if err != nil {
			return q, err
		}
		q.StoredKey, q.Load = string(stored), r.load
	}
	return q, nil
}

// create is the creator of a primitive's entry.
func (r *request) create(ctx context.Context) (artefacts.Built, error) {
	return r.make(ctx, r.engine.cfg.Library.Create)
}

// load makes the entry from a blob.
func (r *request) load(ctx context.Context, blob []byte) (artefacts.Built, error) {
	return r.make(ctx, func(ctx context.Context, d *Descriptor) (artefacts.Built, error) {
		return r.engine.loader.Load(ctx, d, blob)
	})
}

// make brings the descriptor and what a library makes of it together. The
// primitive holds a pin of the descriptor from here to its own release.
func (r *request) make(ctx context.Context, native func(context.Context, *Descriptor) (artefacts.Built, error)) (b artefacts.Built, err error) {
	d, err := r.own(ctx)
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
	free := b.Free
	b.Free = func() {
		defer d.Release()
		if free != nil {
			free()
		}
	}
	b.Value = &Primitive{d, b.Value}
	if b.Bytes >= 0 { // else the cache refuses it
		b.Bytes += d.about.Bytes
	}
	made = true
	return b, nil
}

// own gives the descriptor for a primitive, pinned: the caller's, if that has
// not left and released it, or that of the descriptor's own entry, or a new one.
func (r *request) own(ctx context.Context) (*Descriptor, error) {
	if r.given != nil && r.given.cell.Pin() {
		return r.given, nil
	}
	return r.obtain(ctx, r.alone())
}
