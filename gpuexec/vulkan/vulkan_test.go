//go:build linux && (amd64 || arm64)

package vulkan

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/spirv"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	//go:embed testdata/axpy.spv
	axpyModule string
	//go:embed testdata/texels.spv
	texelsModule string
	//go:embed testdata/sum.spv
	sumModule string
	//go:embed testdata/axpy.comp
	axpyShader string
	//go:embed testdata/sum.comp
	sumShader string
)

var (
	buffer = gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}
	f32    = gpuexec.Param{Kind: gpuexec.ParamF32}
	u32    = gpuexec.Param{Kind: gpuexec.ParamU32}
)

func source(t testing.TB, c gpuexec.Code, params ...gpuexec.Param) gpuexec.Source {
	t.Helper()
	if c.Entry == "" {
		c.Entry = "main"
	}
	src, err := c.Source(params...)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func axpy(t testing.TB, block int) gpuexec.Source {
	return source(t, gpuexec.Code{Language: SPIRV, Text: axpyModule, Block: gpuexec.Size{block}}, buffer, buffer, f32, u32)
}

func sum(t testing.TB) gpuexec.Source {
	return source(t, gpuexec.Code{Language: SPIRV, Text: sumModule}, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 512}, buffer)
}

// driven gives a backend whose device 0 is there.
func driven(t testing.TB, cfg Config) *Backend {
	t.Helper()
	b := New(cfg)
	if d := b.Devices(t.Context())[0]; !d.Available {
		t.Skip(d.Reason)
	}
	t.Cleanup(func() { // after those of the test, which close its devices
		if n := b.counts.leaked.Load(); n != 0 {
			t.Errorf("%d objects of the driver were left", n)
		}
	})
	return b
}

// Objects are counted for devicetest, when the device that made them closes.
func (b *Backend) Objects() int64 { return b.counts.leaked.Load() }

// B1 to B3, E3: the contract of every backend, with memory that the host sees and
// without.
func TestContract(t *testing.T) {
	for name, staged := range map[string]bool{"mapped": false, "staged": true} {
		t.Run(name, func(t *testing.T) {
			b := driven(t, Config{})
			b.staged = staged
			devicetest.Contract(t, b, axpy(t, 64), sum(t))
		})
	}
}

// B1 to B3: shaders in GLSL have blobs: their modules.
func TestContractOfGLSL(t *testing.T) {
	b := driven(t, Config{})
	needsGLSL(t)
	devicetest.Contract(t, b,
		source(t, gpuexec.Code{Language: GLSL, Text: axpyShader, Block: gpuexec.Size{64}}, buffer, buffer, f32, u32),
		source(t, gpuexec.Code{Language: GLSL, Text: sumShader}, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 512}, buffer))
}

func needsGLSL(t testing.TB) {
	t.Helper()
	if installed().path == "" {
		t.Skip("no compiler of GLSL is installed (Debian: glslc)")
	}
}

