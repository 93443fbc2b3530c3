package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/measure"
)

// A second process compiles nothing: its first pass takes every kernel from the
// store, its second from memory, and its outputs are the first process's.
func TestRestart(t *testing.T) {
	job := []string{"--model", "bert_tiny_l2_h128", "--requests", "12", "--store", filepath.Join(t.TempDir(), "store")}
	cold, err := runProcess(t.Context(), job...)
	if err != nil {
		t.Fatal(err)
	}
	warm, err := runProcess(t.Context(), job...)
	if err != nil {
		t.Fatal(err)
	}
	if n := cold[0].Compiles; n == 0 || warm[0].Compiles != 0 || warm[0].Hits.Disk != n || warm[1].Hits.Disk != 0 || warm[1].Hits.Artefact != 0 {
		t.Errorf("cold %+v\nthen %+v", cold, warm)
	}
	for _, p := range warm {
		if p.OutputSHA256 != cold[0].OutputSHA256 {
			t.Errorf("pass %s: other outputs", p.Name)
		}
	}
	if _, err := runProcess(t.Context(), "--requests", "none"); err == nil {
		t.Error("a process that was refused gave passes")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runProcess(ctx, job...); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A ratio is of the device's figure to cpu's, with the device first, and each gate bounds
// the side that is worse: a slower product and a longer run.
func TestBesideDividesByTheSecond(t *testing.T) {
	device, cpu := &benched{}, &benched{}
	took := map[*benched]time.Duration{device: time.Millisecond, cpu: 10 * time.Millisecond}
	f, err := beside(t.Context(), measure.Figure{Bench: "b", Goroutines: 1, Gate: deviceGates["opencl"].model}, [2]*benched{device, cpu},
		func(b *benched, _ int) error { time.Sleep(took[b]); return nil }, func(s float64) float64 { return 1e3 * s }, "ms")
	if err != nil || f.Ratio <= 0 || f.Ratio > 0.5 || !f.Holds() || !strings.HasSuffix(f.Note, " ms") {
		t.Errorf("%+v, %v, want a ratio near 1/10, within its gate", f, err)
	}
	for _, c := range []struct {
		gate  *measure.Gate
		ratio float64
		holds bool
	}{
		{deviceGates["opencl"].product, 0.84, false}, {deviceGates["opencl"].product, 3, true},
		{deviceGates["opencl"].model, 1.51, false}, {deviceGates["opencl"].model, 0.3, true},
	} {
		f := measure.Figure{RatioTo: "cpu's", Gate: c.gate}.From([]float64{c.ratio, c.ratio, c.ratio})
		if f.Holds() != c.holds {
			t.Errorf("a ratio of %v holds %v: %t", c.ratio, c.gate, f.Holds())
		}
	}
}
