package gpuexec_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// behind starts launches behind other runs.
func behind(t *testing.T, e *gpuexec.Executor, launch gpuexec.Launch, runs ...*gpuexec.Run) *gpuexec.Run {
	t.Helper()
	run, err := e.StartAfter(bg, runs, launch)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// E1: a run behind one that the driver has failed does not begin. Its error is a typed one
// that wraps the driver's, once along a chain, and the driver is called no more.
func TestRunBehindAFailedOne(t *testing.T) {
	broken := errors.New("broken")
	f := &fakedevice.Backend{OnLaunch: func(_ context.Context, key string, _ []gpuexec.DeviceArg, _ int) error {
		if key == "bad" {
			return broken
		}
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 2})
	good := gpuexec.Launch{Kernel: compile(t, e, source("good")), Grid: gpuexec.Size{1}}
	bad := gpuexec.Launch{Kernel: compile(t, e, source("bad")), Grid: gpuexec.Size{1}}
	first, failed := behind(t, e, good), behind(t, e, bad)
	next := behind(t, e, good, first, failed)
	last := behind(t, e, good, next, first)
	cause := failed.Wait(bg)
	if !errors.Is(cause, broken) {
		t.Fatalf("%v, want the driver's error", cause)
	}
	for range 2 { // the second: behind runs that have ended
		err := last.Wait(bg)
		var typed *fault.Error
		if !errors.As(err, &typed) || typed.Op != "executor: earlier run" || typed.Err != cause || err != next.Wait(bg) {
			t.Errorf("%v, want what stopped the run before: %v", err, next.Wait(bg))
		}
		last = behind(t, e, good, first, last)
	}
	if err := behind(t, e, good, first).Wait(bg); err != nil {
		t.Errorf("behind a run that has ended well: %v", err)
	}
	if n := e.Stats().Launches; n != 3 {
		t.Errorf("%d launches, want 3", n)
	}
}

// E1: a run that has ended, or was cancelled before it began, keeps nothing of its launches,
// also while its user keeps it.
func TestEndedRunKeepsNothing(t *testing.T) {
	f, gate, _ := gated()
	e := open(t, f, gpuexec.Config{Workers: 1})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	b := alloc(t, e, 1<<16)
	copied := func(runs ...*gpuexec.Run) (*gpuexec.Run, weak.Pointer[byte]) {
		host := make([]byte, 1<<16)
		return behind(t, e, gpuexec.CopyTo(b, 0, host), runs...), weak.Make(&host[0])
	}
	done, first := copied()
	if err := done.Wait(bg); err != nil {
		t.Fatal(err)
	}
	held := behind(t, e, gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}})
	cancelled, second := copied(held)
	cancelled.Cancel()
	if err := cancelled.Wait(bg); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, host := range []weak.Pointer[byte]{first, second} {
		eventually(t, func() bool {
			runtime.GC()
			return host.Value() == nil
		})
	}
	release()
	if err := errors.Join(held.Wait(bg), done.Wait(bg)); err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(cancelled)
}

// E1: a run that waits for another holds no worker, so that copies overlap with kernels; it
// takes a place in the queue, and when it is cancelled it lets go at once of it and of what it
// needs.
func TestHeldRuns(t *testing.T) {
	f, gate, began := gated()
	e := open(t, f, gpuexec.Config{Workers: 2, Queue: 2})
	runs := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	k, err := e.Compile(bg, source("other"))
	if err != nil {
		t.Fatal(err)
	}
	needs := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}
	b := alloc(t, e, 4)
	first := behind(t, e, runs)
	<-began
	for range 100 {
		held, more := behind(t, e, needs, first), behind(t, e, needs, first, first)
		refused := behind(t, e, runs, first)
		if err := refused.Wait(bg); !errors.Is(err, fault.ErrOverloaded) {
			t.Errorf("one too many: %v", err)
		}
		if err := e.Write(bg, b, 0, []byte{1}); err != nil {
			t.Errorf("a copy beside a kernel: %v", err)
		}
		if n := e.Stats().Queued; n != 2 {
			t.Errorf("%d wait, want 2", n)
		}
		for _, r := range []*gpuexec.Run{held, more} {
			r.Cancel()
			if err := r.Wait(bg); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled while it waited: %v", err)
			}
		}
	}
	k.Release()
	eventually(t, func() bool { return f.Programs() == 1 })
	last := behind(t, e, runs, first)
	close(gate)
	if err := last.Wait(bg); err != nil {
		t.Error(err)
	}
}
