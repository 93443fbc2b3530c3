package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/incumbent"
)

// matmuls are the requests of incumbent, resident in our cache.
type matmuls struct {
	engine *primitive.Engine
	kept   []*primitive.Descriptor
	specs  []*matmulSpec // one for each goroutine
}

// matmulSpec is a request with the memory that it borrows.
type matmulSpec struct {
	primitive.Spec
	tensors [4]primitive.Tensor
	numbers [4][2][2]int64 // dims and strides of each
	gelu    [1]primitive.PostOp
}

// build makes the request of one problem from its sizes, all of it again.
func (s *matmulSpec) build(problem int) *primitive.Spec {
	const k, n = incumbent.K, incumbent.N
	m := int64(problem) + 1
	for i, t := range [4][3]int64{{m, k, k}, {k, n, n}, {1, n, n}, {m, n, n}} {
		to := &s.numbers[i]
		to[0], to[1] = [2]int64{t[0], t[1]}, [2]int64{t[2], 1}
		s.tensors[i] = primitive.Tensor{Type: "f32", Dims: to[0][:], Strides: to[1][:]}
	}
	s.gelu[0] = primitive.PostOp{Kind: "eltwise", Algorithm: "gelu_erf"}
	s.Spec = primitive.Spec{Kind: "matmul", Engine: "cpu", Threads: 1, Scratchpad: "user"}
	s.Op.Tensors, s.Attr.PostOps = s.tensors[:], s.gelu[:]
	return &s.Spec
}

// keptHit gives descriptor and primitive for a key that is kept, in the descriptor that
// its user has.
func (m *matmuls) keptHit(ctx context.Context, _, problem int) error {
	l, _, err := m.engine.Make(ctx, m.kept[problem], "")
	if err == nil {
		l.End()
	}
	return err
}

// builtHit makes request and key each time.
func (m *matmuls) builtHit(ctx context.Context, goroutine, problem int) error {
	l, _, err := m.engine.Primitive(ctx, m.specs[goroutine].build(problem), "")
	if err == nil {
		l.End()
	}
	return err
}

// benchPrimitives measures a descriptor with its primitive, both there, in our cache and
// in oneDNN's own, which is asked in C in a process of its own, in turns.
func benchPrimitives(ctx context.Context) (out []measure.Figure, err error) {
	path := oneDNN()
	theirs, err := incumbent.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, theirs.Close()) }()
	lib, err := onednn.Open(onednn.Config{Path: path})
	if err != nil {
		return nil, err
	}
	defer lib.Close()
	cache, err := artefacts.Open(artefacts.Config{})
	if err != nil {
		return nil, err
	}
	defer cache.Close(context.WithoutCancel(ctx))
	m := &matmuls{specs: []*matmulSpec{new(matmulSpec), new(matmulSpec)}}
	if m.engine, err = primitive.Open(primitive.Config{Cache: cache, Library: lib, Backend: onednn.Name, Identity: lib.About().Identity}); err != nil {
		return nil, err
	}
	for problem := range incumbent.Problems {
		if err := m.builtHit(ctx, 0, problem); err != nil { // makes it
			return nil, err
		}
		d, _, err := m.engine.Descriptor(ctx, m.specs[0].build(problem))
		if err != nil {
			return nil, err
		}
		defer d.Release()
		m.kept = append(m.kept, d)
	}
	for _, threads := range []int{1, 2} {
		for _, p := range []struct {
			name, mode, peer string
			hit              func(ctx context.Context, goroutine, problem int) error
			least            float64
		}{
			{"primitive hit, key kept", incumbent.Kept, "in it, descriptors of memory kept", m.keptHit, 10},
			{"primitive hit, key built", incumbent.AllIn, "in it, all made each time", m.builtHit, 3},
		} {
			at := 0
			f := measure.Figure{Bench: fmt.Sprintf("%s, %d", p.name, threads), RatioTo: "oneDNN " + theirs.Version, Goroutines: threads,
				Gate: measure.AtLeast(p.least).Allocating(0),
				Allocs: measure.Allocations(func() {
					at = (at + 1) % incumbent.Problems
					err = errors.Join(err, p.hit(ctx, 0, at))
				})}
			if err != nil {
				return out, err
			}
			if threads > runtime.GOMAXPROCS(0) {
				out = append(out, f.Unmeasured(measure.OneCore))
				continue
			}
			var best [2]float64
			f, err = f.Compare(ctx, func(t []float64) float64 {
				best = [2]float64(t)
				return bothRan(t)
			}, peerSide(theirs, p.mode, threads), ourSide(ctx, p.hit, threads))
			if f.N > 0 {
				f.Note = fmt.Sprintf("%.0f ns %s, %.0f ns ours, in the last round", best[0], p.peer, best[1])
			}
			if out = append(out, f); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// bothRan is the first of two sides by the second, if neither was disturbed all the time.
func bothRan(t []float64) float64 {
	if math.IsInf(max(t[0], t[1]), 1) {
		return math.NaN()
	}
	return measure.Quotient(t)
}

// peerSide is oneDNN's, in slots of as long as n lookups took before. A slot in which its
// process did not have its cores is disturbed, as in ourSide.
func peerSide(theirs *incumbent.Process, mode string, threads int) measure.Side {
	each := 1000.0 // ns
	return func(n int) (time.Duration, error) {
		s, err := theirs.Slot(mode, threads, time.Duration(each*float64(n)), false)
		if err != nil {
			return 0, err
		}
		if each = s.NS; threads > 1 && s.CPU < s.NS*float64(threads)*19/20 {
			return measure.Disturbed, nil
		}
		return time.Duration(s.NS * float64(n)), nil
	}
}

// ourSide has threads goroutines look up, each from a problem of its own on. They run four
// times as long as measure's slices, as the peer's slots of 1 ms at least do.
func ourSide(ctx context.Context, hit func(ctx context.Context, goroutine, problem int) error, threads int) measure.Side {
	const long = 4
	return func(n int) (time.Duration, error) {
		errs := make([]error, threads)
		walk := func(g int) {
			problem := g * incumbent.Problems / threads
			for range n * long / threads {
				if err := hit(ctx, g, problem); err != nil {
					errs[g] = err
					return
				}
				problem = (problem + 1) % incumbent.Problems
			}
		}
		var took time.Duration
		if threads == 1 {
			began := time.Now()
			walk(0)
			took = time.Since(began)
		} else if took = measure.Crowd(threads, walk); took == measure.Disturbed {
			return took, errors.Join(errs...)
		}
		return took / long, errors.Join(errs...)
	}
}
