package primitive

import (
	"context"
	"iter"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// Library makes primitives on one engine of a device. Its methods are called
// several at once; those with a context on goroutines of the artefact cache,
// where they may panic, and they must hand that context on to whatever they ask a
// cache for. A Spec that they are given is immutable and stays valid. One with a method
// Number() uint64 shares nothing of an artefact cache with one of another number, of
// whatever Identity; their blobs and BlobIDs are one all the same.
type Library interface {
	// Implementations goes through the library's list for a request, best first.
	// The list is a function of the request alone; its Impl and Skip are the
	// caller's to heed, not the library's. A library that cannot say what it
	// refuses, such as one whose iterator steps from one valid descriptor to the
	// next, leaves that out: positions count what is listed. An implementation is
	// used until the next step only, so one native iterator, freed when the loop
	// ends, may serve them all. An error, of a request that is wrong for every
	// implementation, ends the list; having none is an empty list.
	Implementations(ctx context.Context, s *Spec) iter.Seq2[Implementation, error]

	// Create makes the primitive of a descriptor of this library. Built.Free is
	// called before the descriptor's own.
	Create(ctx context.Context, d *Descriptor) (artefacts.Built, error)
}

// Loader is a Library that can give and take compiled primitives as bytes; one
// that is none has no cache blobs.
type Loader interface {
	Library

	// Blobs reports whether it can for this request's engine. It must be cheap.
	Blobs(s *Spec) bool

	// Load is Create from what Built.Blob gave. An error means that the blob was
	// refused.
	Load(ctx context.Context, d *Descriptor, blob []byte) (artefacts.Built, error)
}

// numbered is a Library whose primitives no other can run, as where each has an engine of its
// own in the process. The number is always the same, and no other Library's of the process.
type numbered interface {
	Library
	Number() uint64
}

// Implementation is one way to do one request.
type Implementation interface {
	// Accepts reports whether it can do the request. That builds nothing.
	Accepts() bool
	// Describe builds its descriptor.
	Describe() (Description, error)
}

// Description is what a library says about one implementation of one request.
// It is immutable from when it is returned.
type Description struct {
	Name       string   // of the implementation, for people
	Algorithm  string   // what "auto" became (SPEC D6); empty = as asked
	Tensors    []Tensor // of the operation, with the layouts that the library chose; nil = as asked
	Hints      []Tensor // what the backward operation must know, as destination and workspace of a pooling (SPEC D5)
	Scratchpad int64    // bytes an execution needs, where the user provides them

	Native any    // the library's own object
	Bytes  int64  // what the descriptor takes of the cache's capacity, 0 or more
	Free   func() // nil, or called once, after the last use, on any goroutine
}
