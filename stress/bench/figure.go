package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// figure is one JSON line: the median over N rounds of the ratio to another
// contender, with the least and the most, and what it was made of.
type figure struct {
	Bench      string  `json:"bench"`
	RatioTo    string  `json:"ratio_to"`
	Ratio      float64 `json:"ratio"`
	Min        float64 `json:"min"`
	Max        float64 `json:"max"`
	Allocs     float64 `json:"allocs"` // of one operation; a miss: of one name, all goroutines together
	Goroutines int     `json:"goroutines"`
	N          int     `json:"n"`

	Kind    string `json:"kind"`    // hit or miss
	Entries int    `json:"entries"` // resident; a miss: names made
	Writers bool   `json:"writers"` // beside a writer, with evictions

	NS     spread  `json:"ns"`               // a lookup, over all goroutines; a miss: a name
	CPU    float64 `json:"cpu_ns"`           // processor time of it, background work included; median
	P50    float64 `json:"p50_ns,omitempty"` // of batches of 64 lookups, divided by 64; medians
	P99    float64 `json:"p99_ns,omitempty"`
	Hits   float64 `json:"hits,omitempty"`   // share of the lookups; median
	Writes int64   `json:"writes,omitempty"` // in all rounds
	Made   float64 `json:"made,omitempty"`   // a miss: how often a name was made, the most of a round

	UnderOneDNN float64 `json:"times_under_onednn,omitempty"` // how many times less than OneDNN's hit
	OneDNN      string  `json:"onednn,omitempty"`             // the row that this is of

	ours, native bool
	note         string
}

// take fills in what the slots gave by themselves.
func (f *figure) take(samples []sample) {
	median := func(of func(sample) float64) float64 { return spreadOf(column(samples, of)).Median }
	f.N = len(samples)
	f.NS = spreadOf(times(samples))
	f.CPU = median(func(s sample) float64 { return s.CPU })
	f.P50 = median(func(s sample) float64 { return s.P50 })
	f.P99 = median(func(s sample) float64 { return s.P99 })
	f.Hits = median(func(s sample) float64 { return s.Hits })
	for _, s := range samples {
		f.Writes += s.Writes
	}
}

// compare fills in the ratio to another contender, round by round.
func (f *figure) compare(samples, to []sample) {
	r := spreadOf(ratios(times(samples), times(to)))
	f.Ratio, f.Min, f.Max = r.Median, r.Min, r.Max
}

func times(samples []sample) []float64 {
	return column(samples, func(s sample) float64 { return s.NS })
}

func column[T any](samples []T, of func(T) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = of(s)
	}
	return out
}

// writeJSON writes the machine, then each figure, an object a line.
func writeJSON(to io.Writer, m machine, figures []figure) error {
	lines := json.NewEncoder(to)
	if err := lines.Encode(m); err != nil {
		return fmt.Errorf("bench: write: %w", err)
	}
	for _, f := range figures {
		if err := lines.Encode(f); err != nil {
			return fmt.Errorf("bench: write: %s: %w", f.Bench, err)
		}
	}
	return nil
}

// spread is what is shown of one figure over the rounds; all NaN without any.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	n := len(values)
	if n == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(values))
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// ratios divides round by round, for as many rounds as both have.
func ratios(of, to []float64) []float64 {
	out := make([]float64, min(len(of), len(to)))
	for i := range out {
		out[i] = of[i] / to[i]
	}
	return out
}

// percentile is the least of the sorted values that a share q of them does not
// exceed; 0 without any.
func percentile[T any](sorted []T, q float64) T {
	var zero T
	if len(sorted) == 0 {
		return zero
	}
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)]
}
