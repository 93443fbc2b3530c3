package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
)

// sample is what one slot gave.
type sample struct {
	NS, CPU  float64 // of a lookup: wall time over all goroutines' lookups, and processor time
	P50, P99 float64 // of a lookup, over batches of 64; beside a writer only, else 0
	Hits     float64 // share of the lookups that found something
	Writes   int64

	Allocs, Made float64 // of misses, for one name
}

// track is one reader's own: no other touches it before the end.
type track struct {
	lookups, found int64
	batches        int
	times          []time.Duration // of the latest batches
	_              [64]byte        // tracks lie side by side, their readers on several cores
}

// timed is how many of a reader's latest batches are kept.
const timed = 1 << 14

// slot has goroutines readers walk the requests for the time given, each from
// its own start, and beside them, if write is not nil, a writer.
func slot(c contender, requests, goroutines int, length time.Duration, write func() error) (sample, error) {
	if c.native != nil {
		s, err := c.native.Slot(c.mode, goroutines, length, write != nil)
		// The library creates what it does not hold: it tells no misses.
		return sample{NS: s.NS, CPU: s.CPU, P50: s.P50, P99: s.P99, Writes: s.Writes, Hits: 1}, err
	}
	tracks := make([]track, goroutines)
	due := make(chan struct{}, 1) // a batch of writes that is earned; a writer that is behind loses some
	var over atomic.Bool
	release, wait := lineUp(goroutines, func(g int) {
		if write != nil {
			tracks[g].times = make([]time.Duration, timed)
		}
		tracks[g].walk(c.find, g*requests/goroutines, requests, &over, due)
	})
	var s sample
	var failed error
	var writer sync.WaitGroup
	if write != nil {
		writer.Go(func() { s.Writes, failed = writeBatches(write, due, &over) })
	}
	began, cpu := time.Now(), cpuTime()
	release()
	time.Sleep(length)
	over.Store(true)
	wait()
	wall := time.Since(began)
	cpu = cpuTime() - cpu
	close(due)
	writer.Wait()
	s.sum(tracks, wall, cpu)
	return s, failed
}

// lineUp has goroutines ready to run do, each with its number, when release is
// called; wait returns once all have ended.
func lineUp(goroutines int, do func(g int)) (release, wait func()) {
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	for g := range goroutines {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			do(g)
		})
	}
	ready.Wait()
	return func() { close(begin) }, done.Wait
}

// walk asks for a batch at least, however late its goroutine came to run. A track
// with room for times reads the clock for each batch: it costs every contender the same.
func (t *track) walk(find func(from, to int) int, from, requests int, over *atomic.Bool, due chan<- struct{}) {
	last := time.Now()
	for at := from; ; at += batch {
		if at+batch > requests {
			at = 0
		}
		t.found += int64(find(at, at+batch))
		t.lookups += batch
		if t.times != nil {
			last = t.time(last, due)
		}
		if over.Load() {
			return
		}
	}
}

// time keeps the time of a batch, which ends now, and lets the writer write now and then.
func (t *track) time(last time.Time, due chan<- struct{}) time.Time {
	now := time.Now()
	t.times[t.batches%timed] = now.Sub(last)
	if t.batches++; t.lookups%earned == 0 {
		select {
		case due <- struct{}{}:
		default:
		}
	}
	return now
}

func writeBatches(write func() error, due <-chan struct{}, over *atomic.Bool) (writes int64, err error) {
	for range due {
		for range earned / batch {
			if over.Load() {
				break
			}
			if err := write(); err != nil {
				return writes, err
			}
			writes++
		}
	}
	return writes, nil
}

func (s *sample) sum(tracks []track, wall, cpu time.Duration) {
	var lookups, found int64
	var times []time.Duration
	for i := range tracks {
		t := &tracks[i]
		lookups += t.lookups
		found += t.found
		times = append(times, t.times[:min(t.batches, len(t.times))]...)
	}
	s.NS, s.CPU = float64(wall)/float64(lookups), float64(cpu)/float64(lookups)
	s.Hits = float64(found) / float64(lookups)
	slices.Sort(times)
	s.P50, s.P99 = float64(measure.Percentile(times, 50))/batch, float64(measure.Percentile(times, 99))/batch
}

// writes numbers what is written to each store, over all slots.
type writes map[store]int

// into gives the writer of a store.
func (n writes) into(ctx context.Context, s store) func() error {
	return func() error {
		i := n[s]
		n[s] = i + 1
		return s.put(ctx, i)
	}
}

// cpuTime is what the process has had of all processors; 0 where that is not told.
func cpuTime() time.Duration {
	t, _ := measure.ProcessTime()
	return t
}
