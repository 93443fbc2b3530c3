package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
)

// Sample is what one request went through.
type Sample struct {
	At       time.Duration // from the pass's start to the request's end
	Latency  time.Duration
	Hits     Hits
	Compiles int64 // artefacts that were built for it
}

// Recorder keeps one sample for every request of a pass.
type Recorder struct {
	samples []Sample
}

// NewRecorder makes one for this number of requests.
func NewRecorder(requests int) *Recorder { return &Recorder{make([]Sample, requests)} }

// Record notes the request at this place of the trace. It may be called from
// several goroutines for different places, and before anything is read.
func (r *Recorder) Record(place int, s Sample) { r.samples[place] = s }

// Latency gives the exact percentiles of all that were recorded by nearest rank: p99 of
// 100 latencies is the 99th from below.
func (r *Recorder) Latency() Latency {
	var sorted []time.Duration
	for _, s := range r.samples {
		if s != (Sample{}) { // else it failed, or was not asked
			sorted = append(sorted, s.Latency)
		}
	}
	if len(sorted) == 0 {
		return Latency{}
	}
	slices.Sort(sorted)
	at := func(percent int) float64 { return milliseconds(measure.Percentile(sorted, percent)) }
	return Latency{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// Hits is the sum over all requests.
func (r *Recorder) Hits() Hits {
	var sum Hits
	for _, s := range r.samples {
		sum = sum.Add(s.Hits)
	}
	return sum
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// byTime gives the samples in the order the requests ended.
func (r *Recorder) byTime() []Sample {
	out := slices.Clone(r.samples)
	slices.SortStableFunc(out, func(a, b Sample) int { return cmp.Compare(a.At, b.At) })
	return out
}
