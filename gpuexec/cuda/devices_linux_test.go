//go:build linux && (amd64 || arm64)

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/fakecuda"
	"github.com/kiln-cache/kiln/internal/drivertest"
)

// openIndex opens one of the devices made of Go.
func openIndex(t *testing.T, index int) *gpuexec.Executor {
	t.Helper()
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: needFake(t), Index: index, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(e.Close(bg)) })
	return e
}

// sums runs the kernel add on three numbers.
func sums(t *testing.T, e *gpuexec.Executor, k *gpuexec.Kernel) {
	t.Helper()
	in, out := upload(t, e, make([]float32, 64)), upload(t, e, make([]float32, 64))
	check(e.Write(bg, in, 0, gpuexec.BytesOf([]float32{1, 2, 3})))
	err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(in), gpuexec.BufferArg(in), gpuexec.BufferArg(out), gpuexec.ValueArg(uint32(3))}})
	if got := download[float32](t, e, out)[:3]; err != nil || !slices.Equal(got, []float32{2, 4, 6}) {
		t.Errorf("%v, got %v", err, got)
	}
}

// P3, K7: a blob goes to devices that its code is for; a later one compiles its PTX; an
// earlier one, and a driver that is older than the compiler, refuse it and say why.
func TestBlobOfAnotherDevice(t *testing.T) {
	for _, c := range []struct {
		from, to int
		isa      string
		reason   fault.Reason
		field    string
	}{
		{0, 0, "9.5", "", ""}, {0, 1, "9.5", "", ""}, // 8.0 on 8.6
		{1, 0, "9.5", fault.DeviceMismatch, "device"}, // 8.6 on 8.0
		{0, 2, "9.5", "", ""},                         // 8.0 on 9.0, as PTX
		{0, 2, "9.0", fault.Outdated, "driver"},
		{2, 0, "9.5", fault.DeviceMismatch, "device"},
		{3, 3, "9.5", "", ""}, // PTX alone
	} {
		t.Run(fmt.Sprintf("%d on %d with %s", c.from, c.to, c.isa), func(t *testing.T) {
			from, to := openIndex(t, c.from), openIndex(t, c.to)
			k := compile(t, from, add(t))
			sums(t, from, k)
			blob := must(k.Blob(bg))
			fake.ISA = c.isa
			defer func() { fake.ISA = "9.5" }()
			loaded, err := to.Load(bg, add(t), blob)
			if reason, field := fault.ReasonOf(err); reason != c.reason || field != c.field || (err != nil) != errors.Is(err, fault.ErrRefused) {
				t.Fatalf("%v, want %q (%s)", err, c.reason, c.field)
			}
			if err == nil {
				defer loaded.Release()
				sums(t, to, loaded)
			}
		})
	}
}

