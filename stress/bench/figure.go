package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/kiln-cache/kiln/internal/measure"
)

// figure is one JSON line: the ratio to another contender, and what it was made
// of. The allocations of a miss are those of one name, of all goroutines together.
type figure struct {
	measure.Figure

	Kind    string `json:"kind"`    // hit or miss
	Entries int    `json:"entries"` // resident; a miss: names made
	Writers bool   `json:"writers"` // beside a writer, with evictions

	NS     measure.Spread `json:"ns"`               // a lookup, over all goroutines; a miss: a name
	CPU    float64        `json:"cpu_ns"`           // processor time of it, background work included; median
	P50    float64        `json:"p50_ns,omitempty"` // of batches of 64 lookups, divided by 64; medians
	P99    float64        `json:"p99_ns,omitempty"`
	Hits   float64        `json:"hits,omitempty"`   // share of the lookups; median
	Writes int64          `json:"writes,omitempty"` // in all rounds
	Made   float64        `json:"made,omitempty"`   // a miss: how often a name was made, the most of a round

	UnderOneDNN float64 `json:"times_under_onednn,omitempty"` // how many times less than OneDNN's hit
	OneDNN      string  `json:"onednn,omitempty"`             // the row that this is of

	ours, native bool
	note         string
}

// take fills in what the slots gave, and the ratio to another contender, round by
// round.
func (f *figure) take(samples, to []sample) {
	median := func(of func(sample) float64) float64 { return measure.SpreadOf(column(samples, of)).Median }
	f.NS = measure.SpreadOf(times(samples))
	f.CPU = median(func(s sample) float64 { return s.CPU })
	f.P50 = median(func(s sample) float64 { return s.P50 })
	f.P99 = median(func(s sample) float64 { return s.P99 })
	f.Hits = median(func(s sample) float64 { return s.Hits })
	for _, s := range samples {
		f.Writes += s.Writes
	}
	f.Figure = f.From(measure.Ratios(times(samples), times(to)))
}

func times(samples []sample) []float64 {
	return column(samples, func(s sample) float64 { return s.NS })
}

func column(samples []sample, of func(sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = of(s)
	}
	return out
}

// writeJSON writes the machine, then each figure, an object a line.
func writeJSON(to io.Writer, m machine, figures []figure) error {
	lines := json.NewEncoder(to)
	err := lines.Encode(m)
	for i := 0; err == nil && i < len(figures); i++ {
		err = lines.Encode(figures[i])
	}
	if err != nil {
		err = fmt.Errorf("bench: write: %w", err)
	}
	return err
}
