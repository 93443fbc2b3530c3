package generaltest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Grids tests that operations have the same bits whatever grid they are launched in.
func Grids(t *testing.T, lib ops.Library, grids ...gpuexec.Size) {
	for _, op := range []ops.Op{ops.New(ops.MatMul, 37, 70, 75), ops.New(ops.BatchMatMul, 3, 2, 70, 37, 40), ops.New(ops.GELU, 70, 5), ops.New(ops.Attention, 150, 3, 40, 1)} {
		t.Run(op.String(), func(t *testing.T) {
			e := Open(t, lib, 1)
			l, out := launchOf(t, e, lib, op)
			var want []float32
			for _, grid := range append([]gpuexec.Size{l.Grid}, grids...) {
				if err := e.Write(background, out, 0, bytes.Repeat([]byte{0x3f}, int(out.Bytes()))); err != nil {
					t.Fatal(err)
				}
				l.Grid = grid
				if err := e.Submit(background, l); err != nil {
					t.Fatal(err)
				}
				got := Download[float32](t, e, out)
				if want == nil {
					want = got
				}
				if !bytes.Equal(gpuexec.BytesOf(got), gpuexec.BytesOf(want)) {
					t.Errorf("by a grid of %v: other bits", grid)
				}
			}
		})
	}
}

// launchOf gives a launch of an operation on tensors of random numbers, with the last of them.
func launchOf(t testing.TB, e *gpuexec.Executor, lib ops.Library, op ops.Op) (l gpuexec.Launch, out *gpuexec.Buffer) {
	t.Helper()
	src, err := lib.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	grid, values := lib.Launch(op)
	l = gpuexec.Launch{Kernel: Compile(t, e, src), Grid: grid}
	for i, n := range general.Elements(op, 1) {
		out = tensor(t, e, lib, op, i, n)
		l.Args = append(l.Args, gpuexec.BufferArg(out))
	}
	l.Args = append(l.Args, values...)
	return l, out
}

// tensor gives one of an operation's, of n numbers.
func tensor(t testing.TB, e *gpuexec.Executor, lib ops.Library, op ops.Op, at int, n int64) *gpuexec.Buffer {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, uint64(at)))
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(rnd.NormFloat64())
	}
	switch {
	case op.Kind == ops.MatMul && at == 1:
		form, err := lib.Prepare(op)
		if err != nil {
			t.Fatal(err)
		}
		packed := make([]float32, form.Bytes/4)
		if err := form.Fill(gpuexec.BytesOf(packed), numbers); err != nil {
			t.Fatal(err)
		}
		numbers = packed
	case op.Kind == ops.Gather && at == 0:
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(rnd.Int64N(op.Dims[2]))
		}
		return Upload(t, e, ids)
	case op.Kind == ops.BatchMatMul && at == 2, op.Kind == ops.Softmax && at == 1:
		return Upload(t, e, slices.Repeat([]int32{int32(op.Dims[3])}, int(n)))
	case op.Kind == ops.Attention && at == 3:
		return Upload(t, e, []int32{0, int32(op.Dims[0])}) // one sequence
	}
	return Upload(t, e, numbers)
}
