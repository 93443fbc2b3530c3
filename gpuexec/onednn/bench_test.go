package onednn

import (
	"fmt"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// What a request costs that is there, that is not, and an execution, beside the library's
// own calls for it.
func BenchmarkProduct(b *testing.B) {
	s := matmul(32, 384, 1536, Dense("f32", 384, 1536))
	s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "gelu_erf"}}
	b.Run("hit", func(b *testing.B) {
		r := open1(b, limit.Limit{})
		r.kernel(s)
		b.ReportAllocs()
		for b.Loop() {
			d, _, err := r.Descriptor(bg, &s)
			if err != nil {
				b.Fatal(err)
			}
			d.Release()
		}
	})
	b.Run("miss", func(b *testing.B) {
		r := open1(b, limit.Of(0))
		for b.Loop() {
			lease, _, err := r.Primitive(bg, &s, "")
			if err != nil {
				b.Fatal(err)
			}
			lease.End()
		}
	})
	b.Run("miss/library", func(b *testing.B) {
		r := open1(b, limit.Of(0))
		for b.Loop() {
			o, err := r.operation(bg, &s)
			if err != nil {
				b.Fatal(err)
			}
			list, err := r.b.begin(o)
			if err != nil {
				b.Fatal(err)
			}
			pd, own, err := r.b.at(o, list)
			if err != nil {
				b.Fatal(err)
			}
			h := new(handle)
			r.c.Make(h, pd)
			r.c.Free(*h)
			if own {
				r.c.PlanFree(pd)
			}
			r.b.end(o, list)
			o.free()
		}
	})
	small := spec("eltwise", "inference", "relu", nil, Dense("f32", 1, 16), Dense("f32", 1, 16))
	b.Run("execute", func(b *testing.B) {
		r := open1(b, limit.Limit{})
		p, m := r.kernel(small), r.memory(Dense("f32", 1, 16))
		b.ReportAllocs()
		for b.Loop() {
			r.run(p, Arg{Src, m}, Arg{Dst, m})
		}
	})
	b.Run("execute/library", func(b *testing.B) {
		r := open1(b, limit.Limit{})
		p, m := r.kernel(small), r.memory(Dense("f32", 1, 16))
		k, w := p.Native().(*kernel), <-r.workers
		defer func() { r.workers <- w }()
		args := []execArg{{arg: 1, memory: m.h}, {arg: 17, memory: m.h}}
		for b.Loop() {
			r.c.Execute(k.h, w.stream, 2, &args[0])
			r.c.StreamWait(w.stream)
		}
	})
}

// What a weight in the layout that the library chooses is worth beside one in rows. The two
// run in turns; rows/own is how many times as long the shortest run on rows takes.
func BenchmarkWeightLayout(b *testing.B) {
	for _, size := range [][2]int64{{384, 1536}, {768, 768}, {768, 3072}, {3072, 768}} {
		for _, m := range []int64{1, 8, 32, 128} {
			k, n := size[0], size[1]
			b.Run(fmt.Sprintf("%dx%dx%d", m, k, n), func(b *testing.B) {
				r := open1(b, limit.Limit{})
				src, bias, dst := r.filled(1, Dense("f32", m, k)), r.filled(3, Dense("f32", 1, n)), r.memory(Dense("f32", m, n))
				var forms [2]func()
				for i, t := range []tensor{Dense("f32", k, n), {Type: "f32", Dims: []int64{k, n}}} {
					p := r.kernel(matmul(m, k, n, t))
					weights := r.memory(p.Descriptor().Tensors()[1])
					forms[i] = func() { r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst}) }
					forms[i]()
				}
				shortest := [2]time.Duration{time.Hour, time.Hour}
				for b.Loop() {
					for i, run := range forms {
						began := time.Now()
						run()
						shortest[i] = min(shortest[i], time.Since(began))
					}
				}
				b.ReportMetric(float64(shortest[0])/float64(shortest[1]), "rows/own")
				b.ReportMetric(float64(shortest[0].Nanoseconds()), "rows-ns")
			})
		}
	}
}
