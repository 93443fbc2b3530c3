package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
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

// E1, F4: a compile whose last caller left while it waited for a compiler never
// begins.
func TestLeftBeforeItsCompileBegan(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var compiled []string // one at a time
		f := &fakedevice.Backend{OnCompile: func(_ context.Context, src gpuexec.Source) error {
			compiled = append(compiled, src.Key)
			<-goOn
			return nil
		}}
		e := open(t, f, gpuexec.Config{Compiles: 1, Linger: -1})
		slow, left := make(chan error, 1), make(chan error, 1)
		go func() {
			k, err := e.Compile(bg, source("slow"))
			if err == nil {
				k.Release()
			}
			slow <- err
		}()
		synctest.Wait()
		ctx, leave := context.WithCancel(bg)
		go func() { _, err := e.Compile(ctx, source("left")); left <- err }()
		synctest.Wait()
		leave()
		synctest.Wait() // its context has ended
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		close(goOn)
		if err := <-slow; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !slices.Equal(compiled, []string{"slow"}) {
			t.Errorf("compiled %q, one of them for nobody", compiled)
		}
	})
}

// F4: callers whose contexts end at any moment of their call leave no seat behind
// that would keep a compile going.
func TestLeavingACompileAtAnyMoment(t *testing.T) {
	aborted, began := make(chan struct{}, 1), make(chan struct{}, 1)
	f := &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
		began <- struct{}{}
		<-ctx.Done()
		aborted <- struct{}{}
		return ctx.Err()
	}}
	e := open(t, f, gpuexec.Config{Compiles: 1, Linger: -1})
	for round := range 300 {
		ctx, leave := context.WithCancel(bg)
		var callers sync.WaitGroup
		callers.Go(func() { _, _ = e.Compile(ctx, source("k")) })
		<-began
		for w := range 4 {
			callers.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(round), uint64(w)))
				ctx, cancel := context.WithCancel(bg)
				left := make(chan struct{})
				go func() { defer close(left); _, _ = e.Compile(ctx, source("k")) }()
				for range rnd.IntN(8) {
					runtime.Gosched()
				}
				cancel()
				<-left
			})
		}
		leave()
		soon(t, "callers", callers.Wait)
		soon(t, "aborted", func() { <-aborted })
		for len(began) > 0 { // begun anew for one that came late and has left
			<-began
			soon(t, "aborted", func() { <-aborted })
		}
	}
}

// E1: a driver may say that its device is lost to a compile alone; the device is
// opened again.
func TestLostToACompile(t *testing.T) {
	var lost atomic.Bool
	e := open(t, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
		if lost.CompareAndSwap(false, true) {
			return fault.ErrDeviceLost
		}
		return nil
	}}, gpuexec.Config{})
	if _, err := e.Compile(bg, source("k")); !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("got %v, want ErrDeviceLost", err)
	}
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	compile(t, e, source("k"))
}

// B2: the blob that a kernel was loaded from is the caller's to change.
func TestLoadedBlobIsTheCallers(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	given := []byte("key")
	k, err := e.Load(bg, source("key"), given)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Release()
	clear(given)
	if blob, err := k.Blob(bg); string(blob) != "key" || err != nil {
		t.Errorf("its blob is %q, %v", blob, err)
	}
}

// E1: a restart waits for blobs only where the driver has not answered yet.
func TestRestartWaitsForNoBlobThatIsThere(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{}
		e := open(t, f, gpuexec.Config{Workers: 1})
		compile(t, e, source("k"))
		synctest.Wait() // its blob is kept
		began := time.Now()
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// F4, P11: a caller whose context ends while the driver loads its blob has that back: what the driver
// sees, and what the kernel is made from when the device comes back, is what was given.
func TestLeftWithItsBlob(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var loaded []string // one at a time
		f := &fakedevice.Backend{}
		e := open(t, f, gpuexec.Config{})
		k := compile(t, e, source("k"))
		blob, err := k.Blob(bg)
		if err != nil {
			t.Fatal(err)
		}
		given := string(blob)
		f.OnLoad = func(_ context.Context, _ gpuexec.Source, blob []byte) error {
			<-goOn
			loaded = append(loaded, string(blob))
			return nil
		}
		ctx, leave := context.WithCancel(bg)
		left := make(chan error, 1)
		synctest.Wait() // the flight of the compile is over, and no load joins it
		go func() { _, err := e.Load(ctx, source("k"), blob); left <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		clear(blob)
		close(goOn)
		again, err := e.Load(bg, source("k"), []byte(given)) // the kernel that waits
		if err != nil {
			t.Fatal(err)
		}
		if kept, err := again.Blob(bg); err != nil || string(kept) != given {
			t.Errorf("the kernel has the blob %q, %v: want what was given", kept, err)
		}
		again.Release()
		if !slices.Equal(loaded, []string{given}) {
			t.Errorf("the driver was given %q, want once %q", loaded, given)
		}
	})
}

