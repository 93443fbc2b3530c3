package generaltest

import (
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/measure"
)

// Beside measures each operation of MiniLM at 128 tokens on this device and on another, in
// turns: what a launch takes in the quickest sequence of them, of time and of the processors'
// time, on which other work on the machine bears less.
func Beside(b *testing.B, lib, other ops.Library) {
	scores, mixed, norm := ops.New(ops.BatchMatMul, 1, 12, 128, 32, 128), ops.New(ops.BatchMatMul, 1, 12, 128, 128, 32), ops.New(ops.LayerNorm, 128, 384)
	scores.TransposeB, scores.Scale, mixed.MaskK, norm.Epsilon = true, 0.25, true, 1e-12
	product := func(m, k, n int64) ops.Op {
		op := ops.New(ops.MatMul, m, k, n)
		op.Bias = true
		return op
	}
	for _, op := range []ops.Op{product(128, 384, 384), product(128, 384, 1536), product(128, 1536, 384), product(128, 768, 3072), product(8, 384, 384), product(1, 384, 384),
		scores, mixed, ops.New(ops.Softmax, 1, 12, 128, 128), norm, ops.New(ops.Reorder, 1, 128, 12, 32), ops.New(ops.GELU, 128, 1536),
		ops.New(ops.Add, 128, 384, 128), ops.New(ops.Gather, 128, 384, 30522), ops.New(ops.Attention, 128, 12, 32, 1)} {
		b.Run(op.String(), func(b *testing.B) {
			sides := []func() error{sequence(b, lib, op), sequence(b, other, op)}
			var quickest, busy [2]time.Duration
			for i, side := range sides {
				quickest[i], busy[i] = measure.Disturbed, measure.Disturbed
				if err := side(); err != nil { // drivers compile
					b.Fatal(err)
				}
			}
			for b.Loop() {
				for i, side := range sides {
					before, _ := measure.ProcessTime()
					began := time.Now()
					if err := side(); err != nil {
						b.Fatal(err)
					}
					took := time.Since(began)
					after, _ := measure.ProcessTime()
					quickest[i], busy[i] = min(quickest[i], took), min(busy[i], after-before)
				}
			}
			for i, name := range []string{lib.Name(), other.Name()} {
				b.ReportMetric(quickest[i].Seconds()*1e6/launches, name+"-us")
				b.ReportMetric(busy[i].Seconds()*1e6/launches, name+"-busy-us")
			}
			b.ReportMetric(quickest[0].Seconds()/quickest[1].Seconds(), "times-"+other.Name())
			b.ReportMetric(busy[0].Seconds()/busy[1].Seconds(), "times-busy")
		})
	}
}

const launches = 8 // of a sequence

// sequence has an operation launched several times, to the end of all.
func sequence(b *testing.B, lib ops.Library, op ops.Op) func() error {
	b.Helper()
	e := Open(b, lib, 1)
	l, _ := launchOf(b, e, lib, op)
	all := slices.Repeat([]gpuexec.Launch{l}, launches)
	return func() error { return e.Submit(background, all...) }
}