func open(t testing.TB, b *Backend, workers int) *gpuexec.Executor {
	t.Helper()
	e, err := gpuexec.Open(context.Background(), gpuexec.Config{Backend: b, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func compile(t testing.TB, e *gpuexec.Executor, src gpuexec.Source) *gpuexec.Kernel {
	t.Helper()
	k, err := e.Compile(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Release)
	return k
}

func alloc(t testing.TB, e *gpuexec.Executor, bytes int64) *gpuexec.Buffer {
	t.Helper()
	b, err := e.Alloc(t.Context(), bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b
}

// What kernels compute is right: numbers, specialisation constants and sizes of
// groups reach them, and launches of one sequence see each other's results.
func TestKernels(t *testing.T) {
	for name, staged := range map[string]bool{"mapped": false, "staged": true} {
		t.Run(name, func(t *testing.T) {
			b := driven(t, Config{})
			b.staged = staged
			e := open(t, b, 2)
			const n = 128 * 40
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i%7) - 2
			}
			px, py, psum := alloc(t, e, 4*n), alloc(t, e, 4*n), alloc(t, e, 4*n/128)
			if err := e.Write(t.Context(), px, 0, gpuexec.BytesOf(x)); err != nil {
				t.Fatal(err)
			}
			each := compile(t, e, axpy(t, 64))
			four := compile(t, e, source(t, gpuexec.Code{Language: SPIRV, Text: axpyModule, Block: gpuexec.Size{32},
				Constants: map[uint32][]byte{1: gpuexec.BytesOf([]uint32{4})}}, buffer, buffer, f32, u32))
			total := compile(t, e, sum(t))
			args := func(a float32) []gpuexec.Arg {
				return []gpuexec.Arg{gpuexec.BufferArg(px), gpuexec.BufferArg(py), gpuexec.ValueArg(a), gpuexec.ValueArg(uint32(n))}
			}
			launches := []gpuexec.Launch{
				{Kernel: each, Args: args(2), Grid: gpuexec.Size{n / 64}},
				{Kernel: four, Args: args(3), Grid: gpuexec.Size{n / 128}},
				{Kernel: each, Args: args(-1), Grid: gpuexec.Size{n / 16}, Block: gpuexec.Size{16}},
				{Kernel: total, Args: []gpuexec.Arg{gpuexec.BufferArg(py), gpuexec.BufferArg(psum)}, Grid: gpuexec.Size{n / 128}},
			}
			for range 50 { // more than one recording takes
				launches = append(launches, launches[0], gpuexec.Launch{Kernel: each, Args: args(-2), Grid: gpuexec.Size{n / 64}})
			}
			if err := e.Submit(t.Context(), launches...); err != nil {
				t.Fatal(err)
			}
			sums := make([]float32, n/128)
			if err := e.Read(t.Context(), psum, 0, gpuexec.BytesOf(sums)); err != nil {
				t.Fatal(err)
			}
			for i, got := range sums {
				want := float32(0)
				for _, v := range x[128*i : 128*i+128] {
					want += 4 * v
				}
				if got != want {
					t.Fatalf("sum %d is %v, want %v", i, got, want)
				}
			}
			y := make([]float32, n)
			if err := e.Read(t.Context(), py, 0, gpuexec.BytesOf(y)); err != nil {
				t.Fatal(err)
			}
			for i := range y {
				if y[i] != 4*x[i] {
					t.Fatalf("element %d is %v, want %v", i, y[i], 4*x[i])
				}
			}
		})
	}
}

// E3: what does not fit its module is refused before the driver sees it.
func TestRefusals(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	code := gpuexec.Code{Language: SPIRV, Text: axpyModule}
	flipped := []byte(axpyModule)
	flipped[0] ^= 1
	for name, c := range map[string]struct {
		code   gpuexec.Code
		params []gpuexec.Param
		want   error
	}{
		"a buffer few":         {code, []gpuexec.Param{buffer, f32, u32}, fault.ErrInvalid},
		"a number few":         {code, []gpuexec.Param{buffer, buffer, f32}, fault.ErrInvalid},
		"local memory":         {code, []gpuexec.Param{buffer, buffer, f32, u32, {Kind: gpuexec.ParamLocal}}, fault.ErrUnsupported},
		"another entry":        {gpuexec.Code{Language: SPIRV, Text: axpyModule, Entry: "mian"}, []gpuexec.Param{buffer, buffer, f32, u32}, fault.ErrInvalid},
		"no module":            {gpuexec.Code{Language: SPIRV, Text: "no module"}, nil, fault.ErrInvalid},
		"another magic number": {gpuexec.Code{Language: SPIRV, Text: string(flipped)}, nil, fault.ErrInvalid},
		"cut":                  {gpuexec.Code{Language: SPIRV, Text: axpyModule[:len(axpyModule)/2&^3]}, nil, fault.ErrInvalid},
		"a constant it has not": {gpuexec.Code{Language: SPIRV, Text: axpyModule, Constants: map[uint32][]byte{9: {1, 0, 0, 0}}},
			[]gpuexec.Param{buffer, buffer, f32, u32}, fault.ErrInvalid},
		"a fixed size": {gpuexec.Code{Language: SPIRV, Text: sumModule, Block: gpuexec.Size{64}}, []gpuexec.Param{buffer, buffer}, fault.ErrInvalid},
		"a language":   {gpuexec.Code{Language: "opencl", Text: "x"}, nil, fault.ErrUnsupported},
		"an option":    {gpuexec.Code{Language: GLSL, Text: axpyShader, Options: []string{"-I/etc"}}, nil, fault.ErrInvalid},
		"an include":   {gpuexec.Code{Language: GLSL, Text: "#version 450\n#include \"/etc/passwd\"\n"}, nil, fault.ErrInvalid},
	} {
		if c.code.Entry == "" {
			c.code.Entry = "main"
		}
		src, err := c.code.Source(c.params...)
		if err != nil {
			t.Fatal(err)
		}
		k, err := e.Compile(t.Context(), src)
		if err == nil {
			k.Release()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// K6: a shader gets what is in its Includes and nothing else.
func TestIncludes(t *testing.T) {
	b := driven(t, Config{})
	needsGLSL(t)
	outside := filepath.Join(t.TempDir(), "outside.h")
	if err := os.WriteFile(outside, []byte("const float factor = 3;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shader := func(include string) gpuexec.Code {
		return gpuexec.Code{Language: GLSL, Entry: "main", Includes: map[string]string{"a.h": "#include \"b/c.h\"\n", "b/c.h": "const float factor = 2;\n"},
			Text: "#version 450\n#extension GL_GOOGLE_include_directive : enable\n" + include +
				"\nlayout(local_size_x = 1) in;\nlayout(std430, binding = 0) buffer X { float x[]; };\nvoid main() { x[0] = factor; }\n"}
	}
	e := open(t, b, 1)
	compile(t, e, source(t, shader(`#include "a.h"`), buffer))
	for _, include := range []string{`#include "` + outside + `"`, `# /**/ include <` + outside + `>`, `#include "../outside.h"`} {
		k, err := e.Compile(t.Context(), source(t, shader(include), buffer))
		if err == nil {
			k.Release()
		}
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", include, err)
		}
		if reason, field := fault.ReasonOf(err); strings.HasPrefix(include, "#in") && (reason != fault.KeyRefused || field != "includes") {
			t.Errorf("%s: %v, want key_refused, includes", include, err)
		}
	}
}

// E5: many workers compile, launch and evict one kernel; every object of the driver
// is destroyed.
func TestWorkers(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 4)
	var all sync.WaitGroup
	for g := range 32 {
		all.Go(func() {
			for i := range 6 {
				k, err := e.Compile(t.Context(), axpy(t, 1<<(1+(g+i)%5)))
				if err != nil {
					t.Error(err)
					return
				}
				x, y := alloc(t, e, 256), alloc(t, e, 256)
				l := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(x), gpuexec.BufferArg(y),
					gpuexec.ValueArg(float32(math.Pi)), gpuexec.ValueArg(uint32(1))}}
				if err := e.Submit(t.Context(), l, l); err != nil {
					t.Error(err)
				}
				k.Release()
			}
		})
	}
	all.Wait()
}

// V4, V5: the file of pipelines is saved when the device is closed and loaded when it
// is opened; one that is damaged costs a log line.
func TestPipelineFile(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	cfg := Config{PipelineFile: filepath.Join(dir, "pipelines.bin"), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	use := func() (reasons map[fault.Reason]int64) {
		t.Helper()
		d, err := driven(t, cfg).Open(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		p, err := d.Compile(t.Context(), axpy(t, 64))
		if err != nil {
			t.Fatal(err)
		}
		reasons = d.(*device).pipelines.Stats().Reasons
		p.Release()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		return reasons
	}
	if r := use(); r[fault.Absent] != 1 {
		t.Errorf("the first time: %v, want absent", r)
	}
	if r := use(); len(r) != 0 {
		t.Errorf("the second time: %v", r)
	}
	file := filepath.Join(dir, "pipelines-0.bin")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := use(); len(r) != 1 || !strings.Contains(log.String(), "pipelines-0.bin") {
		t.Errorf("damaged: %v, logged:\n%s", r, &log)
	}
	if r := use(); len(r) != 0 {
		t.Errorf("after it was saved again: %v", r)
	}
}

// The modules in testdata and shaders are those of the shaders beside them.
func TestModulesAreOfTheirShaders(t *testing.T) {
	b := driven(t, Config{})
	if installed().path == "" || installed().glslang {
		t.Skip("glslc is not installed (Debian: glslc)")
	}
	shaders, includes := texts(t, "*/*.comp"), make(map[string]string)
	for name, text := range texts(t, "shaders/*.glsl") {
		includes[filepath.Base(name)] = text
	}
	for shader, text := range shaders {
		words, err := b.compile(t.Context(), gpuexec.Code{Text: text, Options: []string{"-O"}, Includes: includes})
		module := strings.TrimSuffix(shader, "comp") + "spv"
		have, _ := spirv.Words([]byte(texts(t, module)[module]))
		if err != nil || !slices.Equal(words, have) {
			t.Errorf("%s: %v, or another module than the one beside it: make shaders", shader, err)
		}
	}
	if modules := texts(t, "*/*.spv"); len(modules) != len(shaders) {
		t.Errorf("%d modules, %d shaders", len(modules), len(shaders))
	}
}

// texts are the files of that pattern, at least one.
func texts(t testing.TB, pattern string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatal(pattern, files, err)
	}
	all := make(map[string]string)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[f] = string(text)
	}
	return all
}

// E3, E6: whichever call of the driver fails, with memory used up, the device lost or for no
// reason that is told, the error is typed, nothing is left behind, and the next device is as before.
func TestEachCallFails(t *testing.T) {
	b := driven(t, Config{PipelineFile: filepath.Join(t.TempDir(), "pipelines.bin")})
	for _, staged := range []bool{false, true} {
		b.staged = staged
		for _, result := range []vk.Result{-1, -4, -13} {
			for n := 1; ; n++ {
				calls, failed := 0, ""
				vk.Fail(func(call string) vk.Result {
					if calls++; calls == n {
						failed = call
						return result
					}
					return 0
				})
				err := everything(t, b)
				vk.Fail(nil)
				if calls < n { // all of them have had their turn
					break
				}
				want := map[vk.Result]error{-1: fault.ErrTooLarge, -4: fault.ErrDeviceLost}[result]
				_, typed := errors.AsType[*fault.Error](err)
				if err != nil && !errors.Is(err, want) && !errors.Is(err, fault.ErrUnavailable) && !(typed && result == -13) {
					t.Errorf("call %d, %s, result %d: %v", n, failed, result, err)
				}
			}
		}
	}
	if err := everything(t, b); err != nil {
		t.Error(err)
	}
}

// everything uses a device in every way, on one goroutine, up to the first error.
func everything(t *testing.T, b *Backend) (err error) {
	d, err := b.Open(t.Context(), 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	q, err := d.OpenQueue()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	p, err := d.Compile(t.Context(), axpy(t, 64))
	if err != nil {
		return err
	}
	defer p.Release()
	var args []gpuexec.DeviceArg
	for range 2 {
		m, err := d.Alloc(256)
		if err != nil {
			return err
		}
		defer m.Release()
		if err := q.Write(m, 0, make([]byte, 256)); err != nil {
			return err
		}
		args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamBuffer, Memory: m, Bytes: 256})
	}
	args = append(args, gpuexec.DeviceArg{Kind: gpuexec.ParamF32, Bytes: 4}, gpuexec.DeviceArg{Kind: gpuexec.ParamU32, Bytes: 4, Value: 64})
	defer func() { err = errors.Join(err, q.Finish(t.Context())) }() // before anything is let go, as the executor does
	for _, block := range []int{64, 32} {                            // one that was made before, and another
		if err := q.Launch(t.Context(), p, args, gpuexec.Size{1}, gpuexec.Size{block, 1, 1}); err != nil {
			return err
		}
	}
	texels, err := d.Compile(t.Context(), source(t, gpuexec.Code{Language: SPIRV, Text: texelsModule}, buffer, buffer))
	if err != nil {
		return err
	}
	defer texels.Release()
	if err := q.Launch(t.Context(), texels, args[:2], gpuexec.Size{1}, gpuexec.Size{4, 1, 1}); err != nil {
		return err
	}
	return q.Read(args[0].Memory, 0, make([]byte, 256))
}

// E3: groups and buffers beyond the device's limits are refused, be it by specialisation
// constants that a module takes for the size of its groups.
func TestLimits(t *testing.T) {
	b := driven(t, Config{})
	needsGLSL(t)
	e := open(t, b, 1)
	of := func(id, n uint32) map[uint32][]byte { return map[uint32][]byte{id: gpuexec.BytesOf([]uint32{n})} }
	const sized = "#version 450\nlayout(local_size_x_id = 0) in;\nlayout(constant_id = 1) const uint n = 4;\nshared float s[n];\n" +
		"layout(std430, binding = 0) buffer X { float x[]; };\nvoid main() { s[0] = 1; x[0] = s[0]; }\n"
	uniforms := "#version 450\nlayout(local_size_x = 1) in;\nlayout(std430, binding = 0) buffer X { float x[]; };\n"
	sum, params := "0", []gpuexec.Param{buffer}
	for i := range 64 {
		uniforms += fmt.Sprintf("layout(std140, binding = %d) uniform U%d { float u%d; };\n", i+1, i, i)
		sum += fmt.Sprintf(" + u%d", i)
		params = append(params, buffer)
	}
	for name, c := range map[string]struct {
		code   gpuexec.Code
		params []gpuexec.Param
	}{
		"large groups":  {gpuexec.Code{Text: sized, Constants: of(0, 100_000)}, params[:1]},
		"empty groups":  {gpuexec.Code{Text: sized, Constants: of(0, 0)}, params[:1]},
		"two sizes":     {gpuexec.Code{Text: sized, Constants: of(0, 32), Block: gpuexec.Size{64}}, params[:1]},
		"shared memory": {gpuexec.Code{Text: sized, Constants: of(1, 1<<28)}, params[:1]},
		"uniforms":      {gpuexec.Code{Text: uniforms + "void main() { x[0] = " + sum + "; }\n"}, params},
	} {
		c.code.Language = GLSL
		k, err := e.Compile(t.Context(), source(t, c.code, c.params...))
		if err == nil {
			k.Release()
		}
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// E3: a kernel reads parts of buffers as texels; what has none is refused.
func TestTexels(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	k := compile(t, e, source(t, gpuexec.Code{Language: SPIRV, Text: texelsModule}, buffer, buffer))
	x, y := alloc(t, e, 4*64), alloc(t, e, 4*64)
	numbers, got := make([]float32, 64), make([]float32, 16)
	for i := range numbers {
		numbers[i] = float32(i)
	}
	if err := e.Write(t.Context(), x, 0, gpuexec.BytesOf(numbers)); err != nil {
		t.Fatal(err)
	}
	at := int64(e.Limits().Alignment)
	launch := func(bytes int64) error {
		return e.Submit(t.Context(), gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.PartArg(x, at, bytes), gpuexec.BufferArg(y)}})
	}
	for range vk.MostSets + 2 { // more than one recording takes
		if err := launch(4*3*4 + 8); err != nil { // three texels, and half of one
			t.Fatal(err)
		}
	}
	if err := e.Read(t.Context(), y, 0, gpuexec.BytesOf(got)); err != nil {
		t.Fatal(err)
	}
	if want := numbers[at/4:][:12]; !slices.Equal(got[:12], want) {
		t.Errorf("%v, want %v", got, want)
	}
	if err := launch(12); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("12 bytes: %v, want ErrInvalid", err)
	}
}

