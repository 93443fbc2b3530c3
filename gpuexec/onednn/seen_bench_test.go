package onednn

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/limit"
)

// lookedUp is a primitive of a layer at one length, with what finds it on each side.
type lookedUp struct {
	kept *primitive.Descriptor // ours
	o    *operation            // theirs: descriptors of memory and attributes, kept
	args []Arg
	raw  []execArg
}

// layerOps are the operations of one layer of MiniLM that oneDNN has a primitive for.
func layerOps(tokens int64) []ops.Op {
	const width, inner, heads, head = 384, 1536, 12, 32
	product := func(k, n int64) ops.Op { return ops.Op{Kind: ops.MatMul, Dims: [5]int64{tokens, k, n}, Bias: true} }
	norm := ops.Op{Kind: ops.LayerNorm, Dims: [5]int64{tokens, width}, Epsilon: 1e-12}
	return []ops.Op{
		product(width, width), product(width, width), product(width, width),
		{Kind: ops.BatchMatMul, Dims: [5]int64{1, heads, tokens, head, tokens}, TransposeB: true, Scale: 0.17},
		{Kind: ops.Softmax, Dims: [5]int64{1, heads, tokens, tokens}},
		{Kind: ops.BatchMatMul, Dims: [5]int64{1, heads, tokens, tokens, head}},
		product(width, width), norm,
		product(width, inner), {Kind: ops.GELU, Dims: [5]int64{tokens, inner}}, product(inner, width), norm,
	}
}

// BenchmarkSeenLengths runs the primitives of a layer at lengths that were seen before,
// found in our cache, in oneDNN's own, and with both off, in turns; the metrics are how many
// times as long as ours the others take.
func BenchmarkSeenLengths(b *testing.B) {
	for _, lengths := range [][]int64{{3, 5, 8, 13, 21, 34}, {57, 118, 171, 239, 290, 355, 418, 486}} {
		b.Run(fmt.Sprint(lengths), func(b *testing.B) {
			r := open1(b, limit.Of(1024))
			var all []*lookedUp
			for _, tokens := range lengths {
				for _, op := range layerOps(tokens) {
					all = append(all, r.lookedUp((&program{op: op}).spec()))
				}
			}
			w := <-r.workers
			defer func() { r.workers <- w }()
			defer r.c.CacheSize(0)
			sides := []func(){
				func() { r.ours(w, all) },
				func() { r.c.CacheSize(1024); r.theirs(w, all) },
				func() { r.c.CacheSize(0); r.theirs(w, all) },
			}
			var own, off []float64
			for b.Loop() {
				var took [3]time.Duration
				for side, run := range sides {
					run() // their cache is filled
					took[side], _ = measure.Quickest(3, func() error { run(); return nil })
				}
				own, off = append(own, took[1].Seconds()/took[0].Seconds()), append(off, took[2].Seconds()/took[0].Seconds())
			}
			b.ReportMetric(median(own), "own/ours")
			b.ReportMetric(median(off), "off/ours")
		})
	}
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func (r *rig) lookedUp(s primitive.Spec) *lookedUp {
	r.Helper()
	d, _, err := r.Descriptor(bg, &s)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(d.Release)
	o, err := r.operation(bg, &s)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(o.free)
	l := &lookedUp{kept: d, o: o}
	k := r.kernel(s).Native().(*kernel)
	for _, want := range k.plan.args {
		m := r.memory(want.tensor)
		fill := rand.New(rand.NewPCG(1, uint64(want.slot)))
		for i, list := 0, Of[float32](m); i < len(list); i++ {
			list[i] = fill.Float32()
		}
		l.args, l.raw = append(l.args, Arg{want.slot, m}), append(l.raw, execArg{arg: want.id, memory: m.h})
	}
	return l
}

func (r *rig) ours(w *worker, all []*lookedUp) {
	for _, l := range all {
		lease, _, err := r.Make(bg, l.kept, "")
		if err == nil {
			err = w.run(lease.Primitive().Native().(*kernel), l.args)
			lease.End()
		}
		if err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) theirs(w *worker, all []*lookedUp) {
	for _, l := range all {
		list, err := r.b.begin(l.o)
		if err != nil {
			r.Fatal(err)
		}
		pd, own, err := r.b.at(l.o, list)
		if err != nil {
			r.Fatal(err)
		}
		h := new(handle)
		if err := r.c.status("create", r.c.Make(h, pd)); err != nil {
			r.Fatal(err)
		}
		k := &kernel{h: *h, plan: &plan{}}
		if md := r.c.PlanDesc(pd, queryArg, int32(scratchpad)); md != nil {
			k.plan.scratch = int64(r.c.DescBytes(md))
		}
		w.args = append(w.args[:0], l.raw...)
		if err := w.execute(k); err != nil {
			r.Fatal(err)
		}
		r.c.Free(*h)
		if own {
			r.c.PlanFree(pd)
		}
		r.b.end(l.o, list)
	}
}
