package primitive

import (
	"bytes"
	"context"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// Primitive is a compiled operation with its descriptor. It is immutable, shared by
// every caller that asks for the same, and used under a Lease.
type Primitive struct {
	desc   *Descriptor
	native any
}

// Descriptor is the primitive's own; it lives as long as the lease. A
// caller that wants it longer asks the Engine for it.
func (p *Primitive) Descriptor() *Descriptor { return p.desc }

// Native is the library's own object.
func (p *Primitive) Native() any { return p.native }

// Lease is the right to use a primitive until End. Safe for concurrent use.
type Lease struct{ *artefacts.Lease }

// Primitive is what is leased; not to be used after End.
func (l Lease) Primitive() *Primitive { return l.Value().(*Primitive) }

// Primitive gives a lease on the primitive of a request, for an owner (SPEC C10)
// or, with an empty name, without one. The outcome is that of
// artefacts.Cache.Get, and a descriptor that is resident or being built is
// taken. Errors as in Descriptor.
func (e *Engine) Primitive(ctx context.Context, s *Spec, owner string) (Lease, artefacts.Outcome, error) {
	r, err := e.find(s)
	if err != nil {
		return Lease{}, artefacts.Outcome{}, err
	}
	var held *Descriptor
	if r.key != "" && !e.cache.Has(r.key) && e.cache.Has(r.alone) {
		// Before the primitive's flight takes a place that might be its descriptor's.
		held = e.peek(ctx, r.alone)
	}
	if held != nil {
		defer held.Release()
	}
	return r.get(ctx, held, owner)
}

// Make is Primitive for the request of a descriptor that this engine gave; it makes
// neither the key nor the descriptor again. The descriptor stays the caller's to
// release. ErrInvalid: another cache has it, or it is of another library or build.
func (e *Engine) Make(ctx context.Context, d *Descriptor, owner string) (Lease, artefacts.Outcome, error) {
	if from := d.request.engine; from.cache != e.cache || !bytes.Equal(from.producer, e.producer) {
		return Lease{}, artefacts.Outcome{}, fault.Invalidf("primitive: make", "the descriptor is another engine's: want one that this engine gave")
	}
	q := d.ask
	q.Owner = owner
	l, o, err := e.cache.Get(ctx, q)
	return Lease{l}, o, err
}

// get asks the artefact cache for the primitive, to be made of a descriptor if
// there is one already.
func (r *request) get(ctx context.Context, given *Descriptor, owner string) (Lease, artefacts.Outcome, error) {
	q := r.primitive
	if given != nil {
		q = given.ask
	}
	q.Owner = owner
	l, o, err := r.engine.cache.Get(ctx, q)
	return Lease{l}, o, err
}

// FromBlob is Primitive with a blob in place of a build; see
// artefacts.Cache.FromBlob. ErrUnsupported if the library has no blobs.
func (e *Engine) FromBlob(ctx context.Context, s *Spec, owner string, blob []byte) (Lease, artefacts.Outcome, error) {
	if len(blob) == 0 {
		return Lease{}, artefacts.Outcome{}, fault.Invalidf("primitive: create from blob", "the blob is empty: want what Blob gave")
	}
	r, err := e.find(s)
	if err != nil {
		return Lease{}, artefacts.Outcome{}, err
	}
	q := r.primitive
	q.Owner = owner
	l, o, err := e.cache.FromBlob(ctx, q, blob)
	return Lease{l}, o, err
}

// Blob gives the resident primitive of a descriptor as bytes; see
// artefacts.Cache.Blob.
func (e *Engine) Blob(ctx context.Context, d *Descriptor) ([]byte, error) {
	if d.request.key == "" {
		return nil, &fault.Error{Op: "primitive: blob", Key: d.request.spec.Kind, Reason: fault.KeyRefused, Err: fault.ErrNotFound}
	}
	return e.cache.Blob(ctx, d.request.key)
}
