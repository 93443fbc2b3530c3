package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/flight"
)

// compiled has an executor compile a key, for a compile on another one.
func compiled(ctx context.Context, e *gpuexec.Executor, key string) error {
	k, err := e.Compile(ctx, source(key))
	if err == nil {
		k.Release()
	}
	return err
}

// oneSlot is an executor of one slot, whose compile of "whole" asks for another one when all have
// entered theirs.
func oneSlot(t *testing.T, entered *sync.WaitGroup, ask func(context.Context) error) *gpuexec.Executor {
	return open(t, &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
		if src.Key != "whole" {
			return nil
		}
		entered.Done()
		entered.Wait()
		return ask(ctx)
	}}, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
}

// F5: compiles on executors of one slot each, of which each asks for a kernel of the next one, do
// not wait for each other's slots for ever.
func TestNestedCompilesAcrossExecutors(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			actorstest.Bubble(t, func(t *testing.T) {
				all := make([]*gpuexec.Executor, n)
				var entered sync.WaitGroup
				entered.Add(n)
				for i := range all {
					all[i] = oneSlot(t, &entered, func(ctx context.Context) error { return compiled(ctx, all[(i+1)%n], "part") })
				}
				ended := make(chan error, n)
				for _, e := range all {
					go func() { ended <- compiled(bg, e, "whole") }()
				}
				wait(t, ended, n)
			})
		})
	}
}

// wait wants n compiles to end well.
func wait(t *testing.T, ended chan error, n int) {
	t.Helper()
	for range n {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("they wait for each other")
		}
	}
}

// F5: the same where they ask for flights of another room, which others have begun, whose creators
// ask for those kernels.
func TestCompilesAcrossExecutorsWaitThroughAnotherRoom(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var all [2]*gpuexec.Executor
		var room struct {
			sync.Mutex
			flight.Locked[int, int]
		}
		room.Mu, room.Lend, room.Scope = &room.Mutex, func(fn func()) { go fn() }, &room
		var entered sync.WaitGroup
		entered.Add(len(all))
		part := func(ctx context.Context, i int) error { // of that executor
			_, err := room.Ride(ctx, flight.Want[int, int]{Key: i, Name: fmt.Sprint(i), Look: func() (bool, error) { return false, nil },
				Make: func(ctx context.Context) (int, error) {
					entered.Wait()
					return 0, compiled(ctx, all[i], "part")
				}, Keep: func(int) {}, Take: func(int) {}})
			return err
		}
		for i := range all {
			all[i] = oneSlot(t, &entered, func(ctx context.Context) error { return part(ctx, 1-i) })
		}
		ended := make(chan error, 4)
		for i := range all {
			go func() { ended <- part(bg, i) }()
		}
		synctest.Wait()
		for _, e := range all {
			go func() { ended <- compiled(bg, e, "whole") }()
		}
		wait(t, ended, 4)
	})
}

// E1: a compile that another executor's asks for waits for a slot where one will be free: no more
// compiles run at once than there are slots.
func TestNestedCompileAwaitsASlotOfAnotherExecutor(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var now, most atomic.Int32
		other := open(t, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			return nil
		}}, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
		e := open(t, &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			return compiled(ctx, other, "of "+src.Key)
		}}, gpuexec.Config{Workers: 4, Compiles: 4, Slow: time.Hour})
		ended := make(chan error, 9)
		go func() { ended <- compiled(bg, other, "before") }()
		synctest.Wait()
		for i := range 8 {
			go func() { ended <- compiled(bg, e, fmt.Sprint(i)) }()
		}
		wait(t, ended, 9)
		if n := most.Load(); n != 1 {
			t.Errorf("%d compiles at work at once", n)
		}
	})
}

// E1: a device that says that it is lost when it is asked for a blob is opened again, and another one
// that asked for it is not.
func TestLostToABlobOfAnotherDevice(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var said atomic.Value
		said.Store(fault.ErrUnsupported)
		other := open(t, &fakedevice.Backend{OnBlob: func(string) error { return said.Load().(error) }}, gpuexec.Config{Slow: time.Hour})
		k := compile(t, other, source("part"))
		synctest.Wait() // it has been asked for the first time
		said.Store(fault.ErrDeviceLost)
		e := open(t, &fakedevice.Backend{OnCompile: func(ctx context.Context, _ gpuexec.Source) error {
			_, err := k.Blob(ctx)
			return err
		}}, gpuexec.Config{Slow: time.Hour})
		if err := compiled(bg, e, "whole"); !errors.Is(err, fault.ErrDeviceLost) {
			t.Error(err)
		}
		synctest.Wait()
		if n, m := e.Stats().Restarts, other.Stats().Restarts; n != 0 || m != 1 {
			t.Errorf("%d restarts of the one that asked, %d of the one that is lost; want 0 and 1", n, m)
		}
	})
}

// F5: a compile of a restart that waits for the restart, itself or through a compile on another
// executor, is told so, and the device runs again.
func TestReadyInACompileOfTheRestart(t *testing.T) {
	for _, apart := range []bool{false, true} {
		actorstest.Bubble(t, func(t *testing.T) {
			var again atomic.Bool
			var e *gpuexec.Executor
			told := make(chan error, 1)
			ready := func(ctx context.Context, src gpuexec.Source) error {
				if again.Load() {
					told <- e.Ready(ctx)
				}
				return nil
			}
			f := &fakedevice.Backend{NoBlobs: true}
			if apart {
				other := open(t, &fakedevice.Backend{OnCompile: ready}, gpuexec.Config{Slow: time.Hour})
				f.OnCompile = func(ctx context.Context, _ gpuexec.Source) error { return compiled(ctx, other, "part") }
			} else {
				f.OnCompile = ready
			}
			e = open(t, f, gpuexec.Config{Slow: time.Hour})
			compile(t, e, source("k"))
			synctest.Wait() // the part is given up
			time.Sleep(time.Hour)
			again.Store(true)
			f.Lose()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(bg, time.Hour)
			defer cancel()
			if err := e.Ready(ctx); err != nil {
				t.Fatalf("through another executor: %v: the device does not come back: %v", apart, err)
			}
			if err := <-told; !errors.Is(err, fault.ErrCycle) {
				t.Errorf("through another executor: %v: it was told %v", apart, err)
			}
		})
	}
}
