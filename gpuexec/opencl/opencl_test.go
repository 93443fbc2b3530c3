package opencl_test

import (
	"context"
	"errors"
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/internal/drivertest"
)

var bg = context.Background()

// TestMain gives PoCL a cache of this process's own, but to a child, which has one.
func TestMain(m *testing.M) {
	flag.Parse()
	if *child != "" {
		os.Exit(m.Run())
	}
	drivertest.Main(m)
}

// device skips where there is none.
func device(t testing.TB) gpuexec.Backend {
	t.Helper()
	b := gpuexec.Find(opencl.Name)
	if d := b.Devices(bg)[0]; !d.Available {
		t.Skip(d.Reason)
	}
	return b
}

func open(t testing.TB, workers int) *gpuexec.Executor {
	t.Helper()
	return generaltest.Open(t, device(t), workers)
}

func source(t testing.TB, c gpuexec.Code, params ...gpuexec.Param) gpuexec.Source {
	t.Helper()
	c.Language = opencl.Language
	if c.Entry == "" {
		c.Entry = "k"
	}
	src, err := c.Source(params...)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func buffer(bytes int64) gpuexec.Param {
	return gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: bytes}
}

func compile(t testing.TB, e *gpuexec.Executor, src gpuexec.Source) *gpuexec.Kernel {
	t.Helper()
	return generaltest.Compile(t, e, src)
}

func upload[T generaltest.Number](t testing.TB, e *gpuexec.Executor, numbers []T) *gpuexec.Buffer {
	t.Helper()
	return generaltest.Upload(t, e, numbers)
}

func download[T generaltest.Number](t testing.TB, e *gpuexec.Executor, b *gpuexec.Buffer) []T {
	t.Helper()
	return generaltest.Download[T](t, e, b)
}

const vectors = `
kernel void add(global const float *a, global const float *b, global float *c, uint n) {
	size_t i = get_global_id(0);
	if (i < n) c[i] = a[i] + b[i];
}
kernel void sum(global const float *a, global float *out, uint n, local float *part) {
	float s = 0;
	for (size_t i = get_local_id(0); i < n; i += get_local_size(0)) s += a[i];
	part[get_local_id(0)] = s;
	for (size_t step = get_local_size(0) / 2; step > 0; step /= 2) {
		barrier(CLK_LOCAL_MEM_FENCE);
		if (get_local_id(0) < step) part[get_local_id(0)] += part[get_local_id(0) + step];
	}
	if (get_local_id(0) == 0) out[0] = part[0];
}`

func add(t testing.TB) gpuexec.Source {
	return source(t, gpuexec.Code{Text: vectors, Entry: "add", Block: gpuexec.Size{64}},
		buffer(256), buffer(256), buffer(256), gpuexec.Param{Kind: gpuexec.ParamU32})
}

func sum(t testing.TB) gpuexec.Source {
	return source(t, gpuexec.Code{Text: vectors, Entry: "sum", Block: gpuexec.Size{64}},
		buffer(256), buffer(4), gpuexec.Param{Kind: gpuexec.ParamU32}, gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: 256})
}

// E1 to E5, B2, B3: the contract of every backend.
func TestContract(t *testing.T) {
	devicetest.Contract(t, device(t), add(t), sum(t))
}

