package cpu_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// A matrix product on the processor, whose weight is prepared once.
func Example() {
	ctx := context.Background()
	backend, _ := cpu.New("auto")
	executor, _ := gpuexec.Open(ctx, gpuexec.Config{Backend: backend})
	defer executor.Close(ctx)

	op := ops.New(ops.MatMul, 1, 2, 3)
	source, _ := backend.Source(op)
	kernel, _ := executor.Compile(ctx, source)
	defer kernel.Release()

	weight, _ := backend.Prepare(op)
	packed := make([]byte, weight.Bytes)
	_ = weight.Fill(packed, []float32{1, 2, 3, 4, 5, 6}) // [2,3], row by row
	x := gpuexec.BytesOf([]float32{10, 100})

	y := make([]float32, 3)
	var args []gpuexec.Arg
	var last *gpuexec.Buffer
	for _, operand := range [][]byte{x, packed, gpuexec.BytesOf(y)} {
		last, _ = executor.Alloc(ctx, int64(len(operand)))
		defer last.Release()
		_ = executor.Write(ctx, last, 0, operand)
		args = append(args, gpuexec.BufferArg(last))
	}
	grid, values := backend.Launch(op)
	err := executor.Submit(ctx, gpuexec.Launch{Kernel: kernel, Args: append(args, values...), Grid: grid})
	_ = executor.Read(ctx, last, 0, gpuexec.BytesOf(y))
	fmt.Println(y, err)
	// Output: [410 520 630] <nil>
}