// A compiler that makes what the driver does not take is told apart from a bad text.
func TestCompilerNewerThanDriver(t *testing.T) {
	e := openIndex(t, 3)
	fake.ISA = "9.0"
	defer func() { fake.ISA = "9.5" }()
	if _, err := e.Compile(bg, add(t)); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "no newer than the driver") {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// withLibrary has a test use what is bound otherwise, or to another driver.
func withLibrary(t *testing.T, l *library) {
	t.Helper()
	before := loaded.library
	loaded.library = l
	t.Cleanup(func() { loaded.library = before })
}

// withDriver has a test use another driver made of Go.
func withDriver(t *testing.T, d *fakecuda.Driver) {
	t.Helper()
	withLibrary(t, must(bind(d.Symbol)))
	before := fake
	fake = d
	t.Cleanup(func() { fake = before })
}

// none has no device, many has one of each kind; once a process, since what C can call stays.
var (
	none = sync.OnceValue(func() *fakecuda.Driver { return fakecuda.New() })
	many = sync.OnceValue(func() *fakecuda.Driver {
		var devices []fakecuda.Device
		for _, capability := range capabilities {
			devices = append(devices, fakecuda.Device{Name: "Made of Go", Capability: capability, Memory: 1 << 28})
		}
		return fakecuda.New(devices...)
	})
	prohibited = sync.OnceValue(func() *fakecuda.Driver {
		return fakecuda.New(fakecuda.Device{Name: "Of nobody", Capability: 80, Memory: 1 << 20, Mode: 2}, fakecuda.Device{Name: "Made of Go", Capability: 80, Memory: 1 << 20})
	})
	capabilities = []int{75, 80, 86, 87, 89, 90, 100, 120}
)

// E2: a driver that shows no device is not missing: another thing is to be done.
func TestNoDevice(t *testing.T) {
	b := needFake(t)
	withDriver(t, none())
	if r := b.Devices(bg)[0].Reason; !strings.Contains(r, "CUDA_VISIBLE_DEVICES") || strings.Contains(r, "install") {
		t.Error(r)
	}
	if _, err := b.Open(bg, 0); !errors.Is(err, fault.ErrUnavailable) {
		t.Error(err)
	}
}

// E2: a device whose mode has no contexts is listed with what to do, and the others are used.
func TestProhibitedMode(t *testing.T) {
	b := needFake(t)
	withDriver(t, prohibited())
	all := b.Devices(bg)
	if len(all) != 2 || all[0].Available || !strings.Contains(all[0].Reason, "nvidia-smi -c DEFAULT") || !all[1].Available {
		t.Errorf("%+v", all)
	}
	if _, err := b.open(bg, 0); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	check(must(b.open(bg, 1)).Close())
}

// P3: PTX is for its own capability and for later ones.
func TestPTXOfACapability(t *testing.T) {
	d := &device{found: found{capability: 86}}
	for sm, want := range map[int]fault.Reason{80: "", 86: "", 87: fault.DeviceMismatch} {
		_, err := d.fits(newImage(nil, fmt.Appendf(nil, ".version 8.0\n.target sm_%d\n\x00", sm)))
		if reason, _ := fault.ReasonOf(err); reason != want || (err == nil) != (want == "") {
			t.Errorf("PTX for %d: %v", sm, err)
		}
	}
}

// K7, P8: devices of several capabilities, one source and one store: each gets the code of its
// own capability, from its own compile and then from the store.
func TestManyCapabilities(t *testing.T) {
	b, dir := needFake(t), t.TempDir()
	withDriver(t, many())
	for compiles := int64(1); compiles >= 0; compiles-- {
		rt := must(kiln.Open(kiln.Config{StoreDir: dir, Lookup: func(string) (string, bool) { return "", false }}))
		group := must(must(rt.Session(kiln.SessionConfig{})).Group(bg, []int64{1}))
		var wg sync.WaitGroup
		for i, capability := range capabilities {
			wg.Go(func() {
				e := must(rt.Executor(bg, b, i))
				k := must(group.Kernel(bg, fmt.Sprint("add", i), e, add(t)))
				sums(t, e, k)
				im := must(imageOf(must(format.Open(add(t).Key, must(k.Blob(bg))))))
				sm := int(binary.LittleEndian.Uint32(im.bytes[48:]) >> 8 & 0xff)
				if target := fmt.Sprintf(".target sm_%d", capability); sm != capability || !strings.Contains(string(im.bytes[im.ptx:]), target) || e.Stats().Compiles != compiles {
					t.Errorf("a device of %d has code for %d, PTX with %s: %v; %d compiles, want %d", capability, sm, target, strings.Contains(string(im.bytes[im.ptx:]), target), e.Stats().Compiles, compiles)
				}
			})
		}
		wg.Wait()
		group.Close()
		check(rt.Close(bg))
	}
}

// E1: a device that is lost again and again leaves the others alone.
func TestOneOfManyIsLost(t *testing.T) {
	needFake(t)
	withDriver(t, many())
	trap := source(t, gpuexec.Code{Block: gpuexec.Size{1}, Text: `extern "C" __global__ void k() { asm("trap;"); }`})
	var wg sync.WaitGroup
	for i := range capabilities {
		e := openIndex(t, i)
		wg.Go(func() {
			k := must(e.Compile(bg, trap))
			defer k.Release()
			sound := must(e.Compile(bg, add(t)))
			defer sound.Release()
			for n := range int64(4) {
				sums(t, e, sound)
				if i > 0 {
					continue
				}
				if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); !errors.Is(err, fault.ErrDeviceLost) {
					t.Errorf("%v, want ErrDeviceLost", err)
				}
				check(e.Ready(bg))
				if e.Stats().Restarts != n+1 {
					t.Errorf("%d restarts after %d traps", e.Stats().Restarts, n+1)
				}
			}
			if i > 0 && e.Stats().Restarts > 0 {
				t.Errorf("device %d was opened again", i)
			}
		})
	}
	wg.Wait()
}

// E3: the limits of a launch are those of their dimension: this driver has others in each.
func TestLimits(t *testing.T) {
	e := openIndex(t, 0)
	limits := e.Limits()
	if block, grid := (gpuexec.Size{1024, 512, 64}), (gpuexec.Size{1<<31 - 1, 65535, 32767}); limits.MaxBlock != block || limits.MaxGrid != grid || limits.MaxItems != 1024 {
		t.Fatalf("blocks of %v and %d items, grids of %v, want %v and %v", limits.MaxBlock, limits.MaxItems, limits.MaxGrid, block, grid)
	}
	k := compile(t, e, source(t, gpuexec.Code{Text: `extern "C" __global__ void k() {}`}))
	for i, most := range limits.MaxBlock {
		block := gpuexec.Size{1, 1, 1}
		block[i] = most // the driver takes as many
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Block: block}); err != nil {
			t.Errorf("blocks of %v: %v", block, err)
		}
	}
}