// A user's own vector and reduction kernels compute what they should, on parts of
// buffers too, and on as many blocks as the length needs.
func TestVectors(t *testing.T) {
	e := open(t, 1)
	const n = 100_000
	a, b := make([]float32, n), make([]float32, n)
	var want float64
	for i := range a {
		a[i], b[i] = float32(i%977), float32(i%13)
		want += float64(a[i]) + float64(b[i])
	}
	x, y, z, total := upload(t, e, a), upload(t, e, b), upload(t, e, make([]float32, n)), upload(t, e, make([]float32, 1))
	plus, reduce := compile(t, e, add(t)), compile(t, e, sum(t))
	err := e.Submit(bg, gpuexec.Launch{Kernel: plus, Grid: gpuexec.Size{(n + 63) / 64},
		Args: []gpuexec.Arg{gpuexec.BufferArg(x), gpuexec.BufferArg(y), gpuexec.BufferArg(z), gpuexec.ValueArg(uint32(n))}},
		gpuexec.Launch{Kernel: reduce, Grid: gpuexec.Size{1},
			Args: []gpuexec.Arg{gpuexec.BufferArg(z), gpuexec.BufferArg(total), gpuexec.ValueArg(uint32(n)), gpuexec.LocalArg(256)}})
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range download[float32](t, e, z) {
		if got != a[i]+b[i] {
			t.Fatalf("element %d is %v, want %v", i, got, a[i]+b[i])
		}
	}
	if got := float64(download[float32](t, e, total)[0]); math.Abs(got-want) > 1e-4*want {
		t.Errorf("the sum is %v, want %v", got, want)
	}
	from := int64(4 * 1024) // a multiple of every alignment
	part := func(b *gpuexec.Buffer, at int64) gpuexec.Arg { return gpuexec.PartArg(b, at, 256) }
	if err := e.Submit(bg, gpuexec.Launch{Kernel: plus, Grid: gpuexec.Size{1},
		Args: []gpuexec.Arg{part(x, from), part(y, 2*from), part(z, 3*from), gpuexec.ValueArg(uint32(64))}}); err != nil {
		t.Fatal(err)
	}
	after := download[float32](t, e, z)
	for i := range after {
		want := a[i] + b[i]
		if i >= 3*1024 && i < 3*1024+64 {
			want = a[i-2*1024] + b[i-1024]
		}
		if after[i] != want {
			t.Fatalf("after a launch on parts element %d is %v, want %v", i, after[i], want)
		}
	}
}

// Grid and block have three dimensions, numbers arrive by their types, structs by
// their layout; defines, includes and options reach the compiler.
func TestArguments(t *testing.T) {
	e := open(t, 1)
	k := compile(t, e, source(t, gpuexec.Code{
		Text: `
#include "shape.h"
kernel void k(global int *out, struct shape s, char c, uchar uc, short h, ushort uh, int i, uint u, float f, long l, ulong ul) {
	size_t at = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
	out[at] = get_group_id(0) + 10 * get_group_id(1) + 100 * get_group_id(2)
		+ 1000 * (get_local_size(0) + 10 * get_local_size(1) + 100 * get_local_size(2));
	if (at == 0) out[0] = s.a + s.b * SCALE + c + uc + h + uh + i + (u == 4000000000u) + (f == 0.5f) + (l == -5000000000L) + (ul == 18446744073709551615UL);
}`,
		Includes: map[string]string{"shape.h": "struct shape { int a; short b; };\n"},
		Defines:  map[string]string{"SCALE": "2"}, Options: []string{"-cl-std=CL1.2", "-Werror"},
	}, buffer(4), gpuexec.Param{Kind: gpuexec.ParamStruct, Bytes: 8}, gpuexec.Param{Kind: gpuexec.ParamI8}, gpuexec.Param{Kind: gpuexec.ParamU8},
		gpuexec.Param{Kind: gpuexec.ParamI16}, gpuexec.Param{Kind: gpuexec.ParamU16}, gpuexec.Param{Kind: gpuexec.ParamI32}, gpuexec.Param{Kind: gpuexec.ParamU32},
		gpuexec.Param{Kind: gpuexec.ParamF32}, gpuexec.Param{Kind: gpuexec.ParamI64}, gpuexec.Param{Kind: gpuexec.ParamU64}))
	grid, block := gpuexec.Size{2, 3, 2}, gpuexec.Size{4, 1, 2}
	out := upload(t, e, make([]int32, 8*3*4))
	err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: grid, Block: block, Args: []gpuexec.Arg{
		gpuexec.BufferArg(out), gpuexec.StructArg([]byte{7, 0, 0, 0, 0xff, 0xff, 0, 0}), gpuexec.ValueArg(int8(-1)), gpuexec.ValueArg(uint8(200)),
		gpuexec.ValueArg(int16(-300)), gpuexec.ValueArg(uint16(60000)), gpuexec.ValueArg(int32(-70000)), gpuexec.ValueArg(uint32(4000000000)),
		gpuexec.ValueArg(float32(0.5)), gpuexec.ValueArg(int64(-5000000000)), gpuexec.ValueArg(uint64(math.MaxUint64))}})
	if err != nil {
		t.Fatal(err)
	}
	var want []int32
	for z := range grid[2] * block[2] {
		for y := range grid[1] * block[1] {
			for x := range grid[0] * block[0] {
				want = append(want, int32(x/block[0]+10*(y/block[1])+100*(z/block[2])+1000*(block[0]+10*block[1]+100*block[2])))
			}
		}
	}
	want[0] = 7 - 2 - 1 + 200 - 300 + 60000 - 70000 + 4
	if got := download[int32](t, e, out); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// E3: what the limits allow at most, the device takes: items of a block, bytes of local memory, and
