//go:build linux && (amd64 || arm64)

package cuda

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/fakecuda"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/nvrtc"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
)

var (
	real  = flag.Bool("real", false, "run on the driver that is installed, instead of one made of Go")
	blas  = flag.String("cublas", installed, "with -real: cuBLAS, as Config.CUBLAS has it")
	child = flag.String("child", "", "what a process that a test started is to do")
	store = flag.String("store", "", "the store of such a process")

	bg   = context.Background()
	fake *fakecuda.Driver // nil with -real
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !*real {
		var devices []fakecuda.Device
		for _, capability := range []int{80, 86, 90, 130} { // no compiler knows the last one
			devices = append(devices, fakecuda.Device{Name: "Made of Go", Capability: capability, Memory: 1 << 30})
		}
		fake = fakecuda.New(devices...)
		l, err := bind(fake.Symbol)
		if err != nil {
			panic(err)
		}
		loaded.library = l
	}
	if *child != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(ending{m})
}

// ending ends the compiler's processes that Compile leaves idle, once the tests have run.
type ending struct{ *testing.M }

func (m ending) Run() int {
	defer func() {
		if l, err := nvrtc.Open(tested().cfg.NVRTC); err == nil {
			nvrtc.Share(l.Path).Leave()
		}
	}()
	return m.M.Run()
}

// tested is the backend with the compiler that `make fetch-nvrtc` brings, or with the one
// that is installed.
func tested() backend {
	path, err := filepath.Abs("../../.cache/nvrtc/libnvrtc.so.13")
	if err != nil {
		panic(err)
	}
	if _, err := os.Stat(path); err != nil {
		path = ""
	}
	return backend{Config{NVRTC: path}}
}

// need skips where there is no compiler, or no device; asked for with -real, it fails.
func need(t testing.TB) backend {
	t.Helper()
	b := tested()
	if _, err := b.list(); errors.Is(err, fault.ErrUnavailable) && !*real {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return b
}

// needFake skips a test that no real driver can be used for.
func needFake(t testing.TB) backend {
	t.Helper()
	if fake == nil {
		t.Skip("this needs the driver made of Go")
	}
	return need(t)
}

func open(t testing.TB, workers int) *gpuexec.Executor {
	t.Helper()
	return generaltest.Open(t, need(t), workers)
}

func source(t testing.TB, c gpuexec.Code, params ...gpuexec.Param) gpuexec.Source {
	t.Helper()
	c.Language = Language
	if c.Entry == "" {
		c.Entry = "k"
	}
	src, err := c.Source(params...)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func buffer(bytes int64) gpuexec.Param { return gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: bytes} }

func number(kind gpuexec.ParamKind) gpuexec.Param { return gpuexec.Param{Kind: kind} }

func local(bytes int64) gpuexec.Param { return gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: bytes} }

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
extern "C" __global__ void add(const float *a, const float *b, float *c, unsigned n) {
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void sum(const float *a, float *out, unsigned n) {
	extern __shared__ float part[];
	float s = 0;
	for (unsigned i = threadIdx.x; i < n; i += blockDim.x) s += a[i];
	part[threadIdx.x] = s;
	for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
		__syncthreads();
		if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
	}
	if (threadIdx.x == 0) out[0] = part[0];
}`

func add(t testing.TB) gpuexec.Source {
	return source(t, gpuexec.Code{Text: vectors, Entry: "add", Block: gpuexec.Size{64}}, buffer(256), buffer(256), buffer(256), number(gpuexec.ParamU32))
}

func sum(t testing.TB) gpuexec.Source {
	return source(t, gpuexec.Code{Text: vectors, Entry: "sum", Block: gpuexec.Size{64}}, buffer(256), buffer(4), number(gpuexec.ParamU32), local(256))
}

// numbered is a program that is another one for each number.
func numbered(t testing.TB, n int) gpuexec.Source {
	return source(t, gpuexec.Code{Block: gpuexec.Size{4}, Defines: map[string]string{"N": fmt.Sprint(n)},
		Text: `extern "C" __global__ void k(const int *a, int *b, int c) { extern __shared__ int d[]; int i = threadIdx.x; d[i] = a[i]; b[i] = d[i] + c + N; }`,
	}, buffer(16), buffer(16), number(gpuexec.ParamI32), local(64))
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
