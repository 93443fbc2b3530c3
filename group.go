package kiln

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Group is what a session has cached for one input shape, leased for one request:
// no value that was seen through it is freed before Close, whatever is evicted,
// overwritten or reset meanwhile. Close it when the request is done. Safe for
// concurrent use. After Close it finds nothing, and every other call is ErrClosed.
type Group struct {
	room    *sessioncache.Group
	session *Session
	listen  func(Event) // Config.Listen; nil = nobody

	mu struct {
		sync.Mutex
		closed bool
		own    []*artefacts.Lease // of artefacts made for this group alone
	}
}

// Shape is the shape that is compiled, after bucketing.
func (g *Group) Shape() Shape {
	if g.none() {
		return Shape{}
	}
	return g.room.Shape()
}

// Close ends the request. What was seen through the group and has no other use is
// freed soon after, which may be after Close returned. Further calls do nothing.
func (g *Group) Close() {
	if g.none() {
		return
	}
	g.mu.Lock()
	own := g.mu.own
	g.mu.closed, g.mu.own = true, nil
	g.mu.Unlock()
	defer guard.Each(own, (*artefacts.Lease).End) // also after a Free that ends its goroutine, here or below
	g.room.Close()
}

// open is ErrClosed once the group is closed.
func (g *Group) open() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed {
		return errGroup
	}
	return nil
}

// keep has an artefact live until Close.
func (g *Group) keep(l *artefacts.Lease) error {
	g.mu.Lock()
	closed := g.mu.closed
	if !closed {
		g.mu.own = append(g.mu.own, l)
	}
	g.mu.Unlock()
	if closed {
		l.End()
		return errGroup
	}
	return nil
}

// Kernel gives the kernel of a source on an executor of this runtime, under a
// name: the one that is there, one made from a stored blob, or a compiled one. It
// is good until the group is closed. The caller must not call its Release: the cache
// owns it. Names, groups and
// sessions that ask for one source on one executor share one kernel. Executors
// never share a live kernel; those of equal identity share stored blobs.
//
// ErrInvalid: the name stands for another kernel, or for one of another executor
// (SPEC G13: give it a name of its own, or a lane); the executor is not this
// runtime's. Other errors are those of Executor.Compile.
func (g *Group) Kernel(ctx context.Context, name string, executor *gpuexec.Executor, source gpuexec.Source, o ...Option) (*gpuexec.Kernel, error) {
	if g.none() {
		return nil, noGroup(opKernel)
	}
	set, start := settle(o), g.clock()
	ref, ok := g.room.Lookup(name, set.lane)
	if !ok {
		set.linger = cmp.Or(set.linger, source.Linger) // of the artefact and of the compile below
		source.Linger = set.linger
		q, err := g.session.runtime.kernel(executor, source)
		if err != nil {
			g.tell(start, Event{Context: ctx, Name: name, Key: source.Key}, artefacts.Outcome{}, err)
			return nil, err
		}
		key := source.Key
		if ref, err = g.ask(ctx, start, name, set, q, func(what, name string, v any) error {
			return fitsKernel(what, name, v, executor, key)
		}); err != nil {
			return nil, err
		}
		return ref.Value().(*gpuexec.Kernel), nil
	}
	err := fitsKernel("name", name, ref.Value(), executor, source.Key)
	if g.listen != nil {
		g.found(ctx, start, name, ref, err)
	}
	if err != nil {
		return nil, err
	}
	return ref.Value().(*gpuexec.Kernel), nil
}

const opKernel = "kiln: kernel"

// fitsKernel refuses a value that is no kernel of this key on this executor: Set may have
// given any.
func fitsKernel(what, name string, v any, executor *gpuexec.Executor, key string) error {
	kernel, ok := v.(*gpuexec.Kernel)
	switch {
	case !ok:
		return want[*gpuexec.Kernel](opKernel, what, name, v)
	case kernel == nil:
		return fault.Invalidf(opKernel, "%s %q holds a nil kernel, which Set gave it: remove it first", what, name)
	case kernel.Executor() != executor:
		return fault.Invalidf(opKernel, "%s %q holds a kernel of another executor: give each executor a name or a lane of its own", what, name)
	case kernel.Key() != key:
		return anotherKey(opKernel, name, kernel.Key(), key)
	}
	return nil
}

// anotherKey refuses a name that was made from another key (SPEC G13).
func anotherKey(op, name, has, asked string) error {
	if live, key, ok := strings.Cut(has, "\x00"); ok && strings.Contains(live, "#") { // a kernel's: see Runtime.kernel
		has = key
	}
	return fault.Invalidf(op, "name %q stands for %q and was asked for with the key %q: give each key a name of its own", name, has, asked)
}

// kernel is the request for the kernel of a source. The live key has the executor
// in it, so that no two share a kernel; the key in the store does not: what fits
// the device there is said by its identity (SPEC K4, P3).
func (r *Runtime) kernel(executor *gpuexec.Executor, source gpuexec.Source) (artefacts.Request, error) {
	number, own := r.number(executor)
	if !own {
		return artefacts.Request{}, fault.Invalidf(opKernel, "the executor is not of this runtime: ask Runtime.Executor for it")
	}
	if source.Key == "" {
		return artefacts.Request{}, fault.Invalidf(opKernel, "the source has no key: want the canonical key of the program")
	}
	q := artefacts.OfKernel(executor, source)
	q.Key = q.Backend + "#" + strconv.FormatUint(number, 10) + "\x00" + source.Key
	return q, nil
}
