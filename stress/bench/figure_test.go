package main

import (
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/measure/incumbent"
)

func TestSumOfTracks(t *testing.T) {
	tracks := []track{
		{lookups: 64, found: 64, batches: 1, times: []time.Duration{640, 0}},
		{lookups: 192, found: 128, batches: 3, times: []time.Duration{6400, 1280}}, // two of the three are kept
	}
	var s sample
	s.sum(tracks, 2560, 512)
	want := sample{NS: 10, CPU: 2, P50: 20, P99: 100, Hits: 0.75}
	if s != want {
		t.Errorf("sum = %+v, want %+v", s, want)
	}
}

func TestFigureFromSamples(t *testing.T) {
	own := []sample{{NS: 10, Hits: 1, Writes: 5}, {NS: 40, Hits: 0.5, Writes: 5}, {NS: 20, Hits: 0.75, Writes: 5}}
	to := []sample{{NS: 20}, {NS: 20}, {NS: 80}}
	var f figure
	f.take(own, to)
	if f.N != 3 || f.NS != (measure.Spread{Median: 20, Min: 10, Max: 40}) || f.Ratio != 0.5 || f.Min != 0.25 || f.Max != 2 || f.Hits != 0.75 || f.Writes != 15 {
		t.Errorf("figure = %+v", f)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for x, want := range map[float64]string{0.0123: "0.012", 0.3: "0.30", 9.94: "9.94", 9.96: "10", 1234.4: "1,234"} {
		if got := short(x); got != want {
			t.Errorf("short(%g) = %q, want %q", x, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1048576: "1,048,576"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %q, want %q", n, got, want)
		}
	}
}

// A slot counts what its readers found, lets the writer write no more than once
// for each batch of lookups, and hands on the writer's error.
func TestSlot(t *testing.T) {
	const requests = 3 * batch
	half := contender{find: func(from, to int) int {
		if from < 0 || to > requests || to-from != batch {
			t.Errorf("asked for requests %d to %d of %d", from, to, requests)
		}
		return (to - from) / 2
	}}
	s, err := slot(half, requests, 2, 5*time.Millisecond, nil)
	if err != nil || s.NS <= 0 || s.Hits != 0.5 || s.Writes != 0 || s.P50 != 0 {
		t.Errorf("slot = %+v, %v", s, err)
	}
	wrote := int64(0)
	s, err = slot(half, requests, 1, 5*time.Millisecond, func() error { wrote++; return nil })
	if err != nil || s.Writes != wrote || s.P50 <= 0 || s.P99 < s.P50 {
		t.Errorf("slot beside a writer = %+v, %v; it wrote %d", s, err, wrote)
	}
	if lookups := float64(5*time.Millisecond) / s.NS; float64(wrote) > 4*lookups/batch {
		t.Errorf("%d writes beside some %.0f lookups", wrote, lookups)
	}
	if _, err = slot(half, requests, 1, 50*time.Millisecond, func() error { return incumbent.ErrAbsent }); err != incumbent.ErrAbsent {
		t.Errorf("the writer's error came back as %v", err)
	}
}
