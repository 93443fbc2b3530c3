package onednn

import (
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// E7: a launch that waits has the exact form built first, however little its program ran;
// those before it ran in the form for any shape. The two are counted apart.
func TestLaunchThatWaits(t *testing.T) {
	b := &watched{Backend: backend(t)}
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(bg)
	const m, k, n = 5, 16, 24
	op := ops.New(ops.MatMul, m, k, n)
	kernel, err := e.Compile(bg, source(t, b.Backend, op))
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Release()
	x, weight := random(m*k), random(k*n)
	want := product(x, weight, m, k, n)
	var args []gpuexec.Arg
	var last *gpuexec.Buffer
	for _, numbers := range [][]float32{x, weight, make([]float32, m*n)} {
		buffer, err := e.Alloc(bg, int64(4*len(numbers)))
		if err != nil {
			t.Fatal(err)
		}
		defer buffer.Release()
		if err := e.Write(bg, buffer, 0, gpuexec.BytesOf(numbers)); err != nil {
			t.Fatal(err)
		}
		args, last = append(args, gpuexec.BufferArg(buffer)), buffer
	}
	b.d.mu.Lock()
	b.d.mu.building = true // as if another were being built: nothing is built behind
	b.d.mu.Unlock()
	grid, _ := b.Launch(op)
	for i, exact := range []int64{0, 0, 1, 2} {
		got := make([]float32, m*n)
		run := gpuexec.Launch{Kernel: kernel, Args: args, Grid: grid, Wait: i == 2}
		if err := e.Submit(bg, run, gpuexec.CopyFrom(last, 0, gpuexec.BytesOf(got))); err != nil {
			t.Fatal(err)
		}
		near(t, "product", got, want, 1e-5)
		if s := e.Stats(); s.Launches != int64(i+1) || s.Exact != exact {
			t.Errorf("launch %d: %d launches, %d in the exact form, want %d and %d", i, s.Launches, s.Exact, i+1, exact)
		}
	}
}
