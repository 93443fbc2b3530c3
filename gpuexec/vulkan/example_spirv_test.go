package vulkan_test

import (
	"context"
	_ "embed"
	"fmt"
	"os"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
)

// Modules of one's own, of any compiler: `glslc -O --target-env=vulkan1.2 axpy.comp -o axpy.spv`.
var (
	//go:embed testdata/axpy.spv
	axpy string // y = a x + y, for n elements
	//go:embed testdata/sum.spv
	sum string // sums[g] = the sum of the 128 elements of group g
)

// Kernels in SPIR-V need no compiler for GLSL. A vector kernel and a reduction, one behind
// the other: the store knows both in the next process, and what the driver makes of them is
// kept beside it, as far as the driver can.
func Example_spirv() {
	dir := must(os.MkdirTemp("", "kiln"))
	defer os.RemoveAll(dir)
	for range 2 { // two processes
		fmt.Println(sumOfAxpy(dir))
	}
	// prints:
	// axpy miss
	// sum miss
	// 49152
	// axpy persistent_hit
	// sum persistent_hit
	// 49152
}

func sumOfAxpy(dir string) float32 {
	const group = 128
	const n = group * group // the sums of all groups are one group's elements
	buffer, f32, u32 := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}, gpuexec.Param{Kind: gpuexec.ParamF32}, gpuexec.Param{Kind: gpuexec.ParamU32}
	vector := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{3}} // n float32
	ofAxpy := must(gpuexec.Code{Language: vulkan.SPIRV, Entry: "main", Text: axpy, Block: gpuexec.Size{group}}.Source(vector, vector, f32, u32))
	ofSum := must(gpuexec.Code{Language: vulkan.SPIRV, Entry: "main", Text: sum}.Source(buffer, buffer))

	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { fmt.Println(e.Name, e.Artefact) }}))
	defer rt.Close(ctx)
	executor := must(rt.Executor(ctx, vulkan.New(vulkan.Config{PipelineFile: dir + "/pipelines.bin"}), 0)) // the error says what to install
	shape := must(must(rt.Session(kiln.SessionConfig{})).Group(ctx, []int64{n}))
	defer shape.Close()
	scale, add := must(shape.Kernel(ctx, "axpy", executor, ofAxpy)), must(shape.Kernel(ctx, "sum", executor, ofSum))

	ones, total := make([]float32, n), make([]float32, 1)
	for i := range ones {
		ones[i] = 1
	}
	x, y, sums := must(executor.Alloc(ctx, 4*n)), must(executor.Alloc(ctx, 4*n)), must(executor.Alloc(ctx, 4*group))
	defer x.Release()
	defer y.Release()
	defer sums.Release()
	bx, by, bs := gpuexec.BufferArg(x), gpuexec.BufferArg(y), gpuexec.BufferArg(sums)
	check(executor.Submit(ctx, gpuexec.CopyTo(x, 0, gpuexec.BytesOf(ones)), gpuexec.CopyTo(y, 0, gpuexec.BytesOf(ones)),
		gpuexec.Launch{Kernel: scale, Grid: gpuexec.Size{group}, Args: []gpuexec.Arg{bx, by, gpuexec.ValueArg(float32(2)), gpuexec.ValueArg(uint32(n))}}, // y = 3, everywhere
		gpuexec.Launch{Kernel: add, Grid: gpuexec.Size{group}, Args: []gpuexec.Arg{by, bs}},
		gpuexec.Launch{Kernel: add, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{bs, bx}},
		gpuexec.CopyFrom(x, 0, gpuexec.BytesOf(total))))
	return total[0]
}
