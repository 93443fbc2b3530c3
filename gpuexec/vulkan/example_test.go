package vulkan_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
)

// A shader of one's own is compiled, run, and found in the store by the next process.
// What the driver makes of it is kept beside the store, as far as the driver can.
func Example() {
	dir := must(os.MkdirTemp("", "kiln"))
	defer os.RemoveAll(dir)
	for range 2 { // two processes
		fmt.Println(square(dir, []float32{1, 2, 3, 4}))
	}
	// prints:
	// square miss
	// [1 4 9 16]
	// square persistent_hit
	// [1 4 9 16]
}

func square(dir string, x []float32) []float32 {
	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { fmt.Println(e.Name, e.Artefact) }}))
	defer rt.Close(ctx)
	executor := must(rt.Executor(ctx, vulkan.New(vulkan.Config{PipelineFile: dir + "/pipelines.bin"}), 0))
	group := must(must(rt.Session(kiln.SessionConfig{})).Group(ctx, []int64{1, 4}))
	defer group.Close()

	code := gpuexec.Code{Language: vulkan.GLSL, Entry: "main", Block: gpuexec.Size{4}, Text: `#version 450
		layout(local_size_x_id = 0) in;
		layout(std430, binding = 0) buffer X { float x[]; };
		void main() { x[gl_GlobalInvocationID.x] *= x[gl_GlobalInvocationID.x]; }`}
	source := must(code.Source(gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 16}))
	kernel := must(group.Kernel(ctx, "square", executor, source))

	buffer := must(executor.Alloc(ctx, 16))
	defer buffer.Release()
	check(executor.Write(ctx, buffer, 0, gpuexec.BytesOf(x)))
	check(executor.Submit(ctx, gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(buffer)}}))
	check(executor.Read(ctx, buffer, 0, gpuexec.BytesOf(x)))
	return x
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

// The example does what its comment says, where Vulkan and glslc are installed.
func TestExample(t *testing.T) {
	_, err := exec.LookPath("glslc")
	if d := vulkan.New(vulkan.Config{}).Devices(t.Context())[0]; !d.Available || err != nil {
		t.Skip(d.Reason, err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdout
	os.Stdout = write
	Example()
	os.Stdout = was
	check(write.Close())
	const want = "square miss\n[1 4 9 16]\nsquare persistent_hit\n[1 4 9 16]\n"
	if got, err := io.ReadAll(read); err != nil || string(got) != want {
		t.Errorf("%v, printed:\n%s", err, got)
	}
}