// the first place at which a part may begin. A part of nothing is an argument.
func TestMostThatIsAllowed(t *testing.T) {
	e := open(t, 1)
	l, n := e.Limits(), int64(256)
	k := compile(t, e, source(t, gpuexec.Code{Text: `kernel void k(global int *out, local char *part, uint bytes, global int *none) {
		size_t i = get_local_id(0);
		for (size_t at = i; at < bytes; at += get_local_size(0)) part[at] = 1;
		barrier(CLK_LOCAL_MEM_FENCE);
		if (i < 64) out[i] = get_local_size(0) + part[bytes - 1 - i];
	}`}, buffer(n), gpuexec.Param{Kind: gpuexec.ParamLocal}, gpuexec.Param{Kind: gpuexec.ParamU32}, buffer(0)))
	items, local := min(l.MaxItems, l.MaxBlock[0]), min(l.MaxLocal, math.MaxInt32)
	b, from := upload(t, e, make([]int32, 4096)), int64(l.Alignment)
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Block: gpuexec.Size{items},
		Args: []gpuexec.Arg{gpuexec.PartArg(b, from, n), gpuexec.LocalArg(local), gpuexec.ValueArg(uint32(local)), gpuexec.PartArg(b, from, 0)}}); err != nil {
		t.Fatalf("%d items, %d bytes of local memory, a part from %d on: %v", items, local, from, err)
	}
	for i, got := range download[int32](t, e, b)[from/4:][:n/4] {
		if got != int32(items)+1 {
			t.Fatalf("number %d is %d, want %d", i, got, items+1)
		}
	}
}

// A text that is wrong is ErrInvalid, with what the driver says and where; so are an
// entry that is not there and parameters that are too few.
func TestWrongSources(t *testing.T) {
	e := open(t, 1)
	for what, c := range map[string]struct {
		code gpuexec.Code
		want []string
		kind error
	}{
		"an error": {gpuexec.Code{Text: "#include \"a.h\"\nkernel void k(global int *a) { a[0] = missing; }", Includes: map[string]string{"a.h": "// one\n// two\n"}},
			[]string{"missing", "text:2"}, fault.ErrInvalid},
		"an error in an include": {gpuexec.Code{Text: "#include \"a.h\"\nkernel void k(global int *a) { }", Includes: map[string]string{"a.h": "\nint f() { return absent; }"}},
			[]string{"absent", "a.h:2"}, fault.ErrInvalid},
		"another entry":         {gpuexec.Code{Text: "kernel void other(global int *a) { }"}, []string{`no kernel "k"`}, fault.ErrInvalid},
		"more arguments":        {gpuexec.Code{Text: "kernel void k(global int *a, int b) { }"}, []string{"takes 2 arguments", "has 1"}, fault.ErrInvalid},
		"an unknown option":     {gpuexec.Code{Text: "kernel void k(global int *a) { }", Options: []string{"-cl-unheard-of"}}, nil, fault.ErrInvalid},
		"constants":             {gpuexec.Code{Text: "kernel void k(global int *a) { }", Constants: map[uint32][]byte{1: {1}}}, []string{"Defines"}, fault.ErrUnsupported},
		"a header that is none": {gpuexec.Code{Text: "#include <stdio.h>\nkernel void k(global int *a) { }"}, []string{"stdio.h", "key_refused"}, fault.ErrInvalid},
	} {
		_, err := e.Compile(bg, source(t, c.code, buffer(4)))
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", what, err, c.kind)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want %q in it", what, err, part)
			}
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

