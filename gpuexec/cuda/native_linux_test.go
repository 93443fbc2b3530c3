//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
)

// E2: a driver that is not there, or is another library, is unavailable, with what to install.
func TestAbsentDriver(t *testing.T) {
	for _, name := range []string{"libKilnHasNone.so.1", "libc.so.6"} {
		if _, err := load(name); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "install") {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	if _, err := (backend{Config{NVRTC: "/nowhere/libnvrtc.so.13"}}).open(bg, 0); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "KILN_NVRTC") {
		t.Errorf("no compiler: %v, want ErrUnavailable with what to install", err)
	}
}

// The names are in the order of the constants.
func TestNames(t *testing.T) {
	if slices.Contains(names[:], "") || cuLaunchKernel.String() != "cuLaunchKernel" || cuMemAlloc.String() != "cuMemAlloc_v2" || cuModuleUnload.String() != "cuModuleUnload" {
		t.Error("the names are out of order")
	}
}

// E1, R3: each code of a driver is the error that tells what to do, by its name.
func TestCodes(t *testing.T) {
	needFake(t)
	for code, want := range map[int32]struct {
		kind   error
		reason fault.Reason
		text   string
	}{
		1: {fault.ErrInvalid, "", "CUDA_ERROR_INVALID_VALUE (1)"}, 2: {fault.ErrTooLarge, "", ""}, 34: {fault.ErrUnavailable, "", "install"}, 100: {fault.ErrUnavailable, "", "CUDA_VISIBLE_DEVICES"},
		46: {fault.ErrUnavailable, "", "another process"}, 304: {fault.ErrUnavailable, "", ""}, 805: {fault.ErrUnavailable, "", ""},
		226: {fault.ErrDeviceLost, "", ""}, 721: {fault.ErrDeviceLost, "", ""}, 810: {fault.ErrDeviceLost, "", ""},
		200: {fault.ErrRefused, fault.DriverRefused, ""}, 209: {fault.ErrRefused, fault.DeviceMismatch, ""}, 222: {fault.ErrRefused, fault.Outdated, "driver"},
		214: {fault.ErrDeviceLost, "", ""}, 201: {fault.ErrDeviceLost, "", ""}, 220: {fault.ErrDeviceLost, "", ""}, 702: {fault.ErrDeviceLost, "", ""}, 709: {fault.ErrDeviceLost, "", ""},
		714: {fault.ErrDeviceLost, "", ""}, 715: {fault.ErrDeviceLost, "", ""}, 716: {fault.ErrDeviceLost, "", ""}, 717: {fault.ErrDeviceLost, "", ""}, 718: {fault.ErrDeviceLost, "", ""}, 999: {fault.ErrDeviceLost, "", ""},
		700: {fault.ErrDeviceLost, "", ""}, 719: {fault.ErrDeviceLost, "", ""}, 803: {fault.ErrUnavailable, "", ""}, 12345: {errDriver, "", "code 12345"},
	} {
		err := loaded.library.failed("load", cuModuleLoadData, code)
		if reason, _ := fault.ReasonOf(err); !errors.Is(err, want.kind) || reason != want.reason || !strings.Contains(err.Error(), want.text) {
			t.Errorf("code %d: %v, want %v", code, err, want)
		}
	}
	if loaded.library.failed("load", cuModuleLoadData, success) != nil {
		t.Error("success is an error")
	}
}

// E2: a driver that does not start, or tells nothing of its devices, is unavailable, with where
// to look: there is nothing yet that could be lost.
func TestDriverThatDoesNotStart(t *testing.T) {
	b := needFake(t)
	for _, f := range []function{cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGetAttribute} {
		for _, code := range []int32{1, outOfMemory, illegalAddress, 999, 12345} {
			hook := func(called function) int32 {
				if called == f {
					return code
				}
				return success
			}
			inject.Store(&hook)
			_, err := bind(fake.Symbol)
			if err == nil {
				_, err = b.open(bg, 0)
			}
			inject.Store(nil)
			if !errors.Is(err, fault.ErrUnavailable) || errors.Is(err, fault.ErrDeviceLost) || !strings.Contains(err.Error(), "nvidia-smi") || !strings.Contains(err.Error(), f.String()) {
				t.Errorf("%s fails with %d: %v, want ErrUnavailable with where to look", f, code, err)
			}
		}
	}
}

// unheeded are functions whose answer changes nothing: they give back what nobody has any
// more, or ask for a name.
var unheeded = []function{cuGetErrorName, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxReset, cuCtxPopCurrent, cuStreamDestroy, cuEventDestroy,
	cuMemFree, cuMemFreeHost, cuModuleUnload, cuMemPoolDestroy, cuMemFreeAsync}

// testedElsewhere are those whose failures other tests have: of the start, and of measurements.
var testedElsewhere = []function{cuInit, cuDriverGetVersion, cuEventElapsedTime}

