package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// restartBeside loses the device of e, which has a kernel, and has another one compile a key while
// the restart stands: both end well when it goes on, and the kernel runs.
func restartBeside(t *testing.T, e *gpuexec.Executor, f *fakedevice.Backend, other *gpuexec.Executor, key string, lost *atomic.Bool, goOn chan struct{}) {
	t.Helper()
	k := compile(t, e, source("whole"))
	synctest.Wait()
	lost.Store(true)
	f.Lose()
	synctest.Wait()
	ended := make(chan error, 1)
	go func() { ended <- compiled(bg, other, key) }()
	synctest.Wait()
	close(goOn)
	if err := e.Ready(bg); err != nil {
		t.Fatal(err)
	}
	wait(t, ended, 1)
	synctest.Wait()
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
		t.Error(err)
	}
}

// E1, F5: a kernel whose compile, as its device comes back, asks for what waits for that device is
// made when the device is there.
func TestRestartAsksForWhatWaitsForIt(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		var waits atomic.Bool
		other := open(t, &fakedevice.Backend{OnCompile: func(ctx context.Context, _ gpuexec.Source) error {
			if !waits.Load() {
				return nil
			}
			return e.Ready(ctx)
		}}, gpuexec.Config{Linger: -1, Slow: time.Hour})
		slow := make(chan struct{})
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if waits.Load() && src.Key == "whole" {
				<-slow
			}
			return compiled(ctx, other, "part")
		}}
		e = open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		restartBeside(t, e, f, other, "part", &waits, slow)
	})
}

// F5, E1: a compile of a restart that waits for a slot of another device, which a compile has that waits
// for the restart, goes on without one.
func TestRestartWaitsForASlotOfWhatWaitsForIt(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		var lost atomic.Bool
		other := open(t, &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if src.Key == "waits" {
				return e.Ready(ctx)
			}
			return nil
		}}, gpuexec.Config{Workers: 1, Compiles: 1, Linger: -1, Slow: time.Hour})
		goOn := make(chan struct{})
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if lost.Load() {
				<-goOn
			}
			return compiled(ctx, other, "part")
		}}
		e = open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		restartBeside(t, e, f, other, "waits", &lost, goOn)
	})
}

// F5: a launch on another device that waits for a restart is told so where the restart waits for it.
func TestReadyInALaunchForTheRestart(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		var lost atomic.Bool
		other := open(t, &fakedevice.Backend{OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
			return e.Ready(ctx)
		}}, gpuexec.Config{Workers: 1, Slow: time.Hour})
		l := gpuexec.Launch{Kernel: compile(t, other, source("launched")), Grid: gpuexec.Size{1}}
		told := make(chan error, 8)
		f := &fakedevice.Backend{NoBlobs: true, OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if lost.Load() {
				told <- other.Submit(ctx, l)
			}
			return nil
		}}
		e = open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		compile(t, e, source("whole"))
		synctest.Wait()
		lost.Store(true)
		f.Lose()
		synctest.Wait()
		if err := other.Submit(bg, l); err != nil {
			t.Error(err)
		}
		if err := e.Ready(bg); err != nil {
			t.Error(err)
		}
		if err := <-told; !errors.Is(err, fault.ErrCycle) {
			t.Error(err)
		}
	})
}

// F3, F5, F8: devices that are lost again and again, and closed at some moment, while callers, compiles
// of either, launches and contexts that panic wait for both: all are answered, and nothing is left.
func TestReadyInAStorm(t *testing.T) {
	for round := range 12 {
		var all [2]*gpuexec.Executor
		var fakes [2]*fakedevice.Backend
		for i := range all {
			harm := &harmful{random: rand.New(rand.NewPCG(uint64(round), uint64(i)))}
			var opened atomic.Bool
			f := &fakedevice.Backend{NoBlobs: i == 0}
			ready := func(ctx context.Context) error {
				switch harm.draw(6) {
				case 0:
					return all[harm.draw(2)].Ready(ctx)
				case 1:
					_ = compiled(ctx, all[1-i], fmt.Sprint("k", harm.draw(4)))
				case 2:
					_ = compiled(ctx, all[i], fmt.Sprint("k", harm.draw(4)))
				}
				return nil
			}
			f.OnCompile = func(ctx context.Context, src gpuexec.Source) error { return ready(ctx) }
			f.OnLoad = func(ctx context.Context, src gpuexec.Source, _ []byte) error { return ready(ctx) }
			f.OnLaunch = func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
				if harm.draw(10) == 0 {
					f.Lose()
				}
				return ready(ctx)
			}
			f.OnCall = func(call string) error {
				if call == "finish" && harm.draw(12) == 0 {
					panic("finish")
				}
				return nil
			}
			f.OnOpen = func() error {
				if opened.Swap(true) && harm.draw(4) == 0 {
					return errors.New("not yet")
				}
				return nil
			}
			e, err := gpuexec.Open(bg, gpuexec.Config{Backend: f, Workers: 2, Compiles: 1, Linger: time.Millisecond, Slow: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			all[i], fakes[i] = e, f
		}
		h := &harmful{random: rand.New(rand.NewPCG(uint64(round), 9))}
		var users sync.WaitGroup
		for u := range 8 {
			users.Go(func() {
				e := all[u%2]
				for n := range 40 {
					actorstest.Apart(func() {
						within, cancel := context.WithTimeout(bg, time.Minute) // then it hangs
						defer cancel()
						ctx := harmfulContext{within, h}
						if n%3 == 0 {
							err := e.Ready(ctx)
							if err != nil && !errors.Is(err, fault.ErrClosed) {
								t.Errorf("round %d: ready: %v", round, err)
							}
							return
						}
						k, err := e.Compile(ctx, source(fmt.Sprint("k", n%4)))
						if err != nil {
							if errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("round %d: compile: %v", round, err)
							}
							return
						}
						defer k.Release()
						if err := e.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("round %d: submit: %v", round, err)
						}
					})
				}
			})
		}
		users.Go(func() {
			for range 20 {
				fakes[h.draw(2)].Lose()
				time.Sleep(time.Duration(h.draw(2000)) * time.Microsecond)
			}
		})
		if round%2 == 1 {
			time.Sleep(time.Duration(h.draw(20000)) * time.Microsecond)
			_ = all[h.draw(2)].Close(bg)
		}
		users.Wait()
		for i, e := range all {
			if err := e.Close(bg); err != nil || fakes[i].Leaked() != 0 || fakes[i].Misuse() != 0 {
				t.Errorf("round %d: %v, %d left open, %d misuses", round, err, fakes[i].Leaked(), fakes[i].Misuse())
			}
		}
	}
}

// E1: a kernel whose blob could not be loaded before its device was there, and which cannot be compiled, is
// loaded when the device is there.
func TestRestartLoadsABlobThatAsksForWhatIsGone(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		var lost atomic.Bool
		f := &fakedevice.Backend{OnCompile: func(_ context.Context, src gpuexec.Source) error {
			if lost.Load() && src.Key == "whole" {
				return fault.ErrUnavailable
			}
			return nil
		}, OnLoad: func(ctx context.Context, src gpuexec.Source, _ []byte) error {
			if src.Key != "whole" {
				return nil
			}
			return compiled(ctx, e, "part")
		}}
		e = open(t, f, gpuexec.Config{Workers: 1, Slow: time.Hour})
		k := compile(t, e, source("whole"))
		synctest.Wait()
		lost.Store(true)
		f.Lose()
		synctest.Wait()
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}); err != nil {
			t.Error(err)
		}
	})
}
