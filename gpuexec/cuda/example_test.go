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