// E1, E3: whatever call of the driver fails, the error is typed, nothing is leaked, and
// a device that was not lost goes on.
func TestEveryCallMayFail(t *testing.T) {
	b := need(t)
	b.cfg.InProcess = true // it is quicker
	before, live := native.Load(), liveObjects()
	src, other := numbered(t, 1), numbered(t, 0)
	reached := make(map[function]bool)
	fail := func(f function) {
		for nth, code := range []int32{illegalAddress, outOfMemory, 12345} {
			reached[f] = failOnce(t, b, f, code, nth, src, other) || reached[f]
			if now := native.Load(); now != before || liveObjects() != live {
				t.Fatalf("%s fails with %d at call %d: %d objects are left, %d of the driver", f, code, nth, now-before, liveObjects()-live)
			}
		}
	}
	for f := range functions {
		fail(f)
	}
	if fake == nil {
		return // the driver is with pools, or without
	}
	plain(t)
	fail(cuMemAlloc)
	for f := range functions {
		if want := !slices.Contains(unheeded, f) && !slices.Contains(testedElsewhere, f); reached[f] != want {
			t.Errorf("%s was made to fail: %v, want %v", f, reached[f], want)
		}
	}
}

func liveObjects() int {
	if fake == nil {
		return 0
	}
	return fake.Live()
}

// failOnce has one call of a function fail in the life of an executor, if it comes to that.
func failOnce(t *testing.T, b backend, f function, code int32, nth int, src, other gpuexec.Source) bool {
	t.Helper()
	var calls atomic.Int64
	hook := func(called function) int32 {
		if called == f && calls.Add(1) == int64(nth+1) {
			return code
		}
		return success
	}
	inject.Store(&hook)
	err := generaltest.Faulted(t, b, src, other, func(err error) { typed(t, f, code, err) }, func() { inject.Store(nil) })
	if err != nil && !errors.Is(err, fault.ErrDeviceLost) {
		t.Error(err)
	}
	return calls.Load() > int64(nth)
}

func typed(t *testing.T, f function, code int32, err error) {
	t.Helper()
	kinds := []error{fault.ErrDeviceLost, fault.ErrTooLarge, fault.ErrRefused, fault.ErrUnavailable, errDriver}
	if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
		t.Errorf("%s fails with %d: %v", f, code, err)
	}
	if code == illegalAddress && f == cuLaunchKernel && !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("%s: %v, want ErrDeviceLost", f, err)
	}
}

// E1: what a device is closed with, its kernels, buffers and queues, goes with it; no
// thread is left with its context.
func TestNothingIsLeft(t *testing.T) {
	b := need(t)
	live := liveObjects()
	generaltest.NothingIsLeft(t, b, numbered(t, 2), 3, native.Load)
	if now := liveObjects(); now != live {
		t.Errorf("%d objects of the driver are left", now-live)
	}
	if fake != nil && fake.Current() {
		t.Error("a thread is left with a context")
	}
}

// E1: a kernel that traps takes the device with it: the run is ErrDeviceLost, the device
// comes back, and other kernels are loaded from their blobs, and not compiled again.
func TestLostDevice(t *testing.T) {
	e := open(t, 2)
	src := source(t, gpuexec.Code{Block: gpuexec.Size{1}, Text: `extern "C" __global__ void k(int *a, int how) {
		if (how == 1) asm("trap;"); else if (how == 2) a[1 << 28] = 1; else a[0] = 5; }`}, buffer(4), number(gpuexec.ParamI32))
	k := compile(t, e, src)
	must(k.Blob(bg))
	for how := range int32(3) {
		b := upload(t, e, []int32{0})
		err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.ValueArg(how)}})
		if how == 0 {
			if got := download[int32](t, e, b); err != nil || got[0] != 5 {
				t.Fatalf("%v, got %v", err, got)
			}
			continue
		}
		if !errors.Is(err, fault.ErrDeviceLost) {
			t.Fatalf("how %d: %v, want ErrDeviceLost", how, err)
		}
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		b = upload(t, e, []int32{0})
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.ValueArg(int32(0))}}); err != nil {
			t.Fatalf("after the device came back: %v", err)
		}
		if got := download[int32](t, e, b); got[0] != 5 {
			t.Errorf("after the device came back: %v", got)
		}
	}
	if s := e.Stats(); s.Compiles != 1 || s.Restarts != 2 {
		t.Errorf("%d compiles, %d restarts", s.Compiles, s.Restarts)
	}
}

var caught = regexp.MustCompile(`(?m)^(SigCgt|SigIgn):.*$`)

// E4: Go keeps its signal handlers.
func TestSignals(t *testing.T) {
	b := need(t)
	signals := func() string {
		return fmt.Sprint(caught.FindAllString(string(must(os.ReadFile("/proc/self/status"))), -1))
	}
	before := signals()
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: b, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(generaltest.Use(e, numbered(t, 3), numbered(t, 4)), e.Close(bg)); err != nil {
		t.Fatal(err)
	}
	if now := signals(); now != before || !strings.Contains(before, "SigCgt") {
		t.Errorf("%s, before %s", now, before)
	}
}

// Objects are counted for devicetest.
func (backend) Objects() int64 { return native.Load() }
