package gpuexec_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// E1: a kernel that the driver does not make again after a loss is lost alone, until
// the next restart: the device and its other kernels run.
func TestOneKernelIsNotRebuilt(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var bad atomic.Bool
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(_ context.Context, src gpuexec.Source) error {
			if src.Key == "bad" && bad.Load() {
				panic("driver bug at this source")
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		kernels := map[string]*gpuexec.Kernel{}
		for _, key := range []string{"a", "bad", "b", "c"} {
			kernels[key] = compile(t, e, source(key))
		}
		bad.Store(true)
		f.Lose()
		synctest.Wait()
		launch := func(key string) error {
			return e.Submit(bg, gpuexec.Launch{Kernel: kernels[key], Grid: gpuexec.Size{1}})
		}
		for key := range kernels {
			if err := launch(key); key != "bad" && err != nil || key == "bad" && !errors.Is(err, fault.ErrDeviceLost) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if n := e.Stats().Restarts; n != 1 {
			t.Errorf("%d restarts, want 1", n)
		}
		bad.Store(false)
		f.Lose()
		synctest.Wait()
		time.Sleep(time.Second) // the pause between two losses
		synctest.Wait()
		if err := launch("bad"); err != nil {
			t.Errorf("after the next restart: %v", err)
		}
	})
}

// passing is a context that ends at once and does not say so beforehand: a caller
// that leaves while its question is on the way.
type passing struct{ context.Context }

func (passing) Done() <-chan struct{} { return ended }
func (passing) Err() error            { return nil }

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// A device that stays away keeps nothing of those who waited for it and left.
func TestReadyForgetsWhoLeft(t *testing.T) {
	goOn := make(chan struct{})
	opened := false
	f := &fakedevice.Backend{OnOpen: func() error {
		if opened {
			<-goOn
		}
		opened = true
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	defer close(goOn)
	objects := func() int64 {
		if _, err := e.Compile(bg, source("k")); !errors.Is(err, fault.ErrDeviceLost) { // every turn before was handled
			t.Errorf("the device is there: %v", err)
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapObjects)
	}
	f.Lose()
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	const n = 20_000
	var before int64
	for i := range 2 * n {
		if i == n {
			before = objects()
		}
		if err := e.Ready(passing{bg}); !errors.Is(err, context.Canceled) {
			t.Fatalf("Ready of a caller that left: %v", err)
		}
	}
	if grown := objects() - before; grown > n/2 {
		t.Errorf("%d objects are kept of %d callers that left", grown, n)
	}
}

// flapping is a backend whose device comes back lost, for as many times.
type flapping struct {
	*fakedevice.Backend
	times, opened atomic.Int32
}

func (f *flapping) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := f.Backend.Open(ctx, index)
	f.opened.Add(1)
	if f.times.Add(-1) >= 0 {
		f.Lose()
	}
	return d, err
}

// E1: a device that comes back lost is opened again after pauses that grow, as one
// that cannot be opened is; once it has worked the pauses begin anew.
func TestFlappingDevice(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &flapping{Backend: &fakedevice.Backend{}}
		e, err := gpuexec.Open(bg, gpuexec.Config{Backend: f, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(bg)
		for range 2 {
			k, err := e.Compile(bg, source("k"))
			if err != nil {
				t.Fatal(err)
			}
			k.Release()
			synctest.Wait()
			before, began := f.opened.Load(), time.Now()
			f.times.Store(10_000) // as good as always
			f.Lose()
			time.Sleep(time.Hour)
			if n := f.opened.Load() - before; n < 60 || n > 80 {
				t.Errorf("opened %d times within an hour, want one a minute and a few at first", n)
			}
			synctest.Wait()
			f.times.Store(0)
			if err := e.Ready(bg); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > time.Hour+time.Minute {
				t.Errorf("back after %v", took)
			}
		}
		began := time.Now() // it was up and did nothing: a pause
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil || time.Since(began) != time.Minute {
			t.Errorf("back after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		compile(t, e, source("other"))
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil || time.Since(began) != 0 {
			t.Errorf("back %v after it had worked: %v", time.Since(began), err)
		}
	})
}

// E1, F5: a kernel whose compile asks for another kernel of its device, which does not
// compile while it is being opened, is made again when the device is there: what the
// executor answers meanwhile is no loss of the device.
func TestNestedKernelIsRebuilt(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if src.Key != "whole" {
				return nil
			}
			k, err := e.Compile(ctx, source("part"))
			if err == nil {
				k.Release()
			}
			return err
		}}
		e = open(t, f, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
		whole, other := compile(t, e, source("whole")), compile(t, e, source("other"))
		for restarts := range int64(3) {
			if restarts > 0 {
				f.Lose()
				time.Sleep(time.Minute)
			}
			for _, k := range []*gpuexec.Kernel{whole, other} {
				if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
					t.Errorf("%s after restart %d: %v", k.Key(), restarts, err)
				}
			}
			if n := e.Stats().Restarts; n != restarts {
				t.Errorf("%d restarts, want %d", n, restarts)
			}
		}
	})
}

