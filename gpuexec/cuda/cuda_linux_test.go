//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/staging"
	"github.com/kiln-cache/kiln/limit"
)

// E1, E3, B2, B3: the contract of a backend.
func TestContract(t *testing.T) {
	devicetest.Contract(t, need(t), add(t), sum(t))
}

// E5: kernels run on many workers at once, with buffers, parts of buffers, numbers and
// local memory, and what they compute is right.
func TestManyWorkers(t *testing.T) {
	e := open(t, 4)
	k, sums := compile(t, e, add(t)), compile(t, e, sum(t))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			n := 64 + g
			numbers := make([]float32, n)
			want := float32(0)
			for i := range numbers {
				numbers[i] = float32(i + g)
				want += 2 * numbers[i]
			}
			in, out, total := upload(t, e, numbers), upload(t, e, make([]float32, n)), upload(t, e, make([]float32, 1))
			for range 3 {
				if err := e.Submit(bg,
					gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{2}, Args: []gpuexec.Arg{gpuexec.BufferArg(in), gpuexec.BufferArg(in), gpuexec.BufferArg(out), gpuexec.ValueArg(uint32(n))}},
					gpuexec.Launch{Kernel: sums, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(out), gpuexec.BufferArg(total), gpuexec.ValueArg(uint32(n)), gpuexec.LocalArg(256)}},
				); err != nil {
					t.Error(err)
					return
				}
			}
			if got := download[float32](t, e, total); got[0] != want {
				t.Errorf("the sum of %d is %v, want %v", n, got[0], want)
			}
		})
	}
	wg.Wait()
}

// A call of Compile that follows another one finds the compiler's processes warm.
func TestCompilesAheadShareProcesses(t *testing.T) {
	b := needFake(t)
	if _, _, err := Compile(bg, b.cfg, numbered(t, 2001), 80); err != nil {
		t.Fatal(err)
	}
	before := compilers(t)
	if _, _, err := Compile(bg, b.cfg, numbered(t, 2002), 80); err != nil {
		t.Fatal(err)
	}
	if after := compilers(t); len(before) == 0 || !slices.Equal(before, after) {
		t.Errorf("the compiler's processes after a call: %s, after another one %s", before, after)
	}
}

