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
	"github.com/kiln-cache/kiln/limit"
)

// The capacities: oneDNN's own, and one at which it searches long for what to evict.
const few, many = 1024, 16 << 10

// benchPrimitives measures descriptors with their primitives in our cache and in oneDNN's
// own, which is asked in C in a process of its own, in turns.
func benchPrimitives(ctx context.Context) (out []measure.Figure, err error) {
	names, all, err := namesOf("bert_base_uncased", 128)
	if err != nil {
		return nil, err
	}
	r, err := openRivals(ctx, oneDNN())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	small, large := incumbent.Matmuls(128), incumbent.Reorders(many)
	const gate, gateBuilt = 10, 3
	none := math.Inf(-1)
	for _, w := range []contest{
		hits{"", small, 1, gate, gateBuilt}, hits{"", small, 2, gate, gateBuilt}, hits{"", small, 8, gate, gateBuilt},
		hits{fmt.Sprintf(" of %d", many), large, 1, none, none},
		evicting(few, nil), evicting(many, measure.AtLeast(2)),
		shrinking(many, measure.AtLeast(10)),
		cold(fmt.Sprintf("cold start, %d of the %d names of BERT-base", len(names), all), names, nil),
	} {
		figures, err := w.measure(ctx, r)
		if out = append(out, figures...); err != nil {
			return out, err
		}
	}
	return out, nil
}

// contest is what both caches are measured at.
type contest interface {
	measure(ctx context.Context, r *rivals) ([]measure.Figure, error)
}

// rivals are both caches, with one list of problems.
type rivals struct {
	theirs *incumbent.Process
	lib    *onednn.Library
	cache  *artefacts.Cache
	engine *primitive.Engine
	none   int64 // the library's objects while we have none of its primitives

	problems []incumbent.Problem
	kept     []*primitive.Descriptor
}

func openRivals(ctx context.Context, path string) (_ *rivals, err error) {
	r := new(rivals)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(context.WithoutCancel(ctx)))
		}
	}()
	if r.theirs, err = incumbent.Open(ctx, path); err != nil {
		return nil, err
	}
	if r.lib, err = onednn.Open(onednn.Config{Path: path}); err != nil {
		return nil, err
	}
	r.none = r.lib.Len()
	if r.cache, err = artefacts.Open(artefacts.Config{}); err != nil {
		return nil, err
	}
	r.engine, err = primitive.Open(primitive.Config{Cache: r.cache, Library: r.lib, Backend: onednn.Name, Identity: r.lib.About().Identity})
	return r, err
}

func (r *rivals) close(ctx context.Context) (err error) {
	r.release()
	if r.cache != nil {
		err = r.cache.Close(ctx)
	}
	if r.lib != nil {
		err = errors.Join(err, r.lib.Close())
	}
	if r.theirs != nil {
		err = errors.Join(err, r.theirs.Close())
	}
	return err
}

func (r *rivals) release() {
	for _, d := range r.kept {
		d.Release()
	}
	r.kept = nil
}

// fill has both caches, at this capacity, hold the first of the problems and nothing else.
func (r *rivals) fill(ctx context.Context, problems []incumbent.Problem, capacity int) error {
	r.release()
	r.problems = problems
	if err := r.theirs.Fill(problems, capacity); err != nil {
		return err
	}
	if _, err := r.pass(ctx, step{0, 0, 0}); err != nil {
		return err
	}
	_, err := r.pass(ctx, step{capacity, 0, min(capacity, len(problems))})
	return err
}

// keep has a descriptor of each problem.
func (r *rivals) keep(ctx context.Context) error {
	s := new(request)
	for i := range r.problems {
		d, _, err := r.engine.Descriptor(ctx, s.build(&r.problems[i]))
		if err != nil {
			return err
		}
		r.kept = append(r.kept, d)
	}
	return nil
}

