//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/nvrtc"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/drivertest"
)

// TestFigures measures what docs/gpu.md asks for, on a GPU: make bench-gpu. On the driver
// made of Go it measures nothing, and proves that it runs.
func TestFigures(t *testing.T) {
	b := need(t)
	s := sizes{rounds: 1, launches: 4, cycles: 2, product: ops.New(ops.MatMul, 2, 8, 4)}
	if *real {
		s = sizes{rounds: 9, launches: 224, cycles: 1000, product: ops.New(ops.MatMul, 128, 768, 3072)}
	}
	s.row(t, "device", "%s, %s", b.Devices(bg)[0].Name, b.Devices(bg)[0].Driver)
	s.firstResults(t, b)
	s.launch(t, b)
	s.graph(t, b)
	s.cublas(t, b)
	s.workers(t, b)
	s.memory(t, b)
	s.loss(t, b) // last: a driver may not bear it
}

// sizes are how much is measured.
type sizes struct {
	rounds, launches, cycles int
	product                  ops.Op
}

// row is one of the table in docs/gpu.md.
func (s sizes) row(t *testing.T, what, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf("| %s | %s |", what, fmt.Sprintf(format, args...))
	if *real {
		fmt.Println(line)
		return
	}
	t.Log(line)
}

// median is that of durations, with the least and the most, in a unit.
func median(all []time.Duration, unit time.Duration) (middle float64, text string) {
	slices.Sort(all)
	in := func(d time.Duration) float64 { return float64(d) / float64(unit) }
	middle = in(all[len(all)/2])
	return middle, fmt.Sprintf("%.3g [%.3g, %.3g]", middle, in(all[0]), in(all[len(all)-1]))
}

// operands are those of the product on a device, its launch, and a way to give them back.
func (s sizes) operands(t testing.TB, e *gpuexec.Executor, k *gpuexec.Kernel) gpuexec.Launch {
	d := s.product.Dims
	prepared := must(backend{}.Prepare(s.product))
	weight := must(e.Alloc(bg, prepared.Bytes))
	t.Cleanup(weight.Release)
	grid, values := backend{}.Launch(s.product)
	args := []gpuexec.Arg{gpuexec.BufferArg(upload(t, e, make([]float32, d[0]*d[1]))), gpuexec.BufferArg(weight), gpuexec.BufferArg(upload(t, e, make([]float32, d[0]*d[2])))}
	return gpuexec.Launch{Kernel: k, Grid: grid, Args: append(args, values...)}
}

// first is what a child does: it opens everything, computes one product, and says how many
// nanoseconds that took. Its kernel comes from a store or a compile, or from PTX in a file.
func first(t *testing.T, kind, path string) {
	s := sizes{product: ops.New(ops.MatMul, 128, 768, 3072)}
	if !*real {
		s.product = ops.New(ops.MatMul, 2, 8, 4)
	}
	src, began := must(backend{}.Source(s.product)), time.Now()
	rt := must(kiln.Open(kiln.Config{StoreDir: map[string]string{"first": path}[kind]}))
	t.Cleanup(func() { check(rt.Close(bg)) })
	e := must(rt.Executor(bg, tested(), 0))
	group := must(must(rt.Session(kiln.SessionConfig{})).Group(bg, []int64{3}))
	var k *gpuexec.Kernel
	if kind == "first" {
		k = must(group.Kernel(bg, "product", e, src))
	} else {
		k = must(e.Load(bg, src, must(os.ReadFile(path))))
		defer k.Release()
	}
	check(e.Submit(bg, s.operands(t, e, k)))
	fmt.Printf("<<%d>>", time.Since(began))
	group.Close()
}

