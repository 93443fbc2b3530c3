package main

import (
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

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

const (
	absent    = 4 * names // names that a slot of misses makes
	promised  = "sync.Map + promise"
	missShape = 1 << 20 // the first group of them: no other slot's
)

// maker is one way to have each of several absent keys made once. open gives a
// fresh cache; its ask, safe for concurrent use, asks for the i-th of the keys
// and gives its value.
type maker struct {
	name, note string
	ours       bool
	open       func(ctx context.Context, keys []artefact, made *atomic.Int64) (ask func(i int) (*artefact, error), end func() error, err error)
}

func makers() []maker {
	return []maker{
		{name: "kiln: Get on a group handle", note: "the session's actor decides, the creator has a goroutine of its own, a waiter its context", ours: true, open: makeKiln},
		{name: promised, note: "no error, no context, no bound; S of the other rows", open: makePromise},
		{name: "xsync.Map.LoadOrCompute", note: "makes it under the bucket's lock", open: makeXsync},
		{name: "otter v2, Get with a loader", open: makeOtter},
		{name: "theine, loading cache", open: makeTheine},
		{name: "singleflight, looks again + sync.Map", note: "asked by one string", open: makeSingleflight(true)},
		{name: "singleflight + sync.Map", note: "asked by one string; who comes just after a flight makes it again", open: makeSingleflight(false)},
	}
}

func makeKiln(ctx context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
	s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.Unlimited})
	if err != nil {
		return nil, nil, err
	}
	var handles []*sessioncache.Group
	for g := range len(keys) / names {
		shape, err := shapegroups.Of(dimsOf(missShape + g))
		if err != nil {
			return nil, nil, err
		}
		h, err := s.Group(ctx, shape)
		if err != nil {
			return nil, nil, err
		}
		handles = append(handles, h)
	}
	ask := func(i int) (*artefact, error) {
		ref, _, err := handles[i/names].Get(ctx, keys[i].key.name, sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			made.Add(1)
			return sessioncache.Value{Any: &keys[i]}, nil
		})
		if err != nil {
			return nil, err
		}
		return ref.Value().(*artefact), nil
	}
	end := func() error {
		for _, h := range handles {
			h.Close()
		}
		return s.Close(context.WithoutCancel(ctx))
	}
	return ask, end, nil
}

func makePromise(_ context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
	type promise struct {
		done  chan struct{}
		value *artefact
	}
	var m sync.Map
	return func(i int) (*artefact, error) {
		if kept, ok := m.Load(keys[i].key); ok {
			<-kept.(*promise).done
			return kept.(*promise).value, nil
		}
		p := &promise{done: make(chan struct{})}
		kept, there := m.LoadOrStore(keys[i].key, p)
		if !there {
			made.Add(1)
			p.value = &keys[i]
			close(p.done)
		}
		p = kept.(*promise)
		<-p.done
		return p.value, nil
	}, nothing, nil
}

func makeXsync(_ context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
	m := xsync.NewMap[key, *artefact]()
	return func(i int) (*artefact, error) {
		a, _ := m.LoadOrCompute(keys[i].key, func() (*artefact, bool) { made.Add(1); return &keys[i], false })
		return a, nil
	}, nothing, nil
}

func makeOtter(ctx context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
	c, err := otter.New(&otter.Options[key, *artefact]{MaximumSize: 2 * len(keys)})
	if err != nil {
		return nil, nil, err
	}
	return func(i int) (*artefact, error) {
		return c.Get(ctx, keys[i].key, otter.LoaderFunc[key, *artefact](func(context.Context, key) (*artefact, error) { made.Add(1); return &keys[i], nil }))
	}, func() error { c.StopAllGoroutines(); return nil }, nil
}

