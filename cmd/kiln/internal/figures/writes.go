package figures

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Misses measures a miss with nothing to compute against a promise in a
// sync.Map.
func Misses(ctx context.Context) ([]Figure, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	const batch = 256 // names of one group, or of one map
	asked := make([]string, batch)
	for i := range asked {
		asked[i] = nameOf(i)
	}
	create := func(context.Context) (sessioncache.Value, error) { return sessioncache.Value{Any: 1}, nil }
	fill := func(s *sessioncache.Session, group int, asked []string) error {
		h, err := s.Group(ctx, shapeOf(group))
		if err != nil {
			return err
		}
		defer h.Close()
		for _, name := range asked {
			if _, _, err := h.Get(ctx, name, sessioncache.Options{}, create); err != nil {
				return err
			}
		}
		return nil
	}
	ours := func(n int) (time.Duration, error) {
		s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.Unlimited})
		if err != nil {
			return 0, err
		}
		defer s.Close(context.WithoutCancel(ctx))
		began := time.Now()
		for group := 0; n > 0; group++ {
			part := asked[:min(n, batch)]
			if err := fill(s, group, part); err != nil {
				return 0, err
			}
			n -= len(part)
		}
		return time.Since(began), nil
	}
	shape := shapeOf(0).Key()
	peer := func(n int) (time.Duration, error) {
		began := time.Now()
		for ; n > 0; n -= batch {
			promises(ctx, shape, asked[:min(n, batch)])
		}
		return time.Since(began), nil
	}
	s, err := sessioncache.Open(sessioncache.Config{})
	if err != nil {
		return nil, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	group := 0
	f := Figure{Bench: "miss, nothing to compute", RatioTo: "sync.Map with a promise", Goroutines: 1, Gate: AtMost(12).allocating(8),
		Allocs: math.Floor(allocations(func() { err = fill(s, group, asked); group++ }) / batch)}
	if err != nil {
		return nil, err
	}
	f, err = f.compare(ctx, quotient, ours, peer)
	return []Figure{f}, err
}

type promise struct {
	done  chan struct{}
	value int
}

// promises makes a value for each name the plain way: who stores the promise
// keeps it. As ours, a caller waits with a context that may be cancelled.
func promises(ctx context.Context, shape string, asked []string) {
	var m sync.Map
	for i, name := range asked {
		p := &promise{done: make(chan struct{})}
		kept, loaded := m.LoadOrStore(fullKey{session, shape, name}, p)
		if !loaded {
			p.value = i
			close(p.done)
		}
		select {
		case <-kept.(*promise).done:
		case <-ctx.Done():
		}
	}
}

// Evictions measures readers beside evictions, and what a group's size costs.
func Evictions(ctx context.Context) ([]Figure, error) {
	tail, err := readersBesideEviction(ctx)
	if err != nil {
		return nil, err
	}
	flat, err := evictionBySize(ctx)
	return []Figure{tail, flat}, err
}

// evictionBySize is the time until an evicted group is gone for readers and
// counts, of 4096 names against 128.
func evictionBySize(ctx context.Context) (Figure, error) {
	evict := func(size int) (time.Duration, error) {
		s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(8), Policy: "fifo"})
		if err != nil {
			return 0, err
		}
		defer s.Close(context.WithoutCancel(ctx))
		for g := range 8 {
			for i := range size {
				if err := s.Set(ctx, shapeOf(g), nameOf(i), sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
					return 0, err
				}
			}
		}
		var best time.Duration
		for g := range 8 {
			began := time.Now()
			if err := s.Set(ctx, shapeOf(100+g), nameOf(0), sessioncache.Value{Any: 1}, sessioncache.Options{}); err != nil {
				return 0, err
			}
			took := time.Since(began)
			if s.Has(shapeOf(g)) {
				return 0, fmt.Errorf("group %d was not evicted", g)
			}
			if g == 0 || took < best {
				best = took
			}
		}
		return best, nil
	}
	f := Figure{Bench: "evicting a group of 4096 names", RatioTo: "one of 128", Goroutines: 1, Gate: AtMost(2)}
	return f.take(ctx, 9, func() (float64, error) {
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
func Launches(ctx context.Context) ([]Figure, error) {
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
		launches[i] = gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.BufferArg(b), gpuexec.U32Arg(1)}, Grid: 1}
	}
	f := Figure{Bench: "executor, a launch", RatioTo: "1 us", Goroutines: 1, Gate: AtMost(atMost)}
	f, err = f.take(ctx, 15, func() (float64, error) {
		took, err := Quickest(20, func() error { return exec.Submit(ctx, launches...) })
		return float64(took) / sequence / float64(time.Microsecond), err
	})
	return []Figure{f}, err
}