// E1: a driver may say that its device is lost to a launch alone; the device is opened again, and
// the lost one is not asked to finish.
func TestLostToALaunch(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var lost, finished atomic.Bool
		f := &fakedevice.Backend{
			OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
				if lost.CompareAndSwap(false, true) {
					return fault.ErrDeviceLost
				}
				return nil
			},
			OnCall: func(call string) error {
				finished.Store(call == "finish")
				return nil
			}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
		if err := e.Submit(bg, launch); !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("got %v, want ErrDeviceLost", err)
		}
		synctest.Wait()
		if n := e.Stats().Restarts; n != 1 || finished.Load() {
			t.Errorf("%d restarts, want 1; asked to finish: %v", n, finished.Load())
		}
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(bg, launch); err != nil {
			t.Error(err)
		}
	})
}

// E1, F3: where the driver panics as it waits for what it launched, that may run still: the device is
// lost, and its buffers are given back after it.
func TestDriverPanicsAsItFinishes(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var panicked atomic.Bool
		f := &fakedevice.Backend{OnCall: func(call string) error {
			if call == "finish" && panicked.CompareAndSwap(false, true) {
				panic("finish")
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
		if _, ok := errors.AsType[*fault.PanicError](e.Submit(bg, launch)); !ok {
			t.Error("the caller is not told of the panic")
		}
		synctest.Wait()
		if n := e.Stats().Restarts; n != 1 {
			t.Errorf("%d restarts, want 1", n)
		}
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(bg, launch); err != nil {
			t.Error(err)
		}
	})
}

// E1, F3: where a driver panics as it waits for what a caller launched that has left, what that caller
// has given back is not released while it may be in use.
func TestDriverPanicsAsItFinishesForOneWhoLeft(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		entered, goOn := make(chan struct{}), make(chan struct{})
		var released atomic.Int32
		f := &fakedevice.Backend{OnRelease: func() { released.Add(1) }, OnCall: func(call string) error {
			if call == "finish" {
				close(entered)
				<-goOn
				panic("finish")
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 2, Slow: time.Hour})
		k := compile(t, e, source("k", gpuexec.Param{Kind: gpuexec.ParamBuffer}))
		buffers := make([]*gpuexec.Buffer, 500)
		launches := make([]gpuexec.Launch, len(buffers)) // so that the loss is told some time after the end of the first
		for i := range launches {
			buffers[i] = alloc(t, e, 8)
			launches[i] = gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(buffers[i])}, Grid: gpuexec.Size{1}}
		}
		ctx, cancel := context.WithCancel(bg)
		left := make(chan error, 1)
		go func() { left <- e.Submit(ctx, launches...) }()
		<-entered
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, b := range buffers {
			b.Release()
		}
		close(goOn)
		synctest.Wait()
		if n := released.Load(); n > 0 {
			t.Errorf("%d buffers are released that launches may be using", n)
		}
		if err := e.Ready(bg); err != nil {
			t.Error(err)
		}
		if n, m := e.Stats().Restarts, f.Memories(); n != 1 || m != 0 {
			t.Errorf("%d restarts, %d buffers", n, m)
		}
	})
}

// F4: the compile of a caller that left while its question was on the way goes on for nobody, and
// what it makes is kept by nobody.
func TestLeftBeforeItsQuestionWasAnswered(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var begun, ended atomic.Int32
		f := &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			begun.Add(1)
			<-ctx.Done()
			ended.Add(1)
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Compiles: 2000, Linger: -1, Slow: time.Hour})
		for i := range 1000 { // at once: one has the turn of another
			go func() {
				if _, err := e.Compile(passing{bg}, source(fmt.Sprint(i))); !errors.Is(err, context.Canceled) {
					t.Errorf("who left: %v", err)
				}
			}()
		}
		synctest.Wait()
		if b, n := begun.Load(), ended.Load(); b != n {
			t.Errorf("%d of %d compiles go on for nobody", b-n, b)
		}
		if n := f.Programs(); n != 0 {
			t.Errorf("%d programs are left", n)
		}
	})
}