func (s sizes) firstResults(t *testing.T, b backend) {
	dir := t.TempDir()
	store, ptx := filepath.Join(dir, "store"), filepath.Join(dir, "ptx")
	src := must(b.Source(s.product))
	compiler := must(nvrtc.Open(b.cfg.NVRTC))
	_, _, all, err := b.devices()
	check(err)
	out := must(compiler.Compile(requestOf(must(codeOf(src)), strings.Replace(all[0].target, "sm_", "compute_", 1))))
	check(os.WriteFile(ptx, format.Seal(src.Key, newImage(nil, out.PTX).content()), 0o600))
	warm := filepath.Join(dir, "warm")
	run := func(kind, path, cache string) (time.Duration, error) {
		args := []string{"-test.run=^TestChild$", "-child=" + kind, "-store=" + path}
		if *real {
			args = append(args, "-real")
		}
		cmd := exec.CommandContext(t.Context(), must(os.Executable()), args...)
		cmd.Env = append(cmd.Environ(), "CUDA_CACHE_PATH="+cache)
		said, err := drivertest.Said(cmd)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(said, 10, 64)
		return time.Duration(n), err
	}
	kinds := []struct {
		name  string
		run   func() (time.Duration, error)
		took  []time.Duration
		maybe bool // a driver that is older than the compiler refuses it
	}{
		{name: "first result from source", run: func() (time.Duration, error) { return run("first", "", t.TempDir()) }},
		{name: "first result from the store", run: func() (time.Duration, error) { return run("first", store, t.TempDir()) }},
		{name: "first result from PTX, the driver's cache empty", run: func() (time.Duration, error) { return run("ptx", ptx, t.TempDir()) }, maybe: true},
		{name: "first result from PTX, by the driver's cache", run: func() (time.Duration, error) { return run("ptx", ptx, warm) }, maybe: true},
	}
	_, err = run("first", store, warm) // fills the store
	check(err)
	_, _ = run("ptx", ptx, warm)
	for range s.rounds {
		for i := range kinds {
			k := &kinds[i]
			if took, err := k.run(); err == nil {
				k.took = append(k.took, took)
			} else if !k.maybe {
				t.Fatal(k.name, err)
			}
		}
	}
	var middles []float64
	for _, k := range kinds {
		if len(k.took) == 0 {
			s.row(t, k.name, "the driver refuses the PTX of NVRTC %s", compiler.Version)
			continue
		}
		middle, text := median(k.took, time.Millisecond)
		middles = append(middles, middle)
		s.row(t, k.name, "%s ms", text)
	}
	if *real && middles[0] < 10*middles[1] {
		t.Errorf("the first result comes %.1f times faster from the store than from source, want 10 times", middles[0]/middles[1])
	}
}

// raw launches a kernel by the driver alone, within its context.
func (s sizes) raw(d *device, q *queue, p *program, threads uintptr, args []unsafe.Pointer) error {
	for range s.launches {
		if code := d.call(cuLaunchKernel, uintptr(p.function), 1, 1, 1, threads, 1, 1, 0, uintptr(q.stream), uintptr(unsafe.Pointer(&args[0])), 0); code != success {
			return d.failed("launch", cuLaunchKernel, code)
		}
	}
	return nil
}

// launch is what a launch of the executor costs beside one of the driver.
func (s sizes) launch(t *testing.T, b backend) {
	e, d := open(t, 1), must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	q, p, m := must(d.OpenQueue()).(*queue), must(d.Compile(bg, add(t))).(*program), must(d.Alloc(256)).(*memory)
	in := upload(t, e, make([]float32, 64))
	ours := slices.Repeat([]gpuexec.Launch{{Kernel: compile(t, e, add(t)), Grid: gpuexec.Size{1},
		Args: []gpuexec.Arg{gpuexec.BufferArg(in), gpuexec.BufferArg(in), gpuexec.BufferArg(in), gpuexec.ValueArg(uint32(64))}}}, s.launches)
	at, n := m.at, uint32(64)
	args := []unsafe.Pointer{unsafe.Pointer(&at), unsafe.Pointer(&at), unsafe.Pointer(&at), unsafe.Pointer(&n)}
	var added, raw []time.Duration
	for range 4*s.rounds + 1 {
		began := time.Now()
		check(e.Submit(bg, ours...))
		took := time.Since(began)
		began = time.Now()
		check(d.within("launch", func() error {
			return cmp.Or(s.raw(d, q, p, 64, args), q.Finish(bg))
		}))
		alone := time.Since(began)
		raw, added = append(raw, alone/time.Duration(s.launches)), append(added, (took-alone)/time.Duration(s.launches))
	}
	check(q.Close())
	_, text := median(raw, time.Microsecond)
	s.row(t, "a launch, by the driver alone", "%s us", text)
	middle, text := median(added, time.Microsecond)
	s.row(t, "what the executor adds to it", "%s us", text)
	if *real && middle > 3 {
		t.Errorf("the executor adds %.1f us to a launch, want at most 3", middle)
	}
}

