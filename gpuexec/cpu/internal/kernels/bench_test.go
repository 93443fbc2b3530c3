package kernels_test

import (
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// BenchmarkKernels runs each operation of a 6-layer, 384-wide encoder at 128
// tokens, cut into calls as a worker would.
func BenchmarkKernels(b *testing.B) {
	const tokens, width, heads, inner = 128, 384, 12, 1536
	for _, s := range []struct {
		spec     kernels.Spec
		elements int
	}{
		{specOf(ops.GELU, tokens, inner), tokens * inner},
		{specOf(ops.Tanh, tokens, width), tokens * width},
		{specOf(ops.Softmax, 1, heads, tokens, tokens), heads * tokens * tokens},
		{layerNorm(tokens, width, 1e-12), tokens * width},
		{specOf(ops.Reorder, 1, tokens, heads, width/heads), tokens * width},
		{specOf(ops.Reorder, 1, heads, tokens, width/heads), tokens * width},
		{specOf(ops.Add, tokens, width, tokens), tokens * width},
		{specOf(ops.Add, tokens, width, 1), tokens * width},
		{specOf(ops.Gather, tokens, width, 1000), tokens * width},
		{specOf(ops.Slice, 8, 16, width), 8 * width},
	} {
		b.Run(s.spec.String(), func(b *testing.B) {
			l := newLaunch(b, openEngine(b), s.spec, 1)
			for n, q := range l.params {
				for i := range int(q.Bytes / 4) {
					if q.Name == "lengths" { // nothing is masked
						l.setInt(n, i, tokens)
					}
				}
			}
			step := s.spec.BlocksPerCall()
			for b.Loop() {
				for from := uint32(0); from < s.spec.Blocks(); from += step {
					if err := l.instance.Call(l.buffers, from, min(from+step, s.spec.Blocks())); err != nil {
						b.Fatal(err)
					}
				}
			}
			perElement := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(s.elements)
			b.ReportMetric(perElement, "ns/element")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(s.spec.Blocks()), "ns/block")
		})
	}
}

// BenchmarkEncoder is every operation but the matrix products of a 6-layer,
// 384-wide encoder on one sequence of 128 tokens. The launches use the same
// buffers, so the two gathers, whose ids that would spoil, are left out.
func BenchmarkEncoder(b *testing.B) {
	const tokens, width, heads, inner, layers = 128, 384, 12, 1536, 6
	e := openEngine(b)
	var list []*launch
	add := func(times int, s kernels.Spec) {
		for range times {
			list = append(list, newLaunch(b, e, s, 1))
		}
	}
	add(2, specOf(ops.Add, tokens, width, tokens))
	add(1+2*layers, layerNorm(tokens, width, 1e-12))
	add(3*layers, specOf(ops.Reorder, 1, tokens, heads, width/heads))
	add(layers, specOf(ops.Reorder, 1, heads, tokens, width/heads))
	add(layers, specOf(ops.GELU, tokens, inner))
	add(2*layers, specOf(ops.Add, tokens, width, tokens))
	add(1, specOf(ops.Slice, 1, tokens, width))
	add(1, specOf(ops.Tanh, 1, width))
	add(layers, specOf(ops.Softmax, 1, heads, tokens, tokens))
	last := list[len(list)-1]
	last.setInt(1, 0, tokens) // all softmaxes share their buffers
	for b.Loop() {
		for _, l := range list {
			step := l.spec.BlocksPerCall()
			for from := uint32(0); from < l.spec.Blocks(); from += step {
				if err := l.instance.Call(l.buffers, from, min(from+step, l.spec.Blocks())); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

// BenchmarkCompile is the cost of a new kernel, of loading its blob, and of
// finding it compiled already.
func BenchmarkCompile(b *testing.B) {
	for _, spec := range []kernels.Spec{
		specOf(ops.GELU, 128, 1536), specOf(ops.Softmax, 1, 12, 128, 128), specOf(ops.Softmax, 1, 12, 127, 127),
		layerNorm(128, 384, 1e-12), specOf(ops.Reorder, 1, 128, 12, 32), specOf(ops.Add, 128, 384, 128),
	} {
		e := openEngine(b)
		compile := func(b *testing.B) *kernels.Program {
			p, err := e.Compile(b.Context(), spec)
			if err != nil {
				b.Fatal(err)
			}
			return p
		}
		p := compile(b)
		blob, err := p.Blob()
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint("resident/", spec), func(b *testing.B) {
			for b.Loop() {
				compile(b).Close()
			}
		})
		p.Close()
		b.Run(fmt.Sprint("compile/", spec), func(b *testing.B) {
			b.ReportMetric(float64(len(blob)), "blobbytes")
			for b.Loop() {
				compile(b).Close()
			}
		})
		b.Run(fmt.Sprint("load/", spec), func(b *testing.B) {
			for b.Loop() {
				p, err := e.Load(b.Context(), blob)
				if err != nil {
					b.Fatal(err)
				}
				p.Close()
			}
		})
	}
}
