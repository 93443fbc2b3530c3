package gpuexec_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec"
	_ "github.com/kiln-cache/kiln/gpuexec/cpu" // registers itself
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// A kernel is compiled, taken out as a blob, and loaded on another executor without
// a compile.
func Example() {
	ctx := context.Background()
	library := ops.Find("cpu")
	source, _ := library.Source(ops.New(ops.Tanh, 1, 2))

	first, _ := gpuexec.Open(ctx, gpuexec.Config{Backend: library})
	kernel, _ := first.Compile(ctx, source)
	blob, _ := kernel.Blob(ctx) // for devices of first.Identity()
	kernel.Release()
	first.Close(ctx)

	second, _ := gpuexec.Open(ctx, gpuexec.Config{Backend: library})
	defer second.Close(ctx)
	kernel, _ = second.Load(ctx, source, blob)
	defer kernel.Release()

	x := []float32{0, 100}
	in, _ := second.Alloc(ctx, 8)
	defer in.Release()
	_ = second.Write(ctx, in, 0, gpuexec.BytesOf(x))
	all := gpuexec.BufferArg(in) // tanh may write over its argument
	err := second.Submit(ctx, gpuexec.Launch{Kernel: kernel, Args: []gpuexec.Arg{all, all}, Grid: gpuexec.Size{1}})
	_ = second.Read(ctx, in, 0, gpuexec.BytesOf(x))
	fmt.Println(x, err, second.Stats().Compiles)
	// Output: [0 1] <nil> 0
}
