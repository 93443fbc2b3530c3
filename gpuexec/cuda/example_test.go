package cuda_test

import (
	"context"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/cuda"
	"github.com/kiln-cache/kiln/limit"
)

// A kernel of the program's own is compiled once and kept in a store: the next process
// that asks for it loads it.
func Example() {
	vector := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{3}} // n float32
	source := must(gpuexec.Code{
		Language: cuda.Language,
		Entry:    "saxpy",
		Text: `extern "C" __global__ void saxpy(float a, const float *x, float *y, unsigned n) {
			unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
			if (i < n) y[i] = a * x[i] + y[i];
		}`,
		Block: gpuexec.Size{64},
	}.Source(gpuexec.Param{Kind: gpuexec.ParamF32}, vector, vector, gpuexec.Param{Kind: gpuexec.ParamU32}))

	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: "/var/cache/saxpy"}))
	defer rt.Close(ctx)
	device := must(rt.Executor(ctx, gpuexec.Find(cuda.Name), 0)) // the error says what to install
	session := must(rt.Session(kiln.SessionConfig{Name: "vectors"}))
	group := must(session.Group(ctx, []int64{3}))
	defer group.Close()
	kernel := must(group.Kernel(ctx, "saxpy", device, source))

	x, y := []float32{1, 2, 3}, []float32{10, 20, 30}
	in, out := must(device.Alloc(ctx, 12)), must(device.Alloc(ctx, 12))
	defer in.Release()
	defer out.Release()
	check(device.Submit(ctx, gpuexec.CopyTo(in, 0, gpuexec.BytesOf(x)), gpuexec.CopyTo(out, 0, gpuexec.BytesOf(y)),
		gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{
			gpuexec.ValueArg(float32(2)), gpuexec.BufferArg(in), gpuexec.BufferArg(out), gpuexec.ValueArg(uint32(3))}},
		gpuexec.CopyFrom(out, 0, gpuexec.BytesOf(y))))
	fmt.Println(y)
}

// A reduction: a block of threads adds its numbers up in shared memory, whose size a launch
// says. What the blocks have left is added up by the next launch of the same kernel, behind
// the first in one sequence.
func Example_reduction() {
	const n, blocks = 1000, (1000 + block - 1) / block
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: "/var/cache/total"}))
	defer rt.Close(ctx)
	device := must(rt.Executor(ctx, gpuexec.Find(cuda.Name), 0)) // the error says what to install
	group := must(must(rt.Session(kiln.SessionConfig{Name: "sums"})).Group(ctx, []int64{n}))
	defer group.Close()
	kernel := must(group.Kernel(ctx, "total", device, total()))

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
			gpuexec.BufferArg(from), gpuexec.ValueArg(n), gpuexec.BufferArg(to), gpuexec.LocalArg(4 * block)}}
	}
	check(device.Submit(ctx, gpuexec.CopyTo(in, 0, gpuexec.BytesOf(x)),
		add(blocks, in, n, parts), add(1, parts, blocks, out), gpuexec.CopyFrom(out, 0, gpuexec.BytesOf(sum))))
	fmt.Println(sum[0])
}

// block is how many threads add up together.
const block = 64

// total is the source of that kernel.
func total() gpuexec.Source {
	return must(gpuexec.Code{
		Language: cuda.Language,
		Entry:    "total",
		Text: `extern "C" __global__ void total(const float *x, unsigned n, float *sums) {
			extern __shared__ float part[];
			unsigned i = blockIdx.x * blockDim.x + threadIdx.x, at = threadIdx.x;
			part[at] = i < n ? x[i] : 0;
			for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
				__syncthreads();
				if (at < step) part[at] += part[at + step];
			}
			if (at == 0) sums[blockIdx.x] = part[0];
		}`,
		Block: gpuexec.Size{block},
	}.Source(
		gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{1}}, gpuexec.Param{Kind: gpuexec.ParamU32},
		gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}, gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: 4 * block}))
}

// A machine without a GPU fills a store for machines that have one: a program there finds
// the kernel compiled, with the folder as a base, imported, or in its image.
func ExampleCompile() {
	ctx := context.Background()
	vector := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{1}} // n float32
	source := must(gpuexec.Code{
		Language: cuda.Language,
		Entry:    "twice",
		Text: `extern "C" __global__ void twice(float *x, unsigned n) {
			unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
			if (i < n) x[i] *= 2;
		}`,
		Block: gpuexec.Size{64},
	}.Source(vector, gpuexec.Param{Kind: gpuexec.ParamU32}))
	for _, capability := range []int{80, 90} { // compute capabilities 8.0 and 9.0
		begun := time.Now()
		blob, id, err := cuda.Compile(ctx, cuda.Config{}, source, capability)
		check(err) // it says what to install
		store := must(blobstore.Open(ctx, blobstore.Config{Dir: "/var/cache/built", Capacity: limit.Unlimited, Identity: func(string) gpuexec.Identity { return id }}))
		check(store.Put(ctx, cuda.Name, source.Key, blob, time.Since(begun)))
		check(store.Close(ctx))
	}
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
