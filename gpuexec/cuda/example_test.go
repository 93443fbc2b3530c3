package cuda_test

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda"
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

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
