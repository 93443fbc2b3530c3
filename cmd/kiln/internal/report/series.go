package report

import (
	"slices"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
)

// level is one band of the picture, quickest at the bottom.
type level struct {
	name  string
	color [3]uint8
	value func(Sample) int64
}

// levels go from cold blue, nothing to do, to hot red, compiled.
var levels = []level{
	{"held reference", [3]uint8{0x1f, 0x4e, 0x79}, func(s Sample) int64 { return s.Hits.Held }},
	{"shape group", [3]uint8{0x2e, 0x86, 0xab}, func(s Sample) int64 { return s.Hits.Group }},
	{"session", [3]uint8{0x6c, 0xc5, 0xb0}, func(s Sample) int64 { return s.Hits.Session }},
	{"artefact cache", [3]uint8{0xc5, 0xd8, 0x6d}, func(s Sample) int64 { return s.Hits.Artefact }},
	{"disk", [3]uint8{0xf6, 0xc8, 0x5f}, func(s Sample) int64 { return s.Hits.Disk }},
	{"fleet", [3]uint8{0xf4, 0x9d, 0x37}, func(s Sample) int64 { return s.Hits.Fleet }},
	{"compiled", [3]uint8{0xd6, 0x45, 0x50}, func(s Sample) int64 { return s.Compiles }},
}

// deepest is the index of the slowest level that a request had to go to.
func deepest(s Sample) int {
	for i := len(levels) - 1; i > 0; i-- {
		if levels[i].value(s) > 0 {
			return i
		}
	}
	return 0
}

// bin is a stretch of a pass.
type bin struct {
	from, to time.Duration
	perLevel []float64 // % of its lookups
	median   time.Duration
	requests int
}

// bins cuts a pass into n equal stretches up to its last request.
func (r *Recorder) bins(n int) []bin {
	samples := r.byTime()
	if len(samples) == 0 {
		return nil
	}
	span := max(samples[len(samples)-1].At, time.Duration(n)*time.Microsecond) // no stretch is empty
	out := make([]bin, n)
	latencies := make([][]time.Duration, n)
	for i := range out {
		out[i] = bin{from: span * time.Duration(i) / time.Duration(n), to: span * time.Duration(i+1) / time.Duration(n), perLevel: make([]float64, len(levels))}
	}
	for _, s := range samples {
		i := min(int(float64(s.At)/float64(span)*float64(n)), n-1)
		b := &out[i]
		b.requests++
		for l := range levels {
			b.perLevel[l] += float64(levels[l].value(s))
		}
		latencies[i] = append(latencies[i], s.Latency)
	}
	for i, l := range latencies {
		if len(l) > 0 {
			slices.Sort(l)
			out[i].median = measure.Percentile(l, 50)
		}
		sum := 0.0
		for _, n := range out[i].perLevel {
			sum += n
		}
		for l := range levels {
			out[i].perLevel[l] *= 100 / max(sum, 1)
		}
	}
	return out
}

// thin keeps at most n samples for drawing, evenly, and besides them all that
// went deeper than the session: these are what a reader looks for.
func thin(samples []Sample, n int) []Sample {
	if len(samples) <= n {
		return samples
	}
	const session = 2
	out := make([]Sample, 0, n)
	for i, s := range samples {
		if i*n/len(samples) != (i-1)*n/len(samples) || deepest(s) > session {
			out = append(out, s)
		}
	}
	return out
}