// What is compiled for a device: its own code, or PTX for one that the compiler does not know.
func TestTarget(t *testing.T) {
	for capability, want := range map[int]string{80: "sm_80", 90: "sm_90", 86: "compute_80", 130: "compute_90", 70: ""} {
		if got := targetOf(capability, []int{75, 80, 90}); got != want {
			t.Errorf("%d: %q, want %q", capability, got, want)
		}
	}
}

// E1: a context is lost for all that share it: an executor that has not noticed is told, and
// both come back.
func TestLostForOthers(t *testing.T) {
	one, other := openIndex(t, 0), openIndex(t, 0)
	trap := compile(t, one, source(t, gpuexec.Code{Block: gpuexec.Size{1}, Text: `extern "C" __global__ void k() { asm("trap;"); }`}))
	k := compile(t, other, add(t))
	sums(t, other, k)
	if err := one.Submit(bg, gpuexec.Launch{Kernel: trap, Grid: gpuexec.Size{1}}); !errors.Is(err, fault.ErrDeviceLost) {
		t.Fatalf("%v, want ErrDeviceLost", err)
	}
	for _, e := range []*gpuexec.Executor{one, other} {
		for e.Stats().Restarts == 0 {
			runtime.Gosched() // it is told by another goroutine
		}
		check(e.Ready(bg))
	}
	sums(t, other, k)
	sums(t, one, compile(t, one, add(t)))
}

// F4: whoever opens a device whose lost context others still hold waits no longer than it wants to.
func TestOpeningWaits(t *testing.T) {
	b := needFake(t)
	first := must(b.open(bg, 0)).(*device)
	first.primary.lose()
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if _, err := b.open(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
	opened := make(chan gpuexec.Device)
	go func() { opened <- must(b.open(bg, 0)) }()
	check(first.Close())
	second := (<-opened).(*device)
	if second.primary == first.primary {
		t.Error("the lost context was given again")
	}
	must(second.Alloc(16)).Release()
	check(second.Close())
}

// E1: a compile that would take minutes does not keep a lost device from coming back.
func TestLostWhileCompiling(t *testing.T) {
	b := needFake(t)
	d := must(b.open(bg, 0)).(*device)
	src := source(t, gpuexec.Code{Text: `template<int A, int B> struct F { static const int v = (F<A - 1, B>::v + F<A - 1, B + (1 << A % 30)>::v) & 1023; };
template<int B> struct F<0, B> { static const int v = B; };
extern "C" __global__ void k(int *a) { *a = F<29, 0>::v; }`}, buffer(4))
	compiled := make(chan error)
	go func() {
		_, err := d.Compile(bg, src)
		compiled <- err
	}()
	d.primary.lose()
	if err := <-compiled; !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("%v, want ErrDeviceLost", err)
	}
	check(d.Close())
}

// TestChild is what TestTwoProcesses and TestFigures start.
func TestChild(t *testing.T) {
	switch *child {
	case "":
		t.Skip("it is for processes that other tests start")
	case "first", "ptx":
		first(t, *child, *store)
		return
	}
	var from []string
	rt := must(kiln.Open(kiln.Config{StoreDir: *store, Listen: func(e kiln.Event) { from = append(from, string(e.Artefact)) }}))
	e := must(rt.Executor(bg, tested(), 0))
	group := must(must(rt.Session(kiln.SessionConfig{})).Group(bg, []int64{3}))
	k := must(group.Kernel(bg, "add", e, add(t)))
	sums(t, e, k)
	group.Close()
	fmt.Printf("<<%v, %d compiles>>", from, e.Stats().Compiles)
	check(rt.Close(bg))
}

// P6, P8: what the first process compiled comes out of the store in the next.
func TestTwoProcesses(t *testing.T) {
	need(t)
	dir := filepath.Join(t.TempDir(), "store")
	for _, want := range []string{"[miss], 1 compiles", "[persistent_hit], 0 compiles"} {
		args := []string{"-test.run=^TestChild$", "-child=add", "-store=" + dir}
		if *real {
			args = append(args, "-real")
		}
		if said, err := drivertest.Said(exec.CommandContext(t.Context(), must(os.Executable()), args...)); said != want {
			t.Errorf("%v: %s, want %s", err, said, want)
		}
	}
}
