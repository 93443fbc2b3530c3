package onednn

import (
	"testing"

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