func makeTheine(ctx context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
	places := make(map[key]int, len(keys)) // its loader is told the key only
	for i := range keys {
		places[keys[i].key] = i
	}
	c, err := theine.NewBuilder[key, *artefact](int64(2 * len(keys))).BuildWithLoader(func(_ context.Context, k key) (theine.Loaded[*artefact], error) {
		made.Add(1)
		return theine.Loaded[*artefact]{Value: &keys[places[k]], Cost: 1}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return func(i int) (*artefact, error) { return c.Get(ctx, keys[i].key) }, func() error { c.Close(); return nil }, nil
}

// makeSingleflight keeps values in a sync.Map, since singleflight keeps none.
func makeSingleflight(again bool) func(context.Context, []artefact, *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
	return func(_ context.Context, keys []artefact, made *atomic.Int64) (func(int) (*artefact, error), func() error, error) {
		var m sync.Map
		var flights singleflight.Group
		return func(i int) (*artefact, error) {
			k := keys[i].key
			if a, ok := m.Load(k); ok {
				return a.(*artefact), nil
			}
			a, err, _ := flights.Do(k.session+k.shape+k.name, func() (any, error) {
				if a, ok := m.Load(k); ok && again {
					return a, nil
				}
				made.Add(1)
				m.Store(k, &keys[i])
				return &keys[i], nil
			})
			if err != nil {
				return nil, err
			}
			return a.(*artefact), nil
		}, nothing, nil
	}
}

func nothing() error { return nil }

// absentKeys are those that a slot of misses asks for.
func absentKeys() ([]artefact, error) {
	keys := make([]artefact, 0, absent)
	for g := range absent / names {
		shape, err := shapegroups.Of(dimsOf(missShape + g))
		if err != nil {
			return nil, err
		}
		for i := range names {
			keys = append(keys, artefact{key{session, shape.Key(), nameOf(i)}})
		}
	}
	return keys, nil
}

// missSample is what one slot of misses gave, for one key.
type missSample struct {
	sample
	allocs, made float64
}

// missSlot has goroutines ask for every key of a fresh cache, all in the same order.
func missSlot(ctx context.Context, m maker, keys []artefact, goroutines int) (s missSample, err error) {
	var made atomic.Int64
	ask, end, err := m.open(ctx, keys, &made)
	if err != nil {
		return s, err
	}
	errs := make([]error, goroutines)
	release, wait := lineUp(goroutines, func(g int) {
		for i := range keys {
			if a, err := ask(i); err != nil || a != &keys[i] {
				errs[g] = fmt.Errorf("%v: a value of %v, error %w", keys[i].key, a, err)
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
	s.made, s.allocs = float64(made.Load())/n, float64(after.Mallocs-before.Mallocs)/n
	for _, failed := range append(errs, end()) {
		if err == nil {
			err = failed
		}
	}
	return s, err
}

// quickestMiss is the least disturbed of some slots; made is the most of them.
func quickestMiss(ctx context.Context, m maker, keys []artefact, goroutines int) (best missSample, err error) {
	for range 3 {
		s, err := missSlot(ctx, m, keys, goroutines)
		if err != nil {
			return s, err
		}
		made := max(best.made, s.made)
		if best.NS == 0 || s.NS < best.NS {
			best = s
		}
		best.made = made
	}
	return best, nil
}

// measureMisses gives the figures of the misses, in the order of the table.
func measureMisses(ctx context.Context, s settings) (out []figure, err error) {
	keys, err := absentKeys()
	if err != nil {
		return nil, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	all, samples := makers(), make(map[cell][]missSample)
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
			f := figure{Bench: m.name, Kind: "miss", Entries: absent, Goroutines: g, RatioTo: promised, note: m.note, ours: m.ours}
			f.take(plain(own))
			f.compare(plain(own), plain(to))
			f.Allocs = math.Round(10*spreadOf(column(own, func(s missSample) float64 { return s.allocs })).Median) / 10
			f.Made = spreadOf(column(own, func(s missSample) float64 { return s.made })).Max
			out = append(out, f)
		}
	}
	return out, nil
}

func plain(samples []missSample) []sample {
	out := make([]sample, len(samples))
	for i, s := range samples {
		out[i] = s.sample
	}
	return out
}