// E3: a parameter that is not what the kernel takes is refused: drivers follow a number
// as if it were a buffer.
func TestParametersThatAreOthers(t *testing.T) {
	e := open(t, 1)
	const text = `typedef float real;
		kernel void k(global float *a, constant float *b, local int *c, uint n, real r, float4 v) { a[0] = b[n] * r * v.x + c[0]; }`
	right := []gpuexec.Param{buffer(4), buffer(4), {Kind: gpuexec.ParamLocal}, {Kind: gpuexec.ParamU32}, {Kind: gpuexec.ParamF32}, {Kind: gpuexec.ParamStruct, Bytes: 16}}
	compile(t, e, source(t, gpuexec.Code{Text: text}, right...))
	for i, wrong := range []gpuexec.Param{{Kind: gpuexec.ParamU64}, {Kind: gpuexec.ParamStruct, Bytes: 8}, buffer(4), buffer(4), buffer(4), {Kind: gpuexec.ParamLocal}} {
		params := slices.Clone(right)
		params[i] = wrong
		k, err := e.Compile(bg, source(t, gpuexec.Code{Text: text}, params...))
		if err == nil {
			k.Release()
		}
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("parameter %d as another: %v, want ErrInvalid", i, err)
		}
	}
	if k, err := e.Compile(bg, source(t, gpuexec.Code{Text: `kernel void k(int n) {}`}, gpuexec.Param{Kind: gpuexec.ParamF32})); !errors.Is(err, fault.ErrInvalid) {
		k.Release()
		t.Errorf("a float for an int: %v, want ErrInvalid", err)
	}
}

// E5: one kernel is launched by many goroutines on several workers, each with its own
// numbers, while blobs are taken and kernels come and go.
func TestManyWorkers(t *testing.T) {
	e := open(t, 4)
	k := compile(t, e, add(t))
	var wg sync.WaitGroup
	for g := range 32 {
		wg.Go(func() {
			n := 64 + g
			numbers := make([]float32, n)
			for i := range numbers {
				numbers[i] = float32(i * g)
			}
			in, out := upload(t, e, numbers), upload(t, e, make([]float32, n))
			for round := range 20 {
				run, err := e.Start(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{(n + 63) / 64},
					Args: []gpuexec.Arg{gpuexec.BufferArg(in), gpuexec.BufferArg(in), gpuexec.BufferArg(out), gpuexec.ValueArg(uint32(n))}})
				if err != nil {
					t.Error(err)
					return
				}
				if g%8 == 0 && round%5 == 0 {
					if blob, err := k.Blob(bg); err != nil || len(blob) == 0 {
						t.Errorf("blob: %d bytes, %v", len(blob), err)
					}
				}
				if err := run.Wait(bg); err != nil {
					t.Error(err)
					return
				}
			}
			for i, got := range download[float32](t, e, out) {
				if got != 2*numbers[i] {
					t.Errorf("goroutine %d: element %d is %v, want %v", g, i, got, 2*numbers[i])
					return
				}
			}
		})
	}
	wg.Wait()
}

// E2: another index is not found.
func TestIndex(t *testing.T) {
	for _, index := range []int{len(device(t).Devices(bg)), 1 << 30} {
		if _, err := gpuexec.Open(bg, gpuexec.Config{Backend: device(t), Index: index}); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("device %d: %v", index, err)
		}
	}
}

// P12: what is stored is tied to the driver and the device.
func TestIdentityIsKnown(t *testing.T) {
	id := gpuexec.IdentityOf(bg, device(t))
	if id.Library == "" || id.Build == "" || id.Driver == "" || id.Device == "" || id.Compiler == "" {
		t.Errorf("%+v", id)
	}
}
