package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/incumbent"
)

// settings of a run.
type settings struct {
	entries    []int
	goroutines []int
	rounds     int
	slot       time.Duration
	progress   func(format string, args ...any)
}

// cell is what the slots of one contender are kept under.
type cell struct {
	contender  string
	goroutines int
	writers    bool
}

// measureHits fills every contender with each number of entries in turn and
// gives their figures, in the order of the table.
func measureHits(ctx context.Context, s settings, n *incumbent.Process) (out []figure, err error) {
	for _, entries := range s.entries {
		s.progress("%s entries: filling the caches", grouped(entries))
		figures, err := measureSize(ctx, s, entries, n)
		if err != nil {
			return nil, err
		}
		out = append(out, figures...)
		runtime.GC() // before the next size is built beside this one's remains
	}
	return out, nil
}

func measureSize(ctx context.Context, s settings, entries int, n *incumbent.Process) (out []figure, err error) {
	// While the caches grow, collecting often would take most of the time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	w, err := newWorkload(entries)
	if err != nil {
		return nil, err
	}
	all, err := contenders(ctx, w, n)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := closeAll(context.WithoutCancel(ctx), all); err == nil {
			err = closed
		}
	}()
	run := &hitRun{settings: s, w: w, all: all, samples: make(map[cell][]sample), written: make(writes), missed: make(map[store]bool)}
	debug.SetGCPercent(-1)
	runtime.GC()
	run.heap = heapNow()
	if err := run.rounds(ctx, false); err != nil {
		return nil, err
	}
	if err := run.crowd(ctx); err != nil {
		return nil, err
	}
	if err := run.rounds(ctx, true); err != nil {
		return nil, err
	}
	return run.figures(), nil
}

// hitRun is the measurement of one number of entries.
type hitRun struct {
	settings
	w       *workload
	all     []contender
	samples map[cell][]sample
	written writes
	missed  map[store]bool // what it lacks must be restored
	heap    uint64         // bytes after the last collection
}

// grown is how many bytes of heap are let grow before a collection.
const grown = 512 << 20

// collect frees what the slots have left, in a round's break. Seldom: with a
// million entries in every cache it takes longer than a round.
func (r *hitRun) collect() {
	if heapNow() > r.heap+grown {
		runtime.GC()
		r.heap = heapNow()
	}
}

func heapNow() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rounds measures every contender in every round. The order rotates, so that no
// contender always finds the same neighbour's memory in the processor's caches.
func (r *hitRun) rounds(ctx context.Context, writers bool) error {
	kind := "alone"
	if writers {
		kind = "beside a writer"
	}
	for round := range r.settings.rounds {
		r.progress("%s entries: readers %s, round %d of %d", grouped(r.w.Entries), kind, round+1, r.settings.rounds)
		r.collect()
		for _, c := range r.all {
			if c.renew != nil && !writers {
				c.renew()
			}
		}
		for _, g := range r.goroutines {
			for i := range r.all {
				c := r.all[(i+round)%len(r.all)]
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := r.measure(ctx, c, cell{c.name, g, writers}); err != nil {
					return fmt.Errorf("bench: %s: %w", c.name, err)
				}
			}
		}
	}
	return nil
}

// measure takes one slot, behind a shorter one that brings what is asked for
// into the processor's caches.
func (r *hitRun) measure(ctx context.Context, c contender, at cell) error {
	if at.writers && c.store == nil && c.native == nil {
		return nil // the loop alone has nothing to write to
	}
	write := func() error { return nil } // oneDNN's process has a writer of its own
	if at.writers && c.store != nil {
		if r.missed[c.store] {
			if err := c.store.restore(ctx); err != nil {
				return err
			}
		}
		write = r.written.into(ctx, c.store)
	}
	if _, err := slot(c, len(r.w.Places), at.goroutines, r.slot/4, nil); err != nil {
		return err
	}
	var s sample
	var err error
	if at.writers {
		s, err = slot(c, len(r.w.Places), at.goroutines, r.slot, write)
	} else {
		s, err = quickest(c, r.w, at.goroutines, r.slot)
	}
	if err != nil {
		return err
	}
	r.samples[at] = append(r.samples[at], s)
	if at.writers {
		r.missed[c.store] = s.Hits < 1
	}
	return nil
}

// parts that a slot of readers alone is cut into.
const parts = 5

// quickest gives the part of a slot that was least disturbed: other work on the
// machine only ever adds. (Beside a writer the disturbance is what is measured.)
func quickest(c contender, w *workload, goroutines int, length time.Duration) (best sample, err error) {
	if goroutines == 1 && c.store != nil {
		return alone(c, w, length)
	}
	for range parts {
		s, err := slot(c, len(w.Places), goroutines, length/parts, nil)
		if err != nil {
			return s, err
		}
		if best.NS == 0 || s.NS < best.NS {
			best = s
		}
	}
	return best, nil
}

// alone is a slot of one reader, in the slices that `kiln bench hits` is made of.
func alone(c contender, w *workload, length time.Duration) (s sample, err error) {
	var lookups, missed int
	find := func(from, to int) int {
		lookups += to - from
		return c.find(from, to)
	}
	cpu := cpuTime()
	s.NS, err = measure.Each(w.Side(find, 0, func(n int) error { missed += n; return nil }), length)
	s.CPU = float64(cpuTime()-cpu) / float64(lookups)
	s.Hits = 1 - float64(missed)/float64(lookups)
	return s, err
}

// crowd fills every cache to its bound with new keys, so that each further one
// evicts something.
func (r *hitRun) crowd(ctx context.Context) error {
	for _, c := range r.all {
		if c.store == nil || r.written[c.store] > 0 {
			continue
		}
		write := r.written.into(ctx, c.store)
		r.missed[c.store] = true
		for range r.w.room * names {
			if err := write(); err != nil {
				return fmt.Errorf("bench: %s: %w", c.name, err)
			}
		}
	}
	return nil
}

// allocations of one lookup, the mean of many; what caches do in the background
// counts with it.
func (r *hitRun) allocations(c contender) float64 {
	if c.find == nil {
		return 0 // in C
	}
	const lookups = 4 * earned
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for at := 0; at < lookups; at += batch {
		c.find(at, at+batch)
	}
	runtime.ReadMemStats(&after)
	return math.Round(10*float64(after.Mallocs-before.Mallocs)/lookups) / 10
}

// figures of all cells, in the order of the table.
func (r *hitRun) figures() (out []figure) {
	allocs := make(map[string]float64)
	for _, c := range r.all {
		allocs[c.name] = r.allocations(c)
	}
	for _, g := range r.goroutines {
		for _, writers := range []bool{false, true} {
			for _, c := range r.all {
				samples := r.samples[cell{c.name, g, writers}]
				if len(samples) == 0 {
					continue
				}
				f := figure{Figure: measure.Figure{Bench: c.name, RatioTo: reference, Allocs: allocs[c.name], Goroutines: g},
					Kind: "hit", Entries: r.w.Entries, Writers: writers, note: c.note, ours: c.ours, native: c.native != nil}
				f.take(samples, r.samples[cell{reference, g, writers}])
				beside := nativeKept
				if c.name == keyBuilt {
					beside = nativeAllIn
				}
				if under := r.samples[cell{beside, g, writers}]; len(under) > 0 && c.native == nil && c.store != nil {
					f.UnderOneDNN = measure.SpreadOf(measure.Ratios(times(under), times(samples))).Median
					f.OneDNN = beside
				}
				out = append(out, f)
			}
		}
	}
	return out
}