// What is compiled ahead, without a device, is what a device compiles: one that opens the
// store finds it. What fits no kernel, device or compiler is refused.
func TestCompileAhead(t *testing.T) {
	b, e := needFake(t), openIndex(t, 0)
	src := numbered(t, 2000)
	blob, id, err := Compile(bg, b.cfg, src, 80)
	if err != nil {
		t.Fatal(err)
	}
	in, _, err := Compile(bg, Config{NVRTC: b.cfg.NVRTC, InProcess: true}, src, 80)
	if want := must(compile(t, e, src).Blob(bg)); err != nil || !slices.Equal(blob, want) || !slices.Equal(in, want) || !reflect.DeepEqual(id, e.Identity()) {
		t.Errorf("%v, or another blob than the device's, or the identity %+v, want %+v", err, id, e.Identity())
	}
	dir := t.TempDir()
	s := must(blobstore.Open(bg, blobstore.Config{Dir: dir, Capacity: limit.Unlimited, DefaultCapacity: true, Identity: func(string) gpuexec.Identity { return id }}))
	check(s.Put(bg, Name, src.Key, blob, time.Second))
	check(s.Close(bg))
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Lookup: func(string) (string, bool) { return "", false }}))
	defer rt.Close(bg)
	device, session := must(rt.Executor(bg, b, 0)), must(rt.Session(kiln.SessionConfig{}))
	group := must(session.Group(bg, []int64{1}))
	defer group.Close()
	if _, err := group.Kernel(bg, "k", device, src); err != nil || device.Stats().Compiles != 0 {
		t.Errorf("%v, %d compiles with the store filled ahead", err, device.Stats().Compiles)
	}
	for what, c := range map[string]struct {
		cfg        Config
		src        gpuexec.Source
		capability int
		want       error
	}{
		"an old device":    {b.cfg, src, 35, fault.ErrUnsupported},
		"no compiler":      {Config{NVRTC: "/nowhere/libnvrtc.so.13"}, src, 80, fault.ErrUnavailable},
		"a wrong text":     {b.cfg, source(t, gpuexec.Code{Text: "extern"}), 80, fault.ErrInvalid},
		"wrong parameters": {b.cfg, source(t, gpuexec.Code{Text: vectors, Entry: "add"}, buffer(256)), 80, fault.ErrInvalid},
	} {
		if _, _, err := Compile(bg, c.cfg, c.src, c.capability); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

// E2: a device needs the compiler, and a machine without a driver, too, is told of both.
func TestNoCompiler(t *testing.T) {
	needFake(t)
	b := backend{Config{NVRTC: "/nowhere/libnvrtc.so.13"}}
	reason := func() string { return b.Devices(bg)[0].Reason }
	if r := reason(); !strings.Contains(r, "install NVRTC") || strings.Contains(r, "libcuda") {
		t.Errorf("without the compiler: %s", r)
	}
	whole := loaded.library
	defer func() { loaded.library = whole }()
	loaded.library = nil // so that the installed one is opened
	if _, err := load(soname); err == nil {
		t.Skip("this machine has a driver")
	}
	if r := reason(); !strings.Contains(r, "install NVRTC") || !strings.Contains(r, "install NVIDIA's driver") || strings.Contains(r, "\n") {
		t.Errorf("without both: %s", r)
	}
	if _, err := b.Open(bg, 0); !errors.Is(err, fault.ErrUnavailable) {
		t.Error(err)
	}
}

// compilers are the processes that compile for this one.
func compilers(t *testing.T) (paths []string) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		name, _ := os.ReadFile(path)
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		if strings.HasPrefix(string(name), "kiln: compiles") && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Executors share the compiler's processes. Many compiles at once keep one a core busy; none
// is left once the executors are closed.
func TestExecutorsShareCompilers(t *testing.T) {
	b := need(t)
	executors := []*gpuexec.Executor{must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1})), must(gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1}))}
	var wg sync.WaitGroup
	for i := range 40 {
		src := numbered(t, 1000+i)
		wg.Go(func() {
			k, err := executors[i%2].Compile(bg, src)
			if err != nil {
				t.Error(err)
				return
			}
			k.Release()
		})
	}
	wg.Wait()
	if n := len(compilers(t)); n != runtime.GOMAXPROCS(0) {
		t.Errorf("%d processes compile for two executors, want %d", n, runtime.GOMAXPROCS(0))
	}
	check(executors[0].Close(bg))
	check(executors[1].Close(bg))
	if n := len(compilers(t)); n > 0 {
		t.Errorf("%d processes are left", n)
	}
}

// Copies larger than what is pinned for them arrive whole, be it that the stage of one part
// is written while another is on its way.
func TestLongCopies(t *testing.T) {
	e := open(t, 1)
	const n = 3*staging.Bytes + 12345
	random, want := rand.NewChaCha8([32]byte{1}), make([]byte, n)
	_, _ = random.Read(want)
	b, err := e.Alloc(bg, n)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	got := make([]byte, n-1)
	if err := errors.Join(e.Write(bg, b, 1, want[1:]), e.Read(bg, b, 1, got)); err != nil || !slices.Equal(got, want[1:]) {
		t.Errorf("%v, or other bytes", err)
	}
}

