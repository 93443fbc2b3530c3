//go:build linux && (amd64 || arm64)

package opencl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/internal/staging"
)

var atStart = readSignals() // before any call of a driver

var bg = context.Background()

func needDevice(t testing.TB) {
	t.Helper()
	if _, err := list(); err != nil {
		t.Skip(err)
	}
}

// E2: a library that is not there, or is another one, is unavailable.
func TestAbsentLibrary(t *testing.T) {
	for _, name := range []string{"libKilnHasNone.so.1", "libc.so.6"} {
		if _, err := load(name); !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
}

func sourceOf(t testing.TB, number int) gpuexec.Source {
	t.Helper()
	src, err := gpuexec.Code{Language: Language, Entry: "k", Block: gpuexec.Size{4}, Defines: map[string]string{"N": fmt.Sprint(number)},
		Text: "kernel void k(global int *a, global int *b, int c, local int *d) { size_t i = get_global_id(0); d[0] = 0; b[i] = a[i] + c + N; }",
	}.Source(gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 16}, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 16},
		gpuexec.Param{Kind: gpuexec.ParamI32}, gpuexec.Param{Kind: gpuexec.ParamLocal, Bytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// E1, E3: whatever call of the driver fails, the error is typed, nothing is leaked, and
// a device that was not lost goes on.
func TestEveryCallMayFail(t *testing.T) {
	needDevice(t)
	before := native.Load()
	src := sourceOf(t, 1)
	for _, b := range []backend{{}, {staged: true}} {
		for f := range functions {
			if strings.HasPrefix(f.String(), "clRelease") || f == clEnqueueUnmapMemObject {
				continue // what it says is of no use
			}
			for nth, code := range []int32{notAvailable, outOfResources} {
				failOnce(t, b, f, code, nth, src)
				if now := native.Load(); now != before {
					t.Fatalf("%s fails with %d at call %d, staged %t: %d objects are left", f, code, nth, b.staged, now-before)
				}
			}
		}
	}
}

// B1 to B3: a device with memory of its own passes the contract, and copies of many parts come
// whole, also to and from the middle of a buffer.
func TestStages(t *testing.T) {
	needDevice(t)
	b := backend{staged: true}
	devicetest.Contract(t, b, sourceOf(t, 1), sourceOf(t, 2))
	e := generaltest.Open(t, b, 1)
	const bytes, from = 5*staging.Bytes + 12, 3*staging.Bytes/2 + 4
	want := make([]uint32, bytes/4)
	buffer := generaltest.Upload(t, e, want)
	for i := from / 4; i < len(want)-1; i++ {
		want[i] = uint32(i) * 2654435761
	}
	if err := e.Write(bg, buffer, from, gpuexec.BytesOf(want[from/4:len(want)-1])); err != nil {
		t.Fatal(err)
	}
	if got := generaltest.Download[uint32](t, e, buffer); !slices.Equal(got, want) {
		t.Error("other bytes came back")
	}
	part := make([]uint32, len(want)/2)
	if err := e.Read(bg, buffer, 4*int64(len(want)/2), gpuexec.BytesOf(part)); err != nil || !slices.Equal(part, want[len(want)/2:][:len(part)]) {
		t.Errorf("%v, or other bytes came back of a part", err)
	}
}

// failOnce has one call of a function fail in the life of an executor.
func failOnce(t *testing.T, b backend, f function, code int32, nth int, src gpuexec.Source) {
	t.Helper()
	var calls atomic.Int64
	hook := func(called function) int32 {
		if called == f && calls.Add(1) == int64(nth+1) {
			return code
		}
		return success
	}
	loaded.Lock()
	loaded.devices = nil // the drivers are asked again
	loaded.Unlock()
	inject.Store(&hook)
	if err := generaltest.Faulted(t, b, src, sourceOf(t, 0), func(err error) { typed(t, f, code, err) }, func() { inject.Store(nil) }); err != nil {
		t.Error(err)
	}
}

func typed(t *testing.T, f function, code int32, err error) {
	t.Helper()
	kinds := []error{fault.ErrDeviceLost, fault.ErrTooLarge, fault.ErrInvalid, fault.ErrRefused, fault.ErrUnavailable, fault.ErrUnsupported, errDriver}
	if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
		t.Errorf("%s fails with %d: %v", f, code, err)
	}
	if code == notAvailable && f == clEnqueueNDRangeKernel && !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("%s: %v, want ErrDeviceLost", f, err)
	}
}

