package primitive

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/canon"
	"github.com/kiln-cache/kiln/internal/fault"
)

// ErrEnd is the end of a list of implementations: there is no valid one of that
// number. It is an ErrNotFound.
var ErrEnd = fmt.Errorf("past the last implementation: %w", fault.ErrNotFound)

// Config of an Engine.
type Config struct {
	Cache   *artefacts.Cache // where all is kept; several engines may share one, and it is not closed with them
	Library Library

	Backend  string           // the store's folder and part of errors
	Identity gpuexec.Identity // of library and device; without a Library or Build in it nothing is shared with another Engine, stored or named
}

// Engine creates descriptors and primitives of one library on one device. It
// owns nothing but its cache's entries and needs no closing. Safe for concurrent
// use.
type Engine struct {
	cfg      Config
	cache    *artefacts.Cache
	loader   Loader // nil if the library has no blobs
	known    bool   // the producer can be told from others
	producer []byte
	buffers  sync.Pool // of *[]byte: keys of lookups
}

// unknown numbers the engines whose library's build is not known.
var unknown atomic.Uint64

// NewEngine gives an Engine. ErrInvalid without a cache or a library.
func NewEngine(cfg Config) (*Engine, error) {
	if cfg.Cache == nil || cfg.Library == nil {
		return nil, fault.Invalidf("primitive: new engine", "want a cache and a library")
	}
	e := &Engine{cfg: cfg, cache: cfg.Cache, known: cfg.Identity.Library != "" && cfg.Identity.Build != ""}
	e.loader, _ = cfg.Library.(Loader)
	opening := uint64(0)
	if !e.known {
		opening = unknown.Add(1)
	}
	sum := producer(&e.cfg, opening)
	e.producer = sum[:]
	e.buffers.New = func() any { b := make([]byte, 0, 1024); return &b }
	return e, nil
}

func (e *Engine) blobs(s *Spec) bool { return e.loader != nil && e.loader.Blobs(s) }

// Origin says where a descriptor came from.
type Origin string

// The origins of a descriptor.
const (
	Built  Origin = "built"  // this call had the library build it
	Cached Origin = "cached" // built before, or at the same time by another call
	Shared Origin = "shared" // a primitive's own (SPEC D2)
)

// Hit reports whether this call built nothing.
func (o Origin) Hit() bool { return o != Built }

// Descriptor gives the descriptor of a request, built only if neither it nor its
// primitive is resident or being made. It refreshes the recency of the entry it
// came from (SPEC C3) and is that entry's use by nobody in particular. A hit
// allocates nothing and heeds no context. Release the descriptor once.
//
// Errors: ErrEnd past the last valid implementation, ErrInvalid for a request
// that makes no sense, ErrClosed, the context's, or the library's own.
func (e *Engine) Descriptor(ctx context.Context, s *Spec) (*Descriptor, Origin, error) {
	if err := s.reach(); err != nil {
		return nil, "", err
	}
	buf := e.buffers.Get().(*[]byte)
	enc, err := e.append((*buf)[:0], s)
	if err == nil {
		d, origin := e.resident(enc)
		if d != nil {
			*buf = enc
			e.buffers.Put(buf)
			return d, origin, nil
		}
	}
	*buf = enc[:0]
	e.buffers.Put(buf)
	r, err := e.request(s)
	if err != nil {
		return nil, "", err
	}
	return r.descriptor(ctx)
}

// All gives the descriptors of a request from its implementation s.Impl to the
// last, in the library's order. Each is to be released. An error ends it.
func (e *Engine) All(ctx context.Context, s *Spec) iter.Seq2[*Descriptor, error] {
	return func(yield func(*Descriptor, error) bool) {
		for next := *s; ; next.Impl++ {
			d, _, err := e.Descriptor(ctx, &next)
			if errors.Is(err, ErrEnd) || !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// append appends the cache's key of the request's primitive.
func (e *Engine) append(dst []byte, s *Spec) ([]byte, error) {
	asked := *s
	if !asked.Op.backward() {
		asked.Hints = nil
	}
	dst, err := asked.Append(dst)
	if err != nil {
		return dst, err
	}
	return canon.AppendString(dst, tagProducer, e.producer), nil
}

// appendForm turns the key of a primitive into that of its descriptor alone.
func appendForm(dst []byte) []byte { return canon.AppendString(dst, tagForm, "descriptor") }

// resident gives the descriptor of a key, pinned, if it is in the cache.
func (e *Engine) resident(enc []byte) (*Descriptor, Origin) {
	if d := e.lookup(enc); d != nil {
		return d, Shared
	}
	return e.lookup(appendForm(enc)), Cached
}

// lookup borrows enc as the text of a key for the time of the call only.
func (e *Engine) lookup(enc []byte) *Descriptor {
	if ref, ok := e.cache.Lookup(unsafe.String(unsafe.SliceData(enc), len(enc))); ok {
		return pinned(ref.Value())
	}
	return nil
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

// reach refuses what needs no looking up.
func (s *Spec) reach() error {
	switch {
	case s.Impl < 0:
		return fault.Invalidf("primitive: describe", "implementation %d: want 0 for the first or more", s.Impl)
	case s.Impl > 0 && s.internal():
		return end(s)
	}
	return nil
}

func end(s *Spec) error {
	return &fault.Error{Op: "primitive: describe", Key: s.Kind, Err: fmt.Errorf("implementation %d: %w", s.Impl, ErrEnd)}
}

// backward reports whether the operation is one that takes hints (SPEC D5).
func (o *Operation) backward() bool { return strings.HasPrefix(o.Direction, "backward") }