// Numbers of every size, structs and vectors reach a kernel as they are.
func TestArgumentsOfAllKinds(t *testing.T) {
	e := open(t, 1)
	const text = `struct pair { int a; double b; };
extern "C" __global__ void k(double *out, signed char a, unsigned char b, short c, unsigned short d, int e, unsigned f, float g, long long h, unsigned long long i, double j, pair p, float2 v) {
	double all[] = {(double)a, (double)b, (double)c, (double)d, (double)e, (double)f, (double)g, (double)h, (double)i, j, (double)p.a, p.b, (double)v.x, (double)v.y};
	for (int n = 0; n < 14; n++) out[n] = all[n];
}`
	params := []gpuexec.Param{buffer(14 * 8), number(gpuexec.ParamI8), number(gpuexec.ParamU8), number(gpuexec.ParamI16), number(gpuexec.ParamU16), number(gpuexec.ParamI32),
		number(gpuexec.ParamU32), number(gpuexec.ParamF32), number(gpuexec.ParamI64), number(gpuexec.ParamU64), number(gpuexec.ParamF64),
		{Kind: gpuexec.ParamStruct, Bytes: 16}, {Kind: gpuexec.ParamStruct, Bytes: 8}}
	k := compile(t, e, source(t, gpuexec.Code{Text: text, Block: gpuexec.Size{1}}, params...))
	out, err := e.Alloc(bg, 14*8)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Release()
	pair := []float64{0, 12.5}
	gpuexec.BytesOf(pair)[0] = 11
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(out),
		gpuexec.ValueArg(int8(-1)), gpuexec.ValueArg(uint8(200)), gpuexec.ValueArg(int16(-300)), gpuexec.ValueArg(uint16(40000)), gpuexec.ValueArg(int32(-5)),
		gpuexec.ValueArg(uint32(6)), gpuexec.ValueArg(float32(7.5)), gpuexec.ValueArg(int64(-8)), gpuexec.ValueArg(uint64(9)), gpuexec.ValueArg(10.5),
		gpuexec.StructArg(gpuexec.BytesOf(pair)), gpuexec.StructArg(gpuexec.BytesOf([]float32{13, 14}))}}); err != nil {
		t.Fatal(err)
	}
	got := make([]float64, 14)
	want := []float64{-1, 200, -300, 40000, -5, 6, 7.5, -8, 9, 10.5, 11, 12.5, 13, 14}
	if err := e.Read(bg, out, 0, gpuexec.BytesOf(got)); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: got %v, want %v", err, got, want)
	}
	for i, wrong := range []gpuexec.Param{number(gpuexec.ParamU32), number(gpuexec.ParamI16), number(gpuexec.ParamI32), buffer(4), {Kind: gpuexec.ParamStruct, Bytes: 2},
		number(gpuexec.ParamF32), number(gpuexec.ParamF32), number(gpuexec.ParamI32), number(gpuexec.ParamF64), number(gpuexec.ParamF64), number(gpuexec.ParamI64),
		{Kind: gpuexec.ParamStruct, Bytes: 12}, number(gpuexec.ParamF64)} {
		other := slices.Clone(params)
		other[i] = wrong
		if k, err := e.Compile(bg, source(t, gpuexec.Code{Text: text}, other...)); !errors.Is(err, fault.ErrInvalid) {
			if err == nil {
				k.Release()
			}
			t.Errorf("parameter %d as another: %v, want ErrInvalid", i, err)
		}
	}
}

// A kernel may have all the local memory that Limits say, beside what it has of its own; more is refused.
func TestMuchLocalMemory(t *testing.T) {
	e := open(t, 1)
	most := e.Limits().MaxLocal
	if most <= plainShared {
		t.Skipf("the device has %d bytes of it", most)
	}
	k := compile(t, e, source(t, gpuexec.Code{Block: gpuexec.Size{32}, Text: `extern "C" __global__ void k(int *a, unsigned last) {
		extern __shared__ int d[]; __shared__ int own[256]; own[threadIdx.x] = 1; d[last] = 7; __syncthreads(); a[threadIdx.x] = d[last] + own[31 - threadIdx.x]; }`},
		buffer(128), number(gpuexec.ParamU32), local(0)))
	a := upload(t, e, make([]int32, 32))
	run := func(bytes int64) error {
		return e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(a), gpuexec.ValueArg(uint32(bytes/4 - 1)), gpuexec.LocalArg(bytes)}})
	}
	if err := run(most - 1024); err != nil || !slices.Equal(download[int32](t, e, a), slices.Repeat([]int32{8}, 32)) {
		t.Errorf("%d bytes: %v, or wrong numbers", most-1024, err)
	}
	if err := run(most); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%d bytes beside 1024: %v, want ErrInvalid", most, err)
	}
	if err := run(64); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// E3, K6: what cannot be compiled is a typed error with the reason in its text.