// E1: a copy from or to a stage that fails behind its call is told: by the call that needs the
// stage again, or by the end of the sequence.
func TestFailedCopy(t *testing.T) {
	needDevice(t)
	e := generaltest.Open(t, backend{staged: true}, 1)
	for f, n := range map[function]int{clWaitForEvents: 3 * staging.Bytes, clGetEventInfo: 1 << 10} {
		buffer := generaltest.Upload(t, e, make([]uint32, n/4))
		var calls atomic.Int64
		hook := func(called function) int32 {
			if called == f && calls.Add(1) == 1 {
				return allocationFailed
			}
			return success
		}
		inject.Store(&hook)
		err := e.Write(bg, buffer, 0, make([]byte, n))
		inject.Store(nil)
		if err == nil || calls.Load() == 0 {
			t.Errorf("%s fails: %v after %d calls", f, err, calls.Load())
		}
		if err := e.Write(bg, buffer, 0, make([]byte, n)); err != nil {
			t.Errorf("after %s failed: %v", f, err)
		}
	}
}

// E1: what a device is closed with, its kernels, buffers and queues, goes with it.
func TestNothingIsLeft(t *testing.T) {
	needDevice(t)
	for _, b := range []backend{{}, {staged: true}} {
		generaltest.NothingIsLeft(t, b, sourceOf(t, 2), 20, native.Load)
	}
}

// E4: a driver takes over signals, and Go has them back when the call has returned.
func TestSignals(t *testing.T) {
	needDevice(t)
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: backend{}, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := generaltest.Use(e, sourceOf(t, 3), sourceOf(t, 0)); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(bg); err != nil {
		t.Fatal(err)
	}
	for n, now := range readSignals() {
		if now != atStart[n] {
			t.Errorf("signal %d: %x, at the start it was %x", n, now, atStart[n])
		}
	}
}

// E4: what is taken away within a call is put back by the last of those under way, and
// what Go itself has taken meanwhile stays with Go.
func TestKeepSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := readSignals()
	ignored := disposition{handler: 1} // SIG_IGN
	keepSignals(func() {
		sigaction(int(unix.SIGUSR1), &ignored, nil)
		keepSignals(func() { sigaction(int(unix.SIGUSR2), &ignored, nil) })
		if readSignals()[unix.SIGUSR2] != before[unix.SIGUSR2] {
			t.Error("the inner call left SIGUSR2 ignored")
		}
		if readSignals()[unix.SIGUSR1] != before[unix.SIGUSR1] {
			t.Error("the inner call left SIGUSR1 ignored")
		}
		sigaction(int(unix.SIGUSR2), &ignored, nil)
	})
	if now := readSignals(); now != before {
		t.Error("not all is as it was")
	}
	sigaction(int(unix.SIGUSR1), &ignored, nil)
	keepSignals(func() { restoreSignals(&before) }) // as signal.Notify does it
	if now := readSignals(); now != before {
		t.Error("Go's own handler was taken away again")
	}
}

// An executor adds little to the calls of the library that a launch takes: -held holds it to a
// gate, and -v shows the figures.
func TestLaunchCost(t *testing.T) {
	by, raw := sequences(t, sourceOf(t, 4), 1)
	generaltest.LaunchCost(t, by, raw)
}

