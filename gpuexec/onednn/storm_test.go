package onednn

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// wave is an operation with arguments and what it gives.
type wave struct {
	op      ops.Op
	inputs  []gpuexec.DeviceArg
	want    []float64
	program *program // all callers': the forms are shared
}

// waves are operations of several sizes, each with a program, run once alone.
func (s *stage) waves() (all []*wave) {
	s.Helper()
	for _, n := range []int64{3, 17, 70} {
		scores := ops.New(ops.BatchMatMul, 2, 2, n, 8, n)
		scores.TransposeB, scores.Scale = true, 0.5
		norm := ops.New(ops.LayerNorm, n, 64)
		norm.Epsilon = 1e-5
		lengths := s.filled(make([]float32, 2))
		copy(lengths.Memory.Mapped(), gpuexec.BytesOf([]int32{int32(n), int32(n / 2)}))
		ragged := ops.New(ops.BatchMatMul, 2, 2, n, n, 8)
		ragged.MaskK = true
		x := func(count int64) gpuexec.DeviceArg { return s.filled(random(count)) }
		for _, w := range []*wave{
			{op: ops.New(ops.MatMul, n, 64, 48), inputs: []gpuexec.DeviceArg{x(n * 64), x(64 * 48)}},
			{op: scores, inputs: []gpuexec.DeviceArg{x(32 * n), x(32*n + 1), lengths}},
			{op: ragged, inputs: []gpuexec.DeviceArg{x(4 * n * n), x(32 * n), lengths}},
			{op: ops.New(ops.Softmax, 2, 2, n, n), inputs: []gpuexec.DeviceArg{x(4 * n * n), lengths}},
			{op: norm, inputs: []gpuexec.DeviceArg{x(n * 64), x(64), x(64)}},
			{op: ops.New(ops.GELU, n, 64), inputs: []gpuexec.DeviceArg{x(n * 64)}},
		} {
			w.program = s.compile(w.op)
			out := s.filled(make([]float32, w.op.Elements()))
			s.launch(w.program, append(w.inputs[:len(w.inputs):len(w.inputs)], out)...)
			w.want = wide(floats(out.Memory.Mapped()))
			all = append(all, w)
		}
	}
	return all
}

// E5, E7: any number of queues launch shared programs and their own, in both forms, while
// others are compiled, released and have their exact forms built: every output is what it
// is alone.
func TestQueuesSharePrograms(t *testing.T) {
	s := onStage(t)
	all := s.waves()
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	var callers sync.WaitGroup
	for seed := range uint64(8) {
		q, err := s.OpenQueue()
		if err != nil {
			t.Fatal(err)
		}
		callers.Go(func() {
			defer func() {
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}()
			rnd := rand.New(rand.NewPCG(seed, 7))
			for range rounds {
				if err := s.round(q, rnd, all[rnd.IntN(len(all))]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	s.all.Wait()
	for _, w := range all {
		w.program.Release()
	}
}

// round launches a wave on a queue, in its shared program or in one of the caller's own.
func (s *stage) round(q gpuexec.Queue, rnd *rand.Rand, w *wave) error {
	p := w.program
	switch rnd.IntN(4) {
	case 0:
		own, err := s.Compile(bg, source(s, s.b, w.op))
		if err != nil {
			return err
		}
		defer own.Release()
		p = own.(*program)
		if rnd.IntN(2) == 0 {
			p.spent.Store(int64(time.Hour)) // it wants its exact form
		}
	case 1:
		p.Exact(bg, true)
	}
	out, err := s.Alloc(4 * w.op.Elements())
	if err != nil {
		return err
	}
	args := append(w.inputs[:len(w.inputs):len(w.inputs)], gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: out, Bytes: 4 * w.op.Elements()})
	if err := q.Launch(bg, p, args, gpuexec.Size{1, 1, 1}, gpuexec.Size{1, 1, 1}); err != nil {
		return err
	}
	for i, v := range floats(out.Mapped()) {
		if !(math.Abs(float64(v)-w.want[i]) <= 1e-4*(1+math.Abs(w.want[i]))) {
			s.Errorf("%s: number %d is %v, alone %v", w.op, i, v, w.want[i])
			break
		}
	}
	return nil
}

// C5, D3: with a capacity of one every other request evicts what the last one made, while
// others use it; what they lease runs on.
func TestCapacityOfOne(t *testing.T) {
	r := open1(t, limit.Of(1))
	shapes := []primitive.Tensor{Dense("f32", 3, 16), Dense("f32", 5, 16), Dense("f32", 7, 16)}
	var callers sync.WaitGroup
	for seed := range uint64(8) {
		var src, dst []*Memory
		for i, shape := range shapes {
			src, dst = append(src, r.filled(uint64(i), shape)), append(dst, r.memory(shape))
		}
		callers.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 9))
			for range 300 {
				i := rnd.IntN(len(shapes))
				s := spec("eltwise", "inference", "abs", nil, shapes[i], shapes[i])
				lease, _, err := r.Primitive(bg, &s, "")
				if err == nil {
					err = r.Execute(bg, lease.Primitive(), Arg{Src, src[i]}, Arg{Dst, dst[i]})
					lease.End()
				}
				if err != nil {
					t.Error(err)
					return
				}
				for at, v := range Of[float32](dst[i]) {
					if want := Of[float32](src[i])[at]; v != max(want, -want) {
						t.Errorf("abs %v is %v", want, v)
						return
					}
				}
			}
		})
	}
	callers.Wait()
	if n := r.cache.Stats().Entries; n > 1 {
		t.Errorf("%d entries, want at most one", n)
	}
}
