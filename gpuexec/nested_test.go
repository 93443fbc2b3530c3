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

// F5: a compile that asks for another kernel of its device waits for no slot that it has
// itself, whether it begins that kernel's compile or finds it waiting for the slot.
func TestNestedCompile(t *testing.T) {
	for _, waits := range []bool{false, true} {
		actorstest.Bubble(t, func(t *testing.T) {
			var e *gpuexec.Executor
			part := make(chan error, 1)
			entered, goOn := make(chan struct{}), make(chan struct{})
			f := &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
				if src.Key != "whole" {
					return nil
				}
				close(entered)
				<-goOn
				k, err := e.Compile(ctx, source("part"))
				if err == nil {
					k.Release()
				}
				return err
			}}
			e = open(t, f, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
			whole, began := make(chan error, 1), time.Now()
			go func() {
				k, err := e.Compile(bg, source("whole"))
				if err == nil {
					k.Release()
				}
				whole <- err
			}()
			<-entered
			if waits {
				go func() {
					k, err := e.Compile(bg, source("part"))
					if err == nil {
						k.Release()
					}
					part <- err
				}()
				synctest.Wait()
			}
			close(goOn)
			if err := <-whole; err != nil {
				t.Errorf("it waits %v: %v", waits, err)
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("it waits %v: let through after %v, want at once", waits, took)
			}
			if waits {
				if err := <-part; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// F5, E1: a compile that asks for a kernel when its device was lost meanwhile, and another one is
// there, has no slot of that to pass on: no more compiles run on it than it has slots.
func TestNestedCompileOfALostDevice(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		running := make(chan string, 3)
		again, goOn := make(chan struct{}), make(chan struct{})
		f := &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			running <- src.Key
			switch src.Key {
			case "whole":
				<-again
				k, err := e.Compile(context.WithoutCancel(ctx), source("part")) // it heeds no end
				if err == nil {
					k.Release()
				}
				return err
			case "busy":
				<-goOn
			}
			return nil
		}}
		e = open(t, f, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
		ended := make(chan error, 2)
		begin := func(key string) {
			go func() {
				k, err := e.Compile(bg, source(key))
				if err == nil {
					k.Release()
				}
				ended <- err
			}()
			if got := <-running; got != key {
				t.Errorf("%s runs, want %s", got, key)
			}
		}
		begin("whole")
		f.Lose()
		if err := <-ended; !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("a compile on the device that is lost: %v", err)
		}
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		begin("busy")
		close(again)
		synctest.Wait()
		if len(running) > 0 {
			t.Errorf("%s runs beside the one that has the slot", <-running)
		}
		close(goOn)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := <-running; got != "part" {
			t.Errorf("%s runs, want part", got)
		}
	})
}

// F5: a compile that waits for a flight of another room, whose creator waits for a compile
// of this device, does not keep the slot that this needs for ever. The kernels of others
// wait on: no more compiles run at once than there are slots, but for those that wait.
func TestCompileWaitsThroughAnotherRoom(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var e *gpuexec.Executor
		var room struct {
			sync.Mutex
			flight.Locked[string, int]
		}
		room.Mu, room.Lend, room.Scope = &room.Mutex, func(fn func()) { go fn() }, &room
		entered, begun := make(chan struct{}), make(chan struct{})
		compiled := func(ctx context.Context, key string) error {
			k, err := e.Compile(ctx, source(key))
			if err == nil {
				k.Release()
			}
			return err
		}
		other := func(ctx context.Context) error {
			_, err := room.Ride(ctx, flight.Want[string, int]{Key: "k", Name: "k", Look: func() (bool, error) { return false, nil },
				Make: func(ctx context.Context) (int, error) {
					<-entered
					close(begun)
					return 0, compiled(ctx, "part")
				}, Keep: func(int) {}, Take: func(int) {}})
			return err
		}
		var now, most atomic.Int32
		e = open(t, &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if src.Key == "whole" {
				close(entered)
				<-begun
				return other(ctx)
			}
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			return nil
		}}, gpuexec.Config{Workers: 1, Compiles: 1, Slow: time.Hour})
		if err := compiled(bg, "before"); err != nil { // one that has ended keeps no slot
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- other(bg) }()
		synctest.Wait()
		go func() { ended <- compiled(bg, "whole") }()
		<-begun
		for i := range 5 {
			go func() { ended <- compiled(bg, fmt.Sprint(i)) }()
		}
		wait(t, ended, 7)
		if n := most.Load(); n != 1 {
			t.Errorf("%d compiles at work at once", n)
		}
	})
}