// A collection of Go's does not wait for an executor's calls longer than for those of the library
// alone, whose threads keep the processors busy: -held and -v are as above.
func TestPauseCost(t *testing.T) {
	needDevice(t)
	src := sourceOf(t, 5)
	code := src.Spec.(gpuexec.Code)
	code.Text = "kernel void k(global int *a, global int *b, int c, local int *d) { float x = a[0]; for (int i = 0; i < c; i++) x = x * 0.5f + N; b[get_local_id(0)] = x; }"
	src, err := code.Source(src.Params...)
	if err != nil {
		t.Fatal(err)
	}
	by, raw := sequences(t, src, 100_000) // about 0.3 ms for a group
	generaltest.PauseCost(t, by, raw)
}

// sequences gives a sequence of launches of a program like that of sourceOf, to its end: by an executor, and by
// the library's calls alone.
func sequences(t *testing.T, src gpuexec.Source, value int32) (by, raw func() error) {
	t.Helper()
	needDevice(t)
	const groups = 4
	e := generaltest.Open(t, backend{}, 1)
	buffer := generaltest.Upload(t, e, make([]uint32, 16))
	launches := slices.Repeat([]gpuexec.Launch{{Kernel: generaltest.Compile(t, e, src), Grid: gpuexec.Size{groups}, Args: []gpuexec.Arg{
		gpuexec.BufferArg(buffer), gpuexec.BufferArg(buffer), gpuexec.ValueArg(value), gpuexec.LocalArg(64)}}}, generaltest.Sequence)
	return func() error { return e.Submit(bg, launches...) }, rawLaunches(t, src, value, groups)
}

// rawLaunches gives the library's calls for such a sequence, and for the wait for it.
func rawLaunches(t *testing.T, src gpuexec.Source, value int32, groups uintptr) func() error {
	t.Helper()
	opened, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*device)
	made, err := d.Compile(bg, src)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := made.Blob(bg); err != nil {
		t.Fatal(err)
	}
	m, err := d.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.newQueue()
	if err != nil {
		t.Fatal(err)
	}
	kernel, _, err := made.(*program).kernel(&queue{})
	if err != nil {
		t.Fatal(err)
	}
	arg := &struct {
		buffer        handle
		value         int32
		global, local [3]uintptr
	}{m.(*memory).buffer, value, [3]uintptr{4 * groups, 1, 1}, [3]uintptr{4, 1, 1}}
	launch := func() error {
		for _, code := range []int32{
			d.call(clSetKernelArg, uintptr(kernel), 0, 8, uintptr(unsafe.Pointer(&arg.buffer))),
			d.call(clSetKernelArg, uintptr(kernel), 1, 8, uintptr(unsafe.Pointer(&arg.buffer))),
			d.call(clSetKernelArg, uintptr(kernel), 2, 4, uintptr(unsafe.Pointer(&arg.value))),
			d.call(clSetKernelArg, uintptr(kernel), 3, 64, 0),
			d.call(clEnqueueNDRangeKernel, uintptr(q), uintptr(kernel), 3, 0, uintptr(unsafe.Pointer(&arg.global)), uintptr(unsafe.Pointer(&arg.local)), 0, 0, 0),
		} {
			if code != success {
				return failed("launch", clEnqueueNDRangeKernel, code, false)
			}
		}
		return nil
	}
	t.Cleanup(func() {
		d.release(clReleaseCommandQueue, q)
		_ = d.Close()
	})
	return func() error {
		for range generaltest.Sequence {
			if err := launch(); err != nil {
				return err
			}
		}
		return failed("finish", clFinish, d.call(clFinish, uintptr(q)), true)
	}
}

// The library's constants are in the order of their names.
func TestNames(t *testing.T) {
	if slices.Contains(names[:], "") {
		t.Error("a function has no name")
	}
	if clReleaseEvent.String() != "clReleaseEvent" || clGetDeviceInfo.String() != "clGetDeviceInfo" {
		t.Error("the names are out of order")
	}
}

// Objects are counted for devicetest.
func (backend) Objects() int64 { return native.Load() }