// cublas is a product by the kernel and by cuBLAS, on the device alone, where that is there.
func (s sizes) cublas(t *testing.T, b backend) {
	if b.cfg.CUBLAS = *blas; !*real {
		b, _ = withBLAS(t, quick)
	}
	l := b.cublas()
	if l == nil {
		s.row(t, "a product by cuBLAS", "%s is not to be had", *blas)
		return
	}
	d := must(b.open(bg, 0)).(*device)
	defer func() { check(d.Close()) }()
	best := must(d.measure(bg, must(d.Compile(bg, must(b.Source(s.product)))).(*program)))
	s.row(t, fmt.Sprintf("a %s on the device, by the kernel and by cuBLAS %s", s.product, l.version), "%.3g and %.3g us", 1000*best[0]/launchesEach, 1000*best[1]/launchesEach)
}

// workers is what eight workers do beside one.
func (s sizes) workers(t *testing.T, b backend) {
	e := open(t, 8)
	k := compile(t, e, must(b.Source(s.product)))
	var launches [8]gpuexec.Launch
	for i := range launches {
		launches[i] = s.operands(t, e, k)
	}
	run := func(callers int) time.Duration {
		began := time.Now()
		var wg sync.WaitGroup
		for _, l := range launches[:callers] {
			wg.Go(func() {
				for range s.launches {
					check(e.Submit(bg, l))
				}
			})
		}
		wg.Wait()
		return time.Since(began) / time.Duration(callers*s.launches)
	}
	var one, eight []time.Duration
	for range s.rounds {
		one, eight = append(one, run(1)), append(eight, run(8))
	}
	_, a := median(one, time.Microsecond)
	_, c := median(eight, time.Microsecond)
	s.row(t, fmt.Sprintf("a %s, one caller and eight", s.product), "%s and %s us", a, c)
}

// memory is what cycles of load, launch and release leave behind.
func (s sizes) memory(t *testing.T, b backend) {
	e := open(t, 1)
	src := must(b.Source(s.product))
	first := compile(t, e, src)
	blob, l := must(first.Blob(bg)), s.operands(t, e, first)
	cycle := func() {
		k := must(e.Load(bg, src, blob))
		defer k.Release()
		l.Kernel = k
		check(e.Submit(bg, l))
	}
	resident := func() (pages int64) {
		_, err := fmt.Sscan(string(must(os.ReadFile("/proc/self/statm"))), new(int64), &pages)
		check(err)
		return pages * int64(os.Getpagesize()) >> 10
	}
	for range s.cycles / 4 {
		cycle()
	}
	before := resident()
	for range s.cycles {
		cycle()
	}
	s.row(t, fmt.Sprintf("%d times load, launch, release: growth", s.cycles), "%d KiB", resident()-before)
}

// loss is how long a device is away whose context a kernel has lost.
func (s sizes) loss(t *testing.T, b backend) {
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1})
	check(err)
	k := must(e.Compile(bg, source(t, gpuexec.Code{Text: `extern "C" __global__ void k(int *a) { asm("trap;"); }`, Block: gpuexec.Size{1}}, buffer(4))))
	memory := must(e.Alloc(bg, 4))
	began := time.Now()
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(memory)}}); !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("a kernel that traps: %v, want ErrDeviceLost", err)
	}
	k.Release()
	memory.Release()
	within, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	if err := e.Ready(within); err != nil {
		t.Errorf("the device does not come back: %v", err)
	} else {
		s.row(t, "from a trap to the device that is back", "%.3g ms", float64(time.Since(began))/float64(time.Millisecond))
	}
	check(e.Close(bg))
}
