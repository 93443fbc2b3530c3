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

// A reduction: a group adds its numbers up in shared memory. What the groups have left is
// added up by the next launch of the same kernel, behind the first in one sequence.
func Example_reduction() {
	dir := must(os.MkdirTemp("", "kiln"))
	defer os.RemoveAll(dir)
	for range 2 { // two processes
		fmt.Println(total(dir))
	}
	// prints:
	// total miss
	// 499500
	// total persistent_hit
	// 499500
}

func total(dir string) float32 {
	const n, block = 1000, 64
	const groups = (n + block - 1) / block
	code := gpuexec.Code{Language: vulkan.GLSL, Entry: "main", Block: gpuexec.Size{block}, Text: `#version 450
		layout(local_size_x_id = 0) in;
		layout(std430, binding = 0) readonly buffer X { float x[]; };
		layout(std430, binding = 1) writeonly buffer Sums { float sums[]; };
		layout(push_constant) uniform Push { uint n; };
		shared float part[gl_WorkGroupSize.x];
		void main() {
			uint i = gl_GlobalInvocationID.x, at = gl_LocalInvocationID.x;
			part[at] = i < n ? x[i] : 0;
			for (uint step = gl_WorkGroupSize.x / 2; step > 0; step /= 2) {
				barrier();
				if (at < step) part[at] += part[at + step];
			}
			if (at == 0) sums[gl_WorkGroupID.x] = part[0];
		}`}
	source := must(code.Source(gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Times: []int{2}}, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}, gpuexec.Param{Kind: gpuexec.ParamU32}))

	ctx := context.Background()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { fmt.Println(e.Name, e.Artefact) }}))
	defer rt.Close(ctx)
	executor := must(rt.Executor(ctx, vulkan.New(vulkan.Config{PipelineFile: dir + "/pipelines.bin"}), 0))
	group := must(must(rt.Session(kiln.SessionConfig{})).Group(ctx, []int64{n}))
	defer group.Close()
	kernel := must(group.Kernel(ctx, "total", executor, source))

	x, sum := make([]float32, n), make([]float32, 1)
	for i := range x {
		x[i] = float32(i)
	}
	in, parts, out := must(executor.Alloc(ctx, 4*n)), must(executor.Alloc(ctx, 4*groups)), must(executor.Alloc(ctx, 4))
	defer in.Release()
	defer parts.Release()
	defer out.Release()
	add := func(groups int, from *gpuexec.Buffer, n uint32, to *gpuexec.Buffer) gpuexec.Launch {
		return gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{groups}, Args: []gpuexec.Arg{gpuexec.BufferArg(from), gpuexec.BufferArg(to), gpuexec.ValueArg(n)}}
	}
	check(executor.Submit(ctx, gpuexec.CopyTo(in, 0, gpuexec.BytesOf(x)),
		add(groups, in, n, parts), add(1, parts, groups, out), gpuexec.CopyFrom(out, 0, gpuexec.BytesOf(sum))))
	return sum[0]
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

// The examples do what their comments say, where Vulkan is installed and, for GLSL, a compiler of it.
func TestExamples(t *testing.T) {
	if d := vulkan.New(vulkan.Config{}).Devices(t.Context())[0]; !d.Available {
		t.Skip(d.Reason)
	}
	const square = "square miss\n[1 4 9 16]\nsquare persistent_hit\n[1 4 9 16]\n"
	const total = "total miss\n499500\ntotal persistent_hit\n499500\n"
	const spirv = "axpy miss\nsum miss\n49152\naxpy persistent_hit\nsum persistent_hit\n49152\n"
	if got := printed(t, Example_spirv); got != spirv {
		t.Errorf("SPIR-V printed:\n%s", got)
	}
	compilesGLSL(t)
	if got := printed(t, Example, Example_reduction); got != square+total {
		t.Errorf("GLSL printed:\n%s", got)
	}
}

func compilesGLSL(t *testing.T) {
	for _, compiler := range []string{"glslc", "glslang", "glslangValidator"} {
		if _, err := exec.LookPath(compiler); err == nil {
			return
		}
	}
	t.Skip("no compiler of GLSL is installed (Debian: glslc)")
}

// printed is what functions print.
func printed(t *testing.T, functions ...func()) string {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdout
	os.Stdout = write
	for _, f := range functions {
		f()
	}
	os.Stdout = was
	check(write.Close())
	return string(must(io.ReadAll(read)))
}

// P6, V1: the next process finds both shaders of a program, and one that was changed is
// compiled alone.
func TestChangedShader(t *testing.T) {
	if d := vulkan.New(vulkan.Config{}).Devices(t.Context())[0]; !d.Available {
		t.Skip(d.Reason)
	}
	compilesGLSL(t)
	dir, ctx := t.TempDir(), t.Context()
	use := func(factors ...int) string { // a process with a shader for each
		b, said := vulkan.New(vulkan.Config{PipelineFile: dir + "/pipelines.bin"}), ""
		rt := must(kiln.Open(kiln.Config{StoreDir: dir + "/store", Listen: func(e kiln.Event) { said += fmt.Sprint(e.Artefact, ", ") }}))
		executor := must(rt.Executor(ctx, b, 0))
		group := must(must(rt.Session(kiln.SessionConfig{})).Group(ctx, []int64{1}))
		buffer := must(executor.Alloc(ctx, 4))
		for i, factor := range factors {
			source := must(gpuexec.Code{Language: vulkan.GLSL, Entry: "main", Text: fmt.Sprintf(`#version 450
				layout(std430, binding = 0) buffer X { float x[]; };
				void main() { x[0] = %d; }`, factor)}.Source(gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}))
			kernel := must(group.Kernel(ctx, fmt.Sprint("shader ", i), executor, source))
			x := []float32{0}
			check(executor.Submit(ctx, gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(buffer)}},
				gpuexec.CopyFrom(buffer, 0, gpuexec.BytesOf(x))))
			said += fmt.Sprint(x[0], ", ")
		}
		buffer.Release()
		group.Close()
		check(rt.Close(ctx))
		return said + fmt.Sprint(b.Stats().FromGLSL, " compiled")
	}
	for _, p := range []struct {
		factors []int
		want    string
	}{
		{[]int{2, 3}, "miss, 2, miss, 3, 2 compiled"},
		{[]int{2, 3}, "persistent_hit, 2, persistent_hit, 3, 0 compiled"},
		{[]int{2, 5}, "persistent_hit, 2, miss, 5, 1 compiled"},
	} {
		if got := use(p.factors...); got != p.want {
			t.Errorf("factors %v: %s, want %s", p.factors, got, p.want)
		}
	}
}
