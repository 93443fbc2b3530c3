package measure

import (
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Pauses are the times for which garbage collections have stopped the world.
type Pauses struct{ histogram *metrics.Float64Histogram }

// PausesSoFar are those since the process began.
func PausesSoFar() Pauses {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(s)
	h := s[0].Value.Float64Histogram()
	return Pauses{&metrics.Float64Histogram{Counts: slices.Clone(h.Counts), Buckets: slices.Clone(h.Buckets)}}
}

// Since is the percentile of the pauses that are not in before, as its bucket's end; 0 without any.
func (p Pauses) Since(before Pauses, percent uint64) time.Duration {
	var all, seen uint64
	for i, n := range p.histogram.Counts {
		all += n - before.histogram.Counts[i]
	}
	for i, n := range p.histogram.Counts {
		if seen += n - before.histogram.Counts[i]; seen > 0 && seen*100 >= all*percent {
			return time.Duration(p.histogram.Buckets[i+1] * 1e9)
		}
	}
	return 0
}

// PauseBeside has so many collections run while a goroutine makes calls, one after another, and
// gives the percentile of their pauses, or the error of a call.
func PauseBeside(collections int, percent uint64, calls func() error) (time.Duration, error) {
	var stop atomic.Bool
	var beside sync.WaitGroup
	var err error
	beside.Go(func() {
		for err == nil && !stop.Load() {
			err = calls()
		}
	})
	before := PausesSoFar()
	for range collections {
		runtime.GC()
	}
	pause := PausesSoFar().Since(before, percent)
	stop.Store(true)
	beside.Wait()
	return pause, err
}
