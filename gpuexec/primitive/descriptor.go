package primitive

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/canon"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
)

// Descriptor says which implementation serves a request, and how. It is immutable,
// shared by every caller that asks for the same, and safe for concurrent use. A
// caller releases each Descriptor that an Engine returned to it once. What the methods
// give, slices included, is to be read only; Native is not to be used after Release.
type Descriptor struct {
	request  *request
	position int
	about    Description
	blobID   func() string
	node     *indexNode
	ask      artefacts.Request // for its primitive, to be made of it
	cell     lease.Cell
	claim    lease.Claim // to be found without an entry
	entries  int64       // of the pins, those of the cache's entries; under index.mu
}

// newDescriptor gives a descriptor with one pin, its maker's.
func newDescriptor(r *request, position int, about Description) *Descriptor {
	x := &r.engine.index
	d := &Descriptor{request: r, position: position, about: about}
	d.node = x.node(d)
	d.blobID = sync.OnceValue(d.makeBlobID)
	m := &making{request: r, given: d}
	d.ask = r.primitive
	d.ask.Create = m.create
	if d.ask.Load != nil {
		d.ask.Load = m.load
	}
	d.cell.Init(func() {
		x.leave(d)
		if about.Free != nil {
			about.Free()
		}
	})
	x.enter(d)
	return d
}

// Release gives the caller's hold on the descriptor up. A panic of the library, which frees it
// behind the last hold, is not the caller's.
func (d *Descriptor) Release() {
	if d.cell.Drop() {
		guard.Call(d.cell.Free, func(error) {})
	}
}

// Spec is the request, as it is keyed.
func (d *Descriptor) Spec() *Spec { return &d.request.spec }

// Key is the artefact cache's key of the primitive; empty if the request has
// none (SPEC K6).
func (d *Descriptor) Key() string { return d.request.key }

// ID is the implementation's number among the valid ones.
func (d *Descriptor) ID() int { return d.request.spec.Impl }

// Position is the implementation's place in the library's list.
func (d *Descriptor) Position() int { return d.position }

// Name is the implementation's name, for people.
func (d *Descriptor) Name() string { return d.about.Name }

// Algorithm is the one in use: what "auto" became (SPEC D6).
func (d *Descriptor) Algorithm() string {
	if d.about.Algorithm != "" {
		return d.about.Algorithm
	}
	return d.request.spec.Op.Algorithm
}

// Tensors are the operation's memory descriptors with their layouts.
func (d *Descriptor) Tensors() []Tensor {
	if d.about.Tensors != nil {
		return d.about.Tensors
	}
	return d.request.spec.Op.Tensors
}

// Hints are what Spec.Hints of the backward operation is to be (SPEC D5).
func (d *Descriptor) Hints() []Tensor { return d.about.Hints }

// Scratchpad is the number of bytes an execution needs from the user.
func (d *Descriptor) Scratchpad() int64 { return d.about.Scratchpad }

// Native is the library's own object.
func (d *Descriptor) Native() any { return d.about.Native }

// BlobID names the primitive's cache blob: equal over calls and processes for
// one request on one device with one library build, and different otherwise. It
// covers every field of the key, the device with its driver build, the library's
// version and build (SPEC B1), as a SHA-256 in hexadecimal; a request whose
// Context is not stable has an id of that process only. It is empty where there
// are no blobs: the library has none for the engine, its build is not known
// (P12), or the request has no key (K6).
func (d *Descriptor) BlobID() string { return d.blobID() }

func (d *Descriptor) makeBlobID() string {
	r := d.request
	if r.key == "" || !r.engine.known || r.primitive.Load == nil {
		return ""
	}
	key, err := r.spec.append(nil, true)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(canon.AppendString(key, tagProducer, r.engine.producer[:sha256.Size]))
	return hex.EncodeToString(sum[:])
}

// producer is the digest of what makes the artefacts of an engine.
func producer(cfg *Config, opening uint64) [sha256.Size]byte {
	var buf [2048]byte // a processor has a hundred features
	b := frame.Identity(cfg.Identity).Append(buf[:0], 1, cfg.Backend)
	return sha256.Sum256(canon.AppendUint(b, 8, opening))
}
