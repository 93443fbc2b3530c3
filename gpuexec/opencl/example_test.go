package opencl_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
)

// A kernel of the program's own is compiled once and kept in a store: the next process
// that asks for it loads it. Its key covers all of the Code and the parameters.
func Example() {
	saxpy("/var/cache/saxpy")
}

func saxpy(dir string) {
	vector := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{3}} // n float32
	source := must(gpuexec.Code{
		Language: opencl.Language,
		Entry:    "saxpy",
		Text: `kernel void saxpy(float a, global const float *x, global float *y, uint n) {
			size_t i = get_global_id(0);
			if (i < n) y[i] = a * x[i] + y[i];
		}`,
		Block: gpuexec.Size{64},
	}.Source(gpuexec.Param{Kind: gpuexec.ParamF32}, vector, vector, gpuexec.Param{Kind: gpuexec.ParamU32}))

	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { fmt.Println(e.Name, e.Artefact) }}))
	defer rt.Close(ctx)
	device := must(rt.Executor(ctx, gpuexec.Find(opencl.Name), 0)) // the error says what to install
	session := must(rt.Session(kiln.SessionConfig{Name: "vectors"}))
	group := must(session.Group(ctx, []int64{3}))
	defer group.Close()
	kernel := must(group.Kernel(ctx, "saxpy", device, source))

	x, y := []float32{1, 2, 3}, []float32{10, 20, 30}
	in, out := must(device.Alloc(ctx, 12)), must(device.Alloc(ctx, 12))
	defer in.Release()
	defer out.Release()
	check(device.Write(ctx, in, 0, gpuexec.BytesOf(x)))
	check(device.Write(ctx, out, 0, gpuexec.BytesOf(y)))
	check(device.Submit(ctx, gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{
		gpuexec.ValueArg(float32(2)), gpuexec.BufferArg(in), gpuexec.BufferArg(out), gpuexec.ValueArg(uint32(3))}}))
	check(device.Read(ctx, out, 0, gpuexec.BytesOf(y)))
	fmt.Println(y)
}

// A reduction: a block of work items adds its numbers up in local memory, whose size a launch
// says. What the blocks have left is added up by the next launch of the same kernel, behind
// the first in one sequence.
func Example_reduction() {
	total("/var/cache/total")
}

func total(dir string) {
	const n, block = 1000, 64
	const blocks = (n + block - 1) / block
	source := must(gpuexec.Code{
		Language: opencl.Language,
		Entry:    "total",
		Text: `kernel void total(global const float *x, uint n, local float *part, global float *sums) {
			uint i = get_global_id(0), at = get_local_id(0);
			part[at] = i < n ? x[i] : 0;
			for (uint step = get_local_size(0) / 2; step > 0; step /= 2) {
				barrier(CLK_LOCAL_MEM_FENCE);
				if (at < step) part[at] += part[at + step];
			}
			if (at == 0) sums[get_group_id(0)] = part[0];
		}`,
		Block: gpuexec.Size{block},
	}.Source(
		gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{1}}, gpuexec.Param{Kind: gpuexec.ParamU32},
		gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: 4 * block}, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}))

	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { fmt.Println(e.Name, e.Artefact) }}))
	defer rt.Close(ctx)
	device := must(rt.Executor(ctx, gpuexec.Find(opencl.Name), 0))
	group := must(must(rt.Session(kiln.SessionConfig{Name: "sums"})).Group(ctx, []int64{n}))
	defer group.Close()
	kernel := must(group.Kernel(ctx, "total", device, source))

	x, sum := make([]float32, n), make([]float32, 1)
	for i := range x {
		x[i] = float32(i)
	}
	in, parts, out := must(device.Alloc(ctx, 4*n)), must(device.Alloc(ctx, 4*blocks)), must(device.Alloc(ctx, 4))
	defer in.Release()
	defer parts.Release()
	defer out.Release()
	add := func(blocks int, from *gpuexec.Buffer, n uint32, to *gpuexec.Buffer) gpuexec.Launch {
		return gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{blocks}, Args: []gpuexec.Arg{
			gpuexec.BufferArg(from), gpuexec.ValueArg(n), gpuexec.LocalArg(4 * block), gpuexec.BufferArg(to)}}
	}
	check(device.Submit(ctx, gpuexec.CopyTo(in, 0, gpuexec.BytesOf(x)),
		add(blocks, in, n, parts), add(1, parts, blocks, out), gpuexec.CopyFrom(out, 0, gpuexec.BytesOf(sum))))
	fmt.Println(sum[0])
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