func TestWhatDoesNotCompile(t *testing.T) {
	e := open(t, 1)
	const sound = `extern "C" __global__ void k(float *a) { *a = 1; }`
	for what, c := range map[string]struct {
		code   gpuexec.Code
		params []gpuexec.Param
		kind   error
		want   string
	}{
		"a name":           {gpuexec.Code{Text: "\nextern \"C\" __global__ void k(float *a) { *a = absent; }"}, []gpuexec.Param{buffer(4)}, fault.ErrInvalid, "kernel.cu(2)"},
		"another entry":    {gpuexec.Code{Text: sound, Entry: "other"}, []gpuexec.Param{buffer(4)}, fault.ErrInvalid, "extern"},
		"a C++ name":       {gpuexec.Code{Text: `__global__ void k(float *a) { *a = 1; }`}, []gpuexec.Param{buffer(4)}, fault.ErrInvalid, "extern"},
		"more parameters":  {gpuexec.Code{Text: sound}, []gpuexec.Param{buffer(4), buffer(4)}, fault.ErrInvalid, "takes 1"},
		"fewer parameters": {gpuexec.Code{Text: sound}, nil, fault.ErrInvalid, "has 0"},
		"two local":        {gpuexec.Code{Text: sound}, []gpuexec.Param{buffer(4), local(4), local(4)}, fault.ErrInvalid, "second"},
		"a header":         {gpuexec.Code{Text: "#include <math.h>\n" + sound}, []gpuexec.Param{buffer(4)}, fault.ErrInvalid, "key_refused"},
		"constants":        {gpuexec.Code{Text: sound, Constants: map[uint32][]byte{1: {1}}}, []gpuexec.Param{buffer(4)}, fault.ErrUnsupported, "Defines"},
	} {
		k, err := e.Compile(bg, source(t, c.code, c.params...))
		if err == nil {
			k.Release()
		}
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %v with %q", what, err, c.kind, c.want)
		}
	}
	other, err := gpuexec.Code{Language: "spir-v", Text: "x", Entry: "k"}.Source()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Compile(bg, other); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("another language: %v", err)
	}
	compile(t, e, add(t)) // and the device goes on
}

// P12, K7: what is stored is tied to the compiler and to what it compiles for, and to no
// driver: two devices of one capability share it.
func TestIdentity(t *testing.T) {
	b := need(t)
	id := gpuexec.IdentityOf(bg, b)
	if id.Library == "" || id.Build == "" || id.Device == "" || id.Compiler == "" || id.Driver != "" {
		t.Errorf("%+v", id)
	}
	if all := b.Devices(bg); fake != nil && (len(all) != 4 || all[0].Identity.Device == all[1].Identity.Device || all[1].Index != 1 || all[0].MemoryBytes != 1<<30 || all[0].ComputeUnits != 4) {
		t.Errorf("%+v", all)
	}
}

// Compiles in this process give the same blobs.
func TestInProcess(t *testing.T) {
	b := need(t)
	b.cfg.InProcess = true
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(bg)
	here, there := compile(t, e, add(t)), compile(t, open(t, 1), add(t))
	if a, b := must(here.Blob(bg)), must(there.Blob(bg)); !slices.Equal(a, b) {
		t.Error("other blobs")
	}
	if _, err := e.Compile(bg, source(t, gpuexec.Code{Text: "x"})); !errors.Is(err, fault.ErrInvalid) {
		t.Error(err)
	}
}
