package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Yiling-J/theine-go"
	"github.com/maypok86/otter/v2"
	"github.com/puzpuzpuz/xsync/v4"
	"golang.org/x/sync/singleflight"

	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/reads"
)

const (
	groups   = 4              // of absent keys
	absent   = groups * names // names that a slot of misses makes
	promised = "sync.Map + promise"
)

// maker is one way to have each of several absent keys made once.
type maker struct {
	name, note string
	ours       bool
	open       reads.Maker
}

func makers() []maker {
	return []maker{
		{name: "kiln: Get on a group handle", note: "the session's actor decides, the creator has a goroutine of its own, a waiter its context", ours: true, open: reads.InSession},
		{name: promised, note: "no error, no bound; S of the other rows", open: reads.InPromises},
		{name: "xsync.Map.LoadOrCompute", note: "makes it under the bucket's lock", open: makeXsync},
		{name: "otter v2, Get with a loader", open: makeOtter},
		{name: "theine, loading cache", open: makeTheine},
		{name: "singleflight, looks again + sync.Map", note: "asked by one string", open: makeSingleflight(true)},
		{name: "singleflight + sync.Map", note: "asked by one string; a caller that comes just after a flight makes it again", open: makeSingleflight(false)},
	}
}

func makeXsync(_ context.Context, keys []reads.Value, made func()) (func(int) (*reads.Value, error), func() error, error) {
	m := xsync.NewMap[reads.Key, *reads.Value]()
	return func(i int) (*reads.Value, error) {
		a, _ := m.LoadOrCompute(keys[i].Key, func() (*reads.Value, bool) { made(); return &keys[i], false })
		return a, nil
	}, nothing, nil
}

func makeOtter(ctx context.Context, keys []reads.Value, made func()) (func(int) (*reads.Value, error), func() error, error) {
	c, err := otter.New(&otter.Options[reads.Key, *reads.Value]{MaximumSize: 2 * len(keys)})
	if err != nil {
		return nil, nil, err
	}
	return func(i int) (*reads.Value, error) {
		return c.Get(ctx, keys[i].Key, otter.LoaderFunc[reads.Key, *reads.Value](func(context.Context, reads.Key) (*reads.Value, error) { made(); return &keys[i], nil }))
	}, func() error { c.StopAllGoroutines(); return nil }, nil
}

func makeTheine(ctx context.Context, keys []reads.Value, made func()) (func(int) (*reads.Value, error), func() error, error) {
	places := make(map[reads.Key]int, len(keys)) // its loader is told the key only
	for i := range keys {
		places[keys[i].Key] = i
	}
	c, err := theine.NewBuilder[reads.Key, *reads.Value](int64(2 * len(keys))).BuildWithLoader(func(_ context.Context, k reads.Key) (theine.Loaded[*reads.Value], error) {
		made()
		return theine.Loaded[*reads.Value]{Value: &keys[places[k]], Cost: 1}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return func(i int) (*reads.Value, error) { return c.Get(ctx, keys[i].Key) }, func() error { c.Close(); return nil }, nil
}

// makeSingleflight keeps values in a sync.Map, since singleflight keeps none.
func makeSingleflight(again bool) reads.Maker {
	return func(_ context.Context, keys []reads.Value, made func()) (func(int) (*reads.Value, error), func() error, error) {
		var m sync.Map
		var flights singleflight.Group
		return func(i int) (*reads.Value, error) {
			k := keys[i].Key
			if a, ok := m.Load(k); ok {
				return a.(*reads.Value), nil
			}
			a, err, _ := flights.Do(k.Session+k.Shape+k.Name, func() (any, error) {
				if a, ok := m.Load(k); ok && again {
					return a, nil
				}
				made()
				m.Store(k, &keys[i])
				return &keys[i], nil
			})
			if err != nil {
				return nil, err
			}
			return a.(*reads.Value), nil
		}, nothing, nil
	}
}

func nothing() error { return nil }

// missSlot has goroutines ask for every key of a fresh cache, all in the same order.
func missSlot(ctx context.Context, m maker, keys []reads.Value, goroutines int) (s sample, err error) {
	var made atomic.Int64
	ask, end, err := m.open(ctx, keys, func() { made.Add(1) })
	if err != nil {
		return s, err
	}
	errs := make([]error, goroutines)
	release, wait := lineUp(goroutines, func(g int) {
		for i := range keys {
			if a, err := ask(i); err != nil || a != &keys[i] {
				errs[g] = fmt.Errorf("%v: a value of %v, error %w", keys[i].Key, a, err)
				return
			}
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, cpu := time.Now(), cpuTime()
	release()
	wait()
	wall := time.Since(began)
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	n := float64(len(keys))
	s.NS, s.CPU = float64(wall)/n, float64(cpu)/n
	s.Made, s.Allocs = float64(made.Load())/n, float64(after.Mallocs-before.Mallocs)/n
	return s, cmp.Or(append(errs, end())...)
}

// quickestMiss is the least disturbed of some slots; made is the most of them.
func quickestMiss(ctx context.Context, m maker, keys []reads.Value, goroutines int) (best sample, err error) {
	for range 3 {
		s, err := missSlot(ctx, m, keys, goroutines)
		if err != nil {
			return s, err
		}
		made := max(best.Made, s.Made)
		if best.NS == 0 || s.NS < best.NS {
			best = s
		}
		best.Made = made
	}
	return best, nil
}

// measureMisses gives the figures of the misses, in the order of the table.
func measureMisses(ctx context.Context, s settings) (out []figure, err error) {
	keys := reads.Absent(groups)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	all, samples := makers(), make(map[cell][]sample)
	for round := range s.rounds {
		s.progress("misses: round %d of %d", round+1, s.rounds)
		runtime.GC()
		for _, g := range s.goroutines {
			for i := range all {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				m := all[(i+round)%len(all)]
				one, err := quickestMiss(ctx, m, keys, g)
				if err != nil {
					return nil, fmt.Errorf("bench: %s: %w", m.name, err)
				}
				at := cell{contender: m.name, goroutines: g}
				samples[at] = append(samples[at], one)
			}
		}
	}
	for _, g := range s.goroutines {
		for _, m := range all {
			own, to := samples[cell{m.name, g, false}], samples[cell{promised, g, false}]
			f := figure{Figure: measure.Figure{Bench: m.name, Goroutines: g, RatioTo: promised}, Kind: "miss", Entries: absent, note: m.note, ours: m.ours}
			f.take(own, to)
			f.Allocs = math.Round(10*measure.SpreadOf(column(own, func(s sample) float64 { return s.Allocs })).Median) / 10
			f.Made = measure.SpreadOf(column(own, func(s sample) float64 { return s.Made })).Max
			out = append(out, f)
		}
	}
	return out, nil
}
