package gpuexec_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// E1: a kernel that the driver does not make again after a loss is lost alone, and
// for as long only: the device and its other kernels run.
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
		launch := func(key string) error { return e.Submit(bg, gpuexec.Launch{Kernel: kernels[key], Grid: 1}) }
		for key := range kernels {
			if err := launch(key); key != "bad" && err != nil || key == "bad" && !errors.Is(err, fault.ErrDeviceLost) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if n := e.Stats().Restarts; n != 1 {
			t.Errorf("%d restarts, want 1", n)
		}
		bad.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if err := launch("bad"); err != nil {
			t.Errorf("a second later: %v", err)
		}
		bad.Store(true)
		f.Lose()
		synctest.Wait()
		time.Sleep(time.Hour) // it is tried in vain, and Close does not wait for it
	})
}