// E1, B2: a driver that writes into the blob which it loads spoils none that is loaded later, when
// the device comes back, and not the caller's.
func TestDriverSpoilsItsBlob(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{Spoils: true}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		given := []byte("k")
		k, err := e.Load(bg, source("k"), given)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Release()
		for range 2 {
			f.Lose()
			synctest.Wait()
			time.Sleep(time.Second) // the pause between two losses
			synctest.Wait()
		}
		if s := e.Stats(); s.BlobLoads != 3 || s.Compiles != 0 {
			t.Errorf("%d loads and %d compiles, want 3 and none", s.BlobLoads, s.Compiles)
		}
		kept, err := k.Blob(bg)
		if err != nil || string(kept) != "k" || string(given) != "k" {
			t.Errorf("%v; the kernel's blob is %q, the caller's %q", err, kept, given)
		}
	})
}

// F8: who waits for a device that does not come back is answered when the executor closes.
func TestCloseAnswersReady(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var gone atomic.Bool
		f := &fakedevice.Backend{OnOpen: func() error {
			if gone.Load() {
				return errors.New("gone")
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1})
		gone.Store(true)
		f.Lose()
		synctest.Wait()
		ctx, stop := context.WithTimeout(bg, time.Hour)
		defer stop()
		ready := make(chan error, 1)
		go func() { ready <- e.Ready(ctx) }()
		synctest.Wait()
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
		if err := <-ready; !errors.Is(err, fault.ErrClosed) {
			t.Errorf("ready: %v, want ErrClosed", err)
		}
	})
}

// F8: a close ends the restart of a device: no further kernel is made.
func TestCloseEndsARestart(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var lost atomic.Bool
		var again atomic.Int32
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(ctx context.Context, _ gpuexec.Source) error {
			if lost.Load() {
				again.Add(1)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		for _, key := range []string{"a", "b", "c", "d"} {
			compile(t, e, source(key))
		}
		lost.Store(true)
		f.Lose()
		synctest.Wait()
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
		if n := again.Load(); n != 1 {
			t.Errorf("%d kernels are made again, want 1, which the close ends", n)
		}
	})
}

// E1: a restart waits for the blob that a lost device's driver is still about to give.
func TestRestartWaitsForABlob(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{OnBlob: func(string) error {
			time.Sleep(500 * time.Millisecond)
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		for _, key := range []string{"a", "b", "c", "d"} {
			compile(t, e, source(key))
		}
		synctest.Wait() // its driver is asked for the blobs
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if s := e.Stats(); s.Compiles != 4 || s.BlobLoads != 4 {
			t.Errorf("%d compiles and %d loads, want 4 and 4", s.Compiles, s.BlobLoads)
		}
	})
}
