package primitive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/canon"
	"github.com/kiln-cache/kiln/internal/table"
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
	loader   Loader    // nil if the library has no blobs
	known    bool      // the producer can be told from others
	producer []byte    // the digest of what makes the artefacts, and behind it the library's number if it has one
	buffers  sync.Pool // of *[]byte: keys of lookups
	index    index
}

// unknown numbers the engines whose library's build is not known.
var unknown atomic.Uint64

// Open gives an Engine. ErrInvalid without a cache or a library.
func Open(cfg Config) (*Engine, error) {
	if cfg.Cache == nil || cfg.Library == nil {
		return nil, fault.Invalidf("primitive: open", "want a cache and a library")
	}
	e := &Engine{
		cfg: cfg, cache: cfg.Cache, known: cfg.Identity.Library != "" && cfg.Identity.Build != "",
		index: index{table: table.New[*Descriptor](nil)},
	}
	e.loader, _ = cfg.Library.(Loader)
	opening := uint64(0)
	if !e.known {
		opening = unknown.Add(1)
	}
	sum := producer(&e.cfg, opening)
	e.producer = sum[:]
	if n, has := cfg.Library.(numbered); has {
		e.producer = binary.AppendUvarint(e.producer, n.Number())
	}
	e.buffers.New = func() any { b := make([]byte, 0, 1024); return &b }
	return e, nil
}

// Origin says where a descriptor came from.
type Origin string

// The origins of a descriptor.
const (
	Built  Origin = "built"  // this call had the library build it
	Cached Origin = "cached" // built before, or at the same time by another call
	Shared Origin = "shared" // a primitive's own (SPEC D2)
)

// Descriptor gives the descriptor of a request, built only if neither it nor its
// primitive is resident or being made. It refreshes the recency of the entry it
// came from (SPEC C3), which is then used by no owner in particular. A hit allocates
// nothing and heeds no context. Release the descriptor once.
//
// Errors: ErrEnd past the last valid implementation, ErrInvalid for a request
// that makes no sense, ErrClosed, the context's, or the library's own.
func (e *Engine) Descriptor(ctx context.Context, s *Spec) (*Descriptor, Origin, error) {
	r, err := e.find(s)
	if err != nil {
		return nil, "", err
	}
	if r.key != "" {
		if d, origin := r.resident(); d != nil {
			return d, origin, nil
		}
	}
	return r.descriptor(ctx)
}

// find gives the request of a Spec: that of a live descriptor, or a new one.
func (e *Engine) find(s *Spec) (*request, error) {
	if err := s.reach(); err != nil {
		return nil, err
	}
	asked := *s
	if !asked.Op.backward() {
		asked.Hints = nil
	}
	buf := e.buffers.Get().(*[]byte)
	enc, err := e.append((*buf)[:0], &asked)
	*buf = enc
	var d *Descriptor
	if err == nil {
		d = e.index.find(enc)
	}
	e.buffers.Put(buf)
	if d != nil {
		return d.request, nil
	}
	return e.request(&asked)
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
	dst, err := s.append(dst, true)
	if err != nil {
		return dst, err
	}
	return canon.AppendString(dst, tagProducer, e.producer), nil
}

// appendForm turns the key of a primitive into that of its descriptor alone.
func appendForm(dst []byte) []byte { return canon.AppendString(dst, tagForm, "descriptor") }

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
