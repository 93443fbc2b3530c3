package measure

import (
	"runtime/metrics"
	"slices"
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