// E3: a launch that says no block gets the module's own; one that says one item, one.
func TestBlocksOfALaunch(t *testing.T) {
	b := driven(t, Config{})
	needsGLSL(t)
	e := open(t, b, 1)
	const text = "#version 450\nlayout(local_size_x = 8, local_size_x_id = 0) in;\nlayout(std430, binding = 0) buffer X { float x[]; };\nvoid main() { x[gl_GlobalInvocationID.x] = 1; }\n"
	k := compile(t, e, source(t, gpuexec.Code{Language: GLSL, Text: text}, buffer))
	for _, c := range []struct {
		block gpuexec.Size
		items int
	}{{gpuexec.Size{}, 24}, {gpuexec.Size{1}, 3}, {gpuexec.Size{2}, 6}} {
		x := alloc(t, e, 4*64)
		if err := e.Submit(t.Context(), gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{3}, Block: c.block, Args: []gpuexec.Arg{gpuexec.BufferArg(x)}}); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 64)
		if err := e.Read(t.Context(), x, 0, gpuexec.BytesOf(got)); err != nil {
			t.Fatal(err)
		}
		if n := slices.Index(got, 0); n != c.items {
			t.Errorf("3 blocks of %v: %d items ran, want %d", c.block, n, c.items)
		}
	}
	if n := b.Stats().Pipelines; n != 3 {
		t.Errorf("%d pipelines were made for three sizes", n)
	}
}
