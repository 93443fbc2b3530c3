package onednn

import (
	"cmp"
	"context"
	"iter"
	"runtime"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/lease"
)

// Config of a Library.
type Config struct {
	Path    string // of the library's file; as os.Getenv("KILN_ONEDNN_LIBRARY"); empty: what is loaded, else as it is installed
	Workers int    // executions at a time; 0 = one for each core
}

// About says which library is in use.
type About struct {
	Version string // such as 3.13.0
	Build   string // SHA-256 of its file; empty = not known
	Path    string
	Runtime string // seq, omp ...: what its threads are
	Threads int    // of one execution
	OpenMP  string // what it shares with others in the process; empty = nothing

	Identity gpuexec.Identity
}

// Library is the opened oneDNN with an engine on the processor. It is a primitive.Library.
// Safe for concurrent use.
type Library struct {
	b       bindings
	c       *common
	about   About
	image   *image
	number  uint64
	engine  handle
	dropped atomic.Int64 // primitives
	live    atomic.Int64 // objects of the library that were made and not freed

	workers chan *worker
	made    []*worker
	cell    lease.Cell // a pin for each thing that uses the engine, and one until Close
	closed  atomic.Bool
}

var _ primitive.Library = (*Library)(nil)

// numbers are those of the Libraries, so far.
var numbers atomic.Uint64

// bindings is what differs between 2.x and 3.x.
type bindings interface {
	base() *common
	describe(t *primitive.Tensor) (*memoryDesc, error)
	drop(md *memoryDesc)
	read(md *memoryDesc) (primitive.Tensor, error)
	opaque(md *memoryDesc) (layout string, err error)

	modes(attr handle, a *primitive.Attributes) error
	quantize(attr handle, arg Slot, q *primitive.Quant, zeros bool) error
	postOpSum(h handle, p *primitive.PostOp) error
	postOpPrelu(h handle, mask int32) error
	postOpEltwise(h handle, alg int32, p *primitive.PostOp) error

	flags() [3]uint32 // of a layer normalisation: global_stats, scale, shift
	argument(s Slot) int32
	eltwise(name string, alpha, beta float64) (alg int32, known bool)
	resolved(convolution handle) (alg int32, err error)

	// begin makes the list of an operation's implementations and stands at the first,
	// next goes on, and at is the one there: the caller's to free if it is own.
	begin(o *operation) (list handle, err error)
	next(list handle) error
	at(o *operation, list handle) (pd handle, own bool, err error)
	end(o *operation, list handle)
}

// Open opens the library and an engine on the processor. The first call loads the file,
// which stays for the life of the process, with oneDNN's own cache of primitives
// switched off; OMP_NUM_THREADS is set to 1 for it: an execution runs on its caller's
// thread alone. ErrUnavailable says what to install; ErrInvalid: another file was
// loaded before.
func Open(cfg Config) (*Library, error) {
	im, err := load(cfg.Path)
	if err != nil {
		return nil, err
	}
	return open(im, cfg.Workers)
}

// open makes the engine and the workers.
func open(im *image, workers int) (_ *Library, err error) {
	if workers < 0 {
		return nil, fault.Invalidf("onednn: open", "%d workers: want 0 for one a core, or more", workers)
	}
	workers = cmp.Or(workers, runtime.GOMAXPROCS(0))
	l := &Library{b: im.tables, c: im.tables.base(), image: im, number: numbers.Add(1), workers: make(chan *worker, workers)}
	l.cell.Init(l.shut)
	defer func() {
		if err != nil {
			l.shut()
		}
	}()
	if err := l.c.status("dnnl_set_primitive_cache_capacity", l.c.CacheSize(0)); err != nil {
		return nil, err
	}
	if l.engine, err = l.make("dnnl_engine_create", func(h *handle) int32 { return l.c.EngineMake(h, engineCPU, 0) }); err != nil {
		return nil, err
	}
	for range workers {
		w, err := l.newWorker()
		if err != nil {
			return nil, err
		}
		l.made = append(l.made, w)
		l.workers <- w
	}
	l.about = im.about(l.c.ISA())
	return l, nil
}

func (l *Library) shut() {
	for _, w := range l.made {
		w.close()
	}
	l.free(l.c.EngineFree, l.engine)
}

// Number tells this Library from all others of the process: a primitive is for executions by
// the Library, and so by the engine, that made it (see primitive.Library).
func (l *Library) Number() uint64 { return l.number }

// About says which library this is.
func (l *Library) About() About { return l.about }

// Len is how many objects of the library there are: descriptors, primitives, memory,
// and what Open made. After Close and the release of all others there are none.
func (l *Library) Len() int64 { return l.live.Load() }

// Close gives the engine up; it goes when the last primitive, descriptor and memory of it
// has gone. A second call does nothing.
func (l *Library) Close() error {
	if l.closed.CompareAndSwap(false, true) {
		l.cell.Unpin()
	}
	return nil
}

// make makes an object of the library.
func (l *Library) make(call string, create func(*handle) int32) (handle, error) {
	h := new(handle)
	if err := l.c.status(call, create(h)); err != nil {
		return 0, err
	}
	l.live.Add(1)
	return *h, nil
}

// free frees one. What the library says to that is of no use: the object is nobody's.
func (l *Library) free(destroy func(handle) int32, h handle) {
	if h != 0 {
		destroy(h)
		l.live.Add(-1)
	}
}

// pin keeps the engine for one thing more.
func (l *Library) pin(op string) error {
	if l.closed.Load() || !l.cell.Pin() {
		return failure(op, fault.ErrClosed, "the library is closed")
	}
	return nil
}

// step is one of walk.
type step struct{ pd handle }

// walk goes through the implementations of a request, best first. What it gives is the
// list's until the next step.
func (l *Library) walk(ctx context.Context, s *primitive.Spec) iter.Seq2[step, error] {
	return func(yield func(step, error) bool) {
		o, err := l.operation(ctx, s)
		if err != nil {
			yield(step{}, fault.Wrap("onednn: describe", s.Kind, "this request", err))
			return
		}
		defer o.free()
		var list handle
		l.image.alone(func() { list, err = l.b.begin(o) })
		if answered(err, unimplemented, listEnds) {
			return // none is an empty list
		}
		if err != nil {
			yield(step{}, fault.Wrap("onednn: describe", s.Kind, "the first implementation", err))
			return
		}
		l.live.Add(1)
		defer func() {
			l.b.end(o, list)
			l.live.Add(-1)
		}()
		for err == nil {
			more, failed := l.visit(o, list, yield)
			if !more || failed != nil || single(s.Kind) {
				return
			}
			l.image.alone(func() { err = l.b.next(list) })
		}
		if !answered(err, unimplemented, listEnds) {
			yield(step{}, fault.Wrap("onednn: describe", s.Kind, "the next implementation", err))
		}
	}
}

// visit gives the implementation where the list stands. What is made for that goes also
// where the body of the loop panics.
func (l *Library) visit(o *operation, list handle, yield func(step, error) bool) (more bool, err error) {
	pd, own, err := l.b.at(o, list)
	if own {
		l.live.Add(1)
		defer l.free(l.c.PlanFree, pd)
	}
	return yield(step{pd}, err), err
}
