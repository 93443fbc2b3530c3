package gpuexec_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// E1: a device that is lost again while its kernels are made leaves none of them to the
// opening that follows: each is made there.
func TestKernelsOfARestartInVain(t *testing.T) {
	var made atomic.Int32
	f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(context.Context, gpuexec.Source) error {
		if made.Add(1) == 4 { // the second one of the first restart
			return fault.ErrDeviceLost
		}
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	a, b := compile(t, e, source("a")), compile(t, e, source("b"))
	if !f.Lose() {
		t.Fatal("no device was open")
	}
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	for _, k := range []*gpuexec.Kernel{a, b} {
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
			t.Errorf("%s: %v", k.Key(), err)
		}
	}
	if n := made.Load(); n != 6 || f.Programs() != 2 {
		t.Errorf("made %d times, and %d programs are there; want 6 and 2", n, f.Programs())
	}
}

// E3: a launch that is refused for an argument that was released keeps nothing of those
// before it.
func TestRefusedLaunchKeepsNothing(t *testing.T) {
	f := &fakedevice.Backend{}
	e := open(t, f, gpuexec.Config{Workers: 1})
	param := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}
	k := compile(t, e, source("k", param, param))
	var buffers [2]*gpuexec.Buffer
	for i := range buffers {
		buffers[i] = alloc(t, e, 4)
	}
	buffers[1].Release()
	l := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(buffers[0]), gpuexec.BufferArg(buffers[1])}, Grid: gpuexec.Size{1}}
	if err := e.Submit(bg, l); !errors.Is(err, fault.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	buffers[0].Release()
	eventually(t, func() bool { return f.Memories() == 0 })
}

// E1: memory of a device that was lost has gone with it: its release is nothing to the next.
func TestMemoryOfALostDeviceIsLeftAlone(t *testing.T) {
	f := &fakedevice.Backend{}
	e := open(t, f, gpuexec.Config{Workers: 1})
	b := alloc(t, e, 4)
	if !f.Lose() {
		t.Fatal("no device was open")
	}
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return f.Leaked() == 2 }) // the new device and its queue: the old one is closed
	b.Release()
	alloc(t, e, 4) // behind the release, on the one worker
	if n := f.Misuse(); n != 0 {
		t.Errorf("the driver was called %d times for a device that was closed", n)
	}
}

// E6: memory that a driver gives after its caller has left is released.
func TestMemoryForOneWhoLeft(t *testing.T) {
	ctx, leave := context.WithCancel(bg)
	left := make(chan struct{})
	f := &fakedevice.Backend{OnCall: func(call string) error {
		if call == "alloc" {
			leave()
			<-left
		}
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	_, err := e.Alloc(ctx, 4)
	close(left)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want the context's error", err)
	}
	if err := e.Submit(bg); err != nil { // behind the driver's answer
		t.Fatal(err)
	}
	eventually(t, func() bool { return f.Memories() == 0 })
}

// B2, C5: a driver that was asked for a blob and gave none has its program released.
func TestBlobThatIsNotGivenKeepsNothing(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{OnBlob: func(string) error { return errors.New("not now") }}
		e := open(t, f, gpuexec.Config{Workers: 1})
		k, err := e.Compile(bg, source("k"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Blob(bg); err == nil {
			t.Error("it has a blob")
		}
		k.Release()
		synctest.Wait()
		if n := f.Programs(); n != 0 {
			t.Errorf("%d programs are left", n)
		}
	})
}

// E1: an executor keeps nothing of a kernel that was released.
func TestReleasedKernelIsForgotten(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{Workers: 1})
	const n = 16
	var forgotten atomic.Int32
	for i := range n {
		spec := new([1 << 10]byte)
		runtime.AddCleanup(spec, func(int) { forgotten.Add(1) }, 0)
		src := source(string(rune('a' + i)))
		src.Spec = spec
		k, err := e.Compile(bg, src)
		if err != nil {
			t.Fatal(err)
		}
		k.Release()
	}
	eventually(t, func() bool { // the last ones may be in a stack's remains
		runtime.GC()
		return forgotten.Load() >= n/2
	})
}