// step is a capacity to be set, unless it is below 0, and how many of the problems are then
// looked up once each, from which one on.
type step struct{ capacity, from, many int }

// pass is the time that a step takes our cache. What a capacity of 0 drops is then gone.
func (r *rivals) pass(ctx context.Context, s step) (time.Duration, error) {
	built := new(request)
	began := time.Now()
	if s.capacity >= 0 {
		if err := r.cache.SetCapacity(limit.Of(int64(s.capacity)), limit.Limit{}); err != nil {
			return 0, err
		}
	}
	for i := range s.many {
		if err := r.hit(ctx, built.build(&r.problems[(s.from+i)%len(r.problems)])); err != nil {
			return 0, err
		}
	}
	took := time.Since(began)
	for s.capacity == 0 && r.lib.Len() > r.none {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		time.Sleep(time.Millisecond)
	}
	return took, nil
}

func (r *rivals) hit(ctx context.Context, s *primitive.Spec) error {
	l, _, err := r.engine.Primitive(ctx, s, "")
	if err == nil {
		l.End()
	}
	return err
}

// hits are lookups of what is there, with the key kept and with all of it built each time,
// by threads at once.
type hits struct {
	of             string
	problems       []incumbent.Problem
	threads        int
	kept, allBuilt float64 // the gates; -Inf = none
}

