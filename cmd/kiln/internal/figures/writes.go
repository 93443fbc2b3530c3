package figures

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/reads"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Misses measures a miss with nothing to compute against a promise in a
// sync.Map.
func Misses(ctx context.Context) ([]measure.Figure, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	values := reads.Absent(16)
	misses := func(open reads.Maker) measure.Side {
		return func(n int) (took time.Duration, err error) {
			for ; n > 0; n -= len(values) {
				part, err := miss(ctx, open, values, min(n, len(values)))
				if err != nil {
					return 0, err
				}
				took += part
			}
			return took, nil
		}
	}
	ours, made := misses(reads.InSession), 0
	f := measure.Figure{Bench: "miss, nothing to compute", RatioTo: "sync.Map with a promise", Goroutines: 1, Gate: measure.AtMost(12).Allocating(8)}
	ask, end, err := reads.InSession(ctx, values, func() { made++ })
	if err != nil {
		return nil, err
	}
	f.Allocs = measure.Allocations(func() { _, err = ask(made) })
	if err = errors.Join(err, end()); err != nil {
		return nil, err
	}
	f, err = f.Compare(ctx, measure.Quotient, ours, misses(reads.InPromises))
	return []measure.Figure{f}, err
}

// miss is the time in which a fresh cache makes the first n of the values.
func miss(ctx context.Context, open reads.Maker, values []reads.Value, n int) (time.Duration, error) {
	ask, end, err := open(ctx, values, func() {})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range n {
		if _, err = ask(i); err != nil {
			break
		}
	}
	took := time.Since(began)
	return took, errors.Join(err, end())
}

// Evictions measures readers beside evictions, and what a group's size costs.
func Evictions(ctx context.Context) ([]measure.Figure, error) {
	tail, err := readersBesideEviction(ctx)
	if err != nil {
		return nil, err
	}
	flat, err := evictionBySize(ctx)
	return []measure.Figure{tail, flat}, err
}

// evictionBySize is the time until an evicted group is gone for readers and
// counts, of 4096 names against 128.
func evictionBySize(ctx context.Context) (measure.Figure, error) {
	evict := func(size int) (time.Duration, error) {
		s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(8), Policy: "fifo"})
		if err != nil {
			return 0, err
		}
		defer s.Close(context.WithoutCancel(ctx))
		for g := range 8 {
			for i := range size {
				if err := s.Set(ctx, reads.ShapeOf(g), reads.NameOf(i), sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
					return 0, err
				}
			}
		}
		var best time.Duration
		for g := range 8 {
			began := time.Now()
			if err := s.Set(ctx, reads.ShapeOf(100+g), reads.NameOf(0), sessioncache.Value{Any: 1}, sessioncache.Options{}); err != nil {
				return 0, err
			}
			took := time.Since(began)
			if s.Has(reads.ShapeOf(g)) {
				return 0, fmt.Errorf("group %d was not evicted", g)
			}
			if g == 0 || took < best {
				best = took
			}
		}
		return best, nil
	}
	f := measure.Figure{Bench: "evicting a group of 4096 names", RatioTo: "one of 128", Goroutines: 1, Gate: measure.AtMost(2)}
	return f.Take(ctx, 9, func() (float64, error) {
		small, err := evict(128)
		if err != nil {
			return 0, err
		}
		large, err := evict(4096)
		return float64(large) / float64(small), err
	})
}

// Launches measures what the executor adds to a launch within a submitted
// sequence, as microseconds over a driver that does nothing.
func Launches(ctx context.Context) ([]measure.Figure, error) {
	const sequence, atMost = 256, 3.0 // launches; microseconds
	exec, err := gpuexec.Open(ctx, gpuexec.Config{Backend: &fakedevice.Backend{}, Workers: 1})
	if err != nil {
		return nil, err
	}
	defer exec.Close(context.WithoutCancel(ctx))
	k, err := exec.Compile(ctx, gpuexec.Source{Key: "k", Params: []gpuexec.Param{{Kind: gpuexec.ParamBuffer, Bytes: 64}, {Kind: gpuexec.ParamBuffer, Bytes: 64}, {Kind: gpuexec.ParamU32}}})
	if err != nil {
		return nil, err
	}
	defer k.Release()
	b, err := exec.Alloc(ctx, 64)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	launches := make([]gpuexec.Launch, sequence)
	for i := range launches {
		launches[i] = gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.BufferArg(b), gpuexec.ValueArg(uint32(1))}, Grid: gpuexec.Size{1}}
	}
	f := measure.Figure{Bench: "executor, a launch", RatioTo: "1 us", Goroutines: 1, Gate: measure.AtMost(atMost)}
	f, err = f.Take(ctx, 15, func() (float64, error) {
		took, err := measure.Quickest(20, func() error { return exec.Submit(ctx, launches...) })
		return float64(took) / sequence / float64(time.Microsecond), err
	})
	return []measure.Figure{f}, err
}
