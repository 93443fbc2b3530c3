package gpuexec_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// gated is a backend whose launches wait for gate, each told to began.
func gated() (f *fakedevice.Backend, gate, began chan struct{}) {
	gate, began = make(chan struct{}), make(chan struct{}, 16)
	return &fakedevice.Backend{OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
		began <- struct{}{}
		<-gate
		return nil
	}}, gate, began
}

// E1: Start returns before the launches have run, Wait when they have; the end of the
// context of either ends nothing that runs.
func TestStart(t *testing.T) {
	f, gate, began := gated()
	e := open(t, f, gpuexec.Config{Workers: 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	ctx, cancel := context.WithCancel(bg)
	run, err := e.Start(ctx, launch, launch)
	if err != nil {
		t.Fatal(err)
	}
	<-began
	cancel()
	if err := run.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait with an ended context: %v", err)
	}
	close(gate)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := run.Wait(bg); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := e.Stats().Launches; n != 2 {
		t.Errorf("%d launches, want both", n)
	}
	if _, err := e.Start(ctx, launch); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := e.Start(bg, gpuexec.Launch{}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a wrong launch: %v", err)
	}
}

// E1: what waits is cancelled at once, what runs before its next launch; a full queue
// is told by Wait; what was pinned is let go.
func TestCancelRun(t *testing.T) {
	f, gate, began := gated()
	e := open(t, f, gpuexec.Config{Workers: 1, Queue: 1})
	k, err := e.Compile(bg, source("k"))
	if err != nil {
		t.Fatal(err)
	}
	launch := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}
	start := func() *gpuexec.Run {
		t.Helper()
		run, err := e.Start(bg, launch, launch)
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	runs := start()
	<-began
	waits, refused := start(), start()
	if err := refused.Wait(bg); !errors.Is(err, fault.ErrOverloaded) {
		t.Errorf("in a full queue: %v", err)
	}
	waits.Cancel()
	if err := waits.Wait(bg); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while it waited: %v", err)
	}
	runs.Cancel()
	close(gate)
	if err := runs.Wait(bg); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while it ran: %v", err)
	}
	if n := e.Stats().Launches; n != 1 {
		t.Errorf("%d launches, want one", n)
	}
	k.Release()
	eventually(t, func() bool { return f.Programs() == 0 })
}

// E1: a sequence that ends early, by an error or because its caller left, waits for what
// it has launched before it lets the kernels go.
func TestEarlyEndWaits(t *testing.T) {
	for _, what := range []string{"an error", "a caller that leaves"} {
		finished := 0
		ctx, cancel := context.WithCancel(bg)
		broken := errors.New("broken")
		var f *fakedevice.Backend
		f = &fakedevice.Backend{
			OnLaunch: func(running context.Context, _ string, _ []gpuexec.DeviceArg, grid int) error {
				switch {
				case grid == 1:
				case what == "an error":
					return broken
				default:
					cancel()
					<-running.Done() // of the run that is cancelled
				}
				return nil
			},
			OnCall: func(call string) error {
				if call == "finish" {
					if finished++; f.Programs() != 1 {
						t.Errorf("%s: the kernel went before its launch had run", what)
					}
				}
				return nil
			}}
		e := open(t, f, gpuexec.Config{Workers: 1})
		k, err := e.Compile(bg, source("k"))
		if err != nil {
			t.Fatal(err)
		}
		launch := func(grid int) gpuexec.Launch { return gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{grid}} }
		run, err := e.Start(ctx, launch(1), launch(2), launch(1))
		if err != nil {
			t.Fatal(err)
		}
		if what != "an error" {
			<-ctx.Done()
			run.Cancel()
		}
		k.Release()
		if err := run.Wait(bg); !errors.Is(err, broken) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		if finished != 1 {
			t.Errorf("%s: the queue was finished %d times, want once", what, finished)
		}
		cancel()
	}
}

// E1: a lost device and Close answer runs, too.
func TestRunOnALostDevice(t *testing.T) {
	f, gate, began := gated()
	e := open(t, f, gpuexec.Config{Workers: 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	first, err := e.Start(bg, launch)
	if err != nil {
		t.Fatal(err)
	}
	<-began
	second, err := e.Start(bg, launch)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Lose() {
		t.Fatal("no device to lose")
	}
	for _, run := range []*gpuexec.Run{first, second} {
		if err := run.Wait(bg); !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("%v, want ErrDeviceLost", err)
		}
	}
	close(gate)
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	last, err := e.Start(bg, launch)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(bg); err != nil {
		t.Fatal(err)
	}
	if err := last.Wait(bg); err != nil && !errors.Is(err, fault.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := e.Start(bg, launch); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("Start after Close: %v", err)
	}
}

// E1: runs overlap on several workers, and many goroutines may start, cancel and wait.
func TestRunsTogether(t *testing.T) {
	f, gate, began := gated()
	e := open(t, f, gpuexec.Config{Workers: 2})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	var both []*gpuexec.Run
	for range 2 {
		run, err := e.Start(bg, launch)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, run)
	}
	<-began
	<-began // at once
	close(gate)
	for _, run := range both {
		if err := run.Wait(bg); err != nil {
			t.Error(err)
		}
	}
	go func() {
		for range began { // until it is closed
		}
	}()
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for range 20 {
				run, err := e.Start(bg, launch)
				if err != nil {
					t.Error(err)
					return
				}
				if i%4 == 0 {
					go run.Cancel()
				}
				if err := run.Wait(bg); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := e.Close(bg); err != nil {
		t.Error(err)
	}
	close(began)
}

// F4: the driver's context ends when the caller of what it runs has left, and no further launch
// begins.
func TestLeavingARunningSubmit(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var launched atomic.Int32
		ended := make(chan struct{})
		f := &fakedevice.Backend{OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
			if launched.Add(1) == 1 {
				<-ctx.Done()
				close(ended)
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
		ctx, leave := context.WithTimeout(bg, time.Second)
		defer leave()
		if err := e.Submit(ctx, launch, launch); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who left: %v", err)
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the driver's context goes on")
		}
		synctest.Wait()
		if n := launched.Load(); n != 1 {
			t.Errorf("%d launches began", n)
		}
	})
}

// finishing is a backend that notes whether a queue is to finish within a context that has ended.
type finishing struct {
	*fakedevice.Backend
	within *atomic.Bool
}

func (f finishing) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := f.Backend.Open(ctx, index)
	return finishingDevice{d, f}, err
}

type finishingDevice struct {
	gpuexec.Device
	of finishing
}

func (d finishingDevice) OpenQueue() (gpuexec.Queue, error) {
	q, err := d.Device.OpenQueue()
	return finishingQueue{q, d.of}, err
}

type finishingQueue struct {
	gpuexec.Queue
	of finishing
}

func (q finishingQueue) Finish(ctx context.Context) error {
	q.of.within.Store(ctx.Err() != nil)
	return q.Queue.Finish(ctx)
}

// F4: what was launched runs to its end with its kernels and buffers, though its caller has left.
func TestLeftLaunchIsFinished(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var within atomic.Bool
		f := finishing{&fakedevice.Backend{OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
			<-ctx.Done()
			return nil
		}}, &within}
		e, err := gpuexec.Open(bg, gpuexec.Config{Backend: f, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(bg)
		ctx, leave := context.WithTimeout(bg, time.Second)
		defer leave()
		launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
		if err := e.Submit(ctx, launch); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who left: %v", err)
		}
		synctest.Wait()
		if within.Load() {
			t.Error("the queue is to finish within a context that has ended")
		}
	})
}