func (h hits) measure(ctx context.Context, r *rivals) (out []measure.Figure, err error) {
	if err := r.fill(ctx, h.problems, max(few, len(h.problems))); err != nil {
		return nil, err
	}
	if err := r.keep(ctx); err != nil {
		return nil, err
	}
	specs := make([]request, h.threads)
	for _, p := range []struct {
		name, mode, peer string
		hit              func(goroutine, problem int) error
		least            float64
	}{
		{"key kept", incumbent.Kept, "in it, descriptors of memory kept", func(_, problem int) error {
			l, _, err := r.engine.Make(ctx, r.kept[problem], "")
			if err == nil {
				l.End()
			}
			return err
		}, h.kept},
		{"key built", incumbent.AllIn, "in it, all made each time", func(goroutine, problem int) error {
			return r.hit(ctx, specs[goroutine].build(&h.problems[problem]))
		}, h.allBuilt},
	} {
		at := 0
		f := measure.Figure{Bench: fmt.Sprintf("primitive hit%s, %s, %d", h.of, p.name, h.threads), RatioTo: "oneDNN " + r.theirs.Version, Goroutines: h.threads,
			Gate: measure.AtLeast(p.least).Allocating(0),
			Allocs: measure.Allocations(func() {
				at = (at + 1) % len(h.problems)
				err = errors.Join(err, p.hit(0, at))
			})}
		if err != nil {
			return out, err
		}
		if h.threads > 1 && runtime.GOMAXPROCS(0) < 2 {
			out = append(out, f.Unmeasured(measure.OneCore))
			continue
		}
		var best [2]float64
		f, err = f.Compare(ctx, func(t []float64) float64 {
			best = [2]float64(t)
			return bothRan(t)
		}, theirSide(r.theirs, p.mode, h.threads), ourSide(p.hit, len(h.problems), h.threads))
		if f.N > 0 {
			f.Note = fmt.Sprintf("%.0f ns %s, %.0f ns ours, in the last round", best[0], p.peer, best[1])
		}
		if out = append(out, f); err != nil {
			return out, err
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

// theirSide is oneDNN's, in slots of as long as n lookups took before. A slot in which its
// process did not have its cores is disturbed, as in ourSide.
func theirSide(theirs *incumbent.Process, mode string, threads int) measure.Side {
	each := 1000.0 // ns
	cores := min(threads, runtime.GOMAXPROCS(0))
	return func(n int) (time.Duration, error) {
		s, err := theirs.Slot(mode, threads, time.Duration(each*float64(n)), false)
		if err != nil {
			return 0, err
		}
		if each = s.NS; threads > 1 && s.CPU < s.NS*float64(cores)*19/20 {
			return measure.Disturbed, nil
		}
		return time.Duration(s.NS * float64(n)), nil
	}
}

// ourSide has threads goroutines look up, each from a problem of its own on. They run four
// times as long as measure's slices, as the peer's slots of 1 ms at least do.
func ourSide(hit func(goroutine, problem int) error, problems, threads int) measure.Side {
	const long = 4
	next := 0 // where there are more problems than one slice looks up
	return func(n int) (time.Duration, error) {
		errs := make([]error, threads)
		walk := func(g int) {
			problem := (next + g*problems/threads) % problems
			for range n * long / threads {
				if err := hit(g, problem); err != nil {
					errs[g] = err
					return
				}
				problem = (problem + 1) % problems
			}
		}
		defer func() { next = (next + n*long/threads) % problems }()
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

// passes are steps that take both caches so long that each turn is one, behind another step
// that is not measured.
type passes struct {
	name          string
	problems      []incumbent.Problem
	capacity      int // of both caches, full of the first problems at the beginning
	before, timed step
	further       int // by how many problems a turn begins further on than the one before
	turns         int // in a round, the quickest of which counts
	gate          *measure.Gate
}

// evicting is what each primitive costs that takes another's place.
func evicting(capacity int, gate *measure.Gate) passes {
	const made = 64
	return passes{fmt.Sprintf("creations that evict from %d", capacity), incumbent.Reorders(capacity + 4*made), capacity,
		step{-1, 0, 0}, step{-1, capacity, made}, made, 3, gate}
}

// shrinking is the time to halve a capacity, and to look up the half that was made last.
func shrinking(capacity int, gate *measure.Gate) passes {
	half := capacity / 2
	return passes{fmt.Sprintf("shrink from %d to half, and that half", capacity), incumbent.Reorders(capacity), capacity,
		step{capacity, 0, capacity}, step{half, half, half}, 0, 1, gate}
}

// cold is the first lookup of all names, in a process that has made them before.
func cold(name string, problems []incumbent.Problem, gate *measure.Gate) passes {
	return passes{name, problems, few, step{0, 0, 0}, step{few, 0, len(problems)}, 0, 5, gate}
}

func (p passes) measure(ctx context.Context, r *rivals) ([]measure.Figure, error) {
	const rounds = 5
	if err := r.fill(ctx, p.problems, p.capacity); err != nil {
		return nil, err
	}
	side := func(pass func(step) (time.Duration, error)) measure.Side {
		timed := p.timed
		return func(int) (time.Duration, error) {
			if _, err := pass(p.before); err != nil {
				return 0, err
			}
			defer func() { timed.from = (timed.from + p.further) % len(p.problems) }()
			return pass(timed)
		}
	}
	made := uint64(0)
	sides := []measure.Side{
		side(func(s step) (time.Duration, error) { return r.theirs.Pass(incumbent.AllIn, s.capacity, s.from, s.many) }),
		side(func(s step) (time.Duration, error) {
			before := r.cache.Stats().Events[artefacts.Miss]
			took, err := r.pass(ctx, s)
			made = r.cache.Stats().Events[artefacts.Miss] - before
			return took, err
		}),
	}
	f := measure.Figure{Bench: p.name, RatioTo: "oneDNN " + r.theirs.Version, Goroutines: 1, Gate: p.gate}
	var best []time.Duration
	f, err := f.Take(ctx, rounds, func() (ratio float64, err error) {
		if best, err = measure.Turns(ctx, p.turns, 1, sides...); err != nil {
			return 0, err
		}
		return float64(best[0]) / float64(best[1]), nil
	})
	if f.N > 0 {
		each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(p.timed.many) }
		f.Note = fmt.Sprintf("%.1f us each in it, %.1f us each ours, which made %d of %d, in the last round", each(best[0]), each(best[1]), made, p.timed.many)
	}
	return []measure.Figure{f}, err
}
