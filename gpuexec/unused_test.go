package gpuexec_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// T4: an allocation is tried again when a worker has released what went for it, not
// before, and not where nothing went. The end of its context, or of the executor, ends that.
func TestAllocWaitsForWhatWentForIt(t *testing.T) {
	for what, ends := range map[string]func(leave func(), e *gpuexec.Executor, goOn chan struct{}){
		"released": func(_ func(), _ *gpuexec.Executor, goOn chan struct{}) { close(goOn) },
		"left":     func(leave func(), _ *gpuexec.Executor, _ chan struct{}) { leave() },
		"closed": func(_ func(), e *gpuexec.Executor, _ chan struct{}) {
			gone, leave := context.WithCancel(bg)
			leave()
			_ = e.Close(gone)
		},
	} {
		actorstest.Bubble(t, func(t *testing.T) {
			goOn := make(chan struct{})
			var tried atomic.Int32
			f := &fakedevice.Backend{MostBytes: 10, OnRelease: func() { <-goOn }, OnCall: func(call string) error {
				if call == "alloc" {
					tried.Add(1)
				}
				return nil
			}}
			var idle atomic.Pointer[gpuexec.Buffer]
			e := open(t, f, hidden.With(gpuexec.Config{Workers: 2}, pressure.Unused(func(_ context.Context, of func(any) bool, n int64) (freed int64) {
				if b := idle.Load(); b != nil && of(b) && !of("another") && n == 10 {
					idle.Store(nil)
					b.Release()
					freed = b.Bytes()
				}
				return freed
			})))
			b, err := e.Alloc(bg, 10)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Alloc(bg, 10); !errors.Is(err, fault.ErrTooLarge) || tried.Load() != 2 {
				t.Errorf("%s: %v after %d tries, of a device with nothing idle", what, err, tried.Load())
			}
			idle.Store(b)
			ctx, leave := context.WithCancel(bg)
			defer leave()
			done := make(chan error, 1)
			go func() {
				again, err := e.Alloc(ctx, 10)
				if err == nil {
					again.Release()
				}
				done <- err
			}()
			synctest.Wait()
			if n := tried.Load(); n != 3 {
				t.Errorf("%s: %d tries while what went is being released, want 3 with the two before", what, n)
			}
			ends(leave, e, goOn)
			err = <-done
			if got := tried.Load(); (what == "released") != (err == nil && got == 4) || err != nil && (got != 3 || !errors.Is(err, fault.ErrTooLarge)) {
				t.Errorf("%s: %v after %d tries", what, err, got)
			}
			if what != "released" {
				close(goOn)
			}
			if err := e.Close(bg); err != nil || f.Memories() != 0 {
				t.Errorf("%s: %v, %d buffers are left", what, err, f.Memories())
			}
		})
	}
}
