package gpuexec_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/touched"
)

// leaving is the context of a caller that leaves once it waits for its compile.
type leaving struct {
	context.Context
	asked int
}

var left = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (c *leaving) Done() <-chan struct{} {
	if c.asked++; c.asked > 1 { // the first is for the actor's answer
		return left
	}
	return nil
}

func (c *leaving) Err() error {
	if c.asked > 1 {
		return context.Canceled
	}
	return nil
}

// F6, E1: however many runs wait when a device is lost, or an executor closes, a turn answers
// a bounded number of them. In the end all have an error, nothing was launched after the
// loss but on the next device, and nothing is kept.
func TestStrandsInShortTurns(t *testing.T) {
	const runs = 2*touched.Most + 500
	for what, want := range map[string]error{"loss": fault.ErrDeviceLost, "Close": fault.ErrClosed} {
		goOn, began := make(chan struct{}), make(chan struct{}, 2*runs)
		f := &fakedevice.Backend{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
			began <- struct{}{}
			<-goOn
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Queue: runs})
		k, err := e.Compile(bg, source("k"))
		if err != nil {
			t.Fatal(err)
		}
		launch := gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1, 1, 1}}
		start := func(after ...*gpuexec.Run) *gpuexec.Run {
			r, err := e.StartAfter(bg, after, launch)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		all := []*gpuexec.Run{start()}
		<-began
		for i := range runs {
			if r := all[i]; i%3 == 0 {
				all = append(all, start(r, all[0]))
			} else {
				all = append(all, start())
			}
		}
		if want == fault.ErrClosed {
			gone, leave := context.WithCancel(bg)
			leave()
			_ = e.Close(gone)
		} else {
			f.Lose()
		}
		all[runs/2].Cancel()
		for i, r := range all {
			if err := r.Wait(bg); !errors.Is(err, want) && (i != runs/2 || !errors.Is(err, context.Canceled)) {
				t.Fatalf("%s: run %d: %v", what, i, err)
			}
		}
		if n := len(began); n > 0 {
			t.Errorf("%s: %d were launched on a device that is gone", what, n)
		}
		close(goOn)
		if want == fault.ErrDeviceLost {
			if err := e.Ready(bg); err != nil {
				t.Fatal(err)
			}
			if err := start().Wait(bg); err != nil || len(began) != 1 {
				t.Errorf("on the next device: %v, %d launched", err, len(began))
			}
		}
		k.Release()
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
		if n := e.Stats().Touched; n == 0 || n > touched.Most {
			t.Errorf("%s: a turn answered %d runs, want 1 to %d", what, n, touched.Most)
		}
		if f.Leaked() != 0 || f.Programs() != 0 {
			t.Errorf("%s: %d things of the driver are left, %d programs", what, f.Leaked(), f.Programs())
		}
	}
}

// F6, E1: nor does the end of a run touch more, however many wait for it alone.
func TestRunsGoOnInShortTurns(t *testing.T) {
	const runs = touched.Most + 500
	goOn, launched := make(chan struct{}), make(chan struct{}, runs+1)
	f := &fakedevice.Backend{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
		<-goOn
		launched <- struct{}{}
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 2, Queue: runs})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	first, err := e.Start(bg, launch)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*gpuexec.Run, runs)
	for i := range all {
		if all[i], err = e.StartAfter(bg, []*gpuexec.Run{first}, launch); err != nil {
			t.Fatal(err)
		}
	}
	all[runs/2].Cancel()
	close(goOn)
	for i, r := range all {
		if err := r.Wait(bg); (i == runs/2) != errors.Is(err, context.Canceled) || i != runs/2 && err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
	if len(launched) != runs || e.Stats().Queued != 0 {
		t.Errorf("%d launched, want %d; %d wait", len(launched), runs, e.Stats().Queued)
	}
	if n := e.Stats().Touched; n == 0 || n > touched.Most {
		t.Errorf("a turn touched %d runs, want 1 to %d", n, touched.Most)
	}
}

// F6, E1: nor does a run that waits for very many, which some have ended of, is cancelled or
// refused; and it begins when the last of them has ended.
func TestWaitsForManyInShortTurns(t *testing.T) {
	const runs = touched.Most + 500
	goOn := make(chan struct{})
	var launched atomic.Int64
	f := &fakedevice.Backend{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
		<-goOn
		launched.Add(1)
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 2, Queue: runs + 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	start := func(after []*gpuexec.Run) *gpuexec.Run {
		r, err := e.StartAfter(bg, after, launch)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all := make([]*gpuexec.Run, runs)
	for i := range all {
		all[i] = start(nil)
	}
	for i := 0; i < runs; i += 3 {
		all[i].Cancel()
	}
	rest := slices.DeleteFunc(slices.Clone(all), func(r *gpuexec.Run) bool { return slices.Index(all, r)%3 == 0 })
	last, left := start(rest), start(all)
	left.Cancel()
	if err := left.Wait(bg); !errors.Is(err, context.Canceled) {
		t.Errorf("the one that was cancelled: %v", err)
	}
	another := start(append(slices.Clone(rest), last))
	close(goOn)
	for what, r := range map[string]*gpuexec.Run{"after all": last, "after that": another} {
		if err := r.Wait(bg); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := int(launched.Load()); got < len(rest)+2 {
		t.Errorf("%d were launched before the end of what comes after %d and one more", got, len(rest))
	}
	if err := start(rest).Wait(bg); err != nil {
		t.Errorf("after what has ended: %v", err)
	}
	if n := e.Stats().Touched; n == 0 || n > touched.Most {
		t.Errorf("a turn touched %d runs, want 1 to %d", n, touched.Most)
	}
}

// F6: however many compiles are under way when a device is lost, or an executor closes, a
// turn gives up a bounded number of them, and in the end all are.
func TestGivesUpInShortTurns(t *testing.T) {
	const compiles = touched.Most + 500
	for what, ends := range map[string]func(*fakedevice.Backend, *gpuexec.Executor) error{
		"loss": func(f *fakedevice.Backend, e *gpuexec.Executor) error {
			f.Lose()
			err := fault.ErrDeviceLost
			for errors.Is(err, fault.ErrDeviceLost) { // it needs a slot
				var k *gpuexec.Kernel
				if err = e.Ready(bg); err != nil {
					break
				}
				if k, err = e.Compile(bg, source("new")); err == nil {
					k.Release()
				}
			}
			return errors.Join(err, e.Close(bg))
		},
		"Close": func(_ *fakedevice.Backend, e *gpuexec.Executor) error { return e.Close(bg) },
	} {
		f := &fakedevice.Backend{OnCompile: func(ctx context.Context, s gpuexec.Source) error {
			if s.Key == "new" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		e := open(t, f, gpuexec.Config{Workers: 1})
		for i := range compiles {
			if _, err := e.Compile(&leaving{Context: bg}, source(fmt.Sprint(i))); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: compile %d: %v", what, i, err)
			}
		}
		if err := ends(f, e); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := e.Stats().Touched; n == 0 || n > touched.Most {
			t.Errorf("%s: a turn gave up %d compiles, want 1 to %d", what, n, touched.Most)
		}
	}
}

// F8, E1: a compile that ends while its device's are given up is answered for, too, however many
// there are.
func TestCompilesThatEndWhileTheyAreGivenUp(t *testing.T) {
	const compiles = touched.Most + 2000
	actorstest.Bubble(t, func(t *testing.T) {
		goOn := make(chan struct{})
		f := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			<-goOn
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1, Compiles: compiles, Slow: time.Hour})
		answers := make(chan error, compiles)
		for i := range compiles {
			go func() {
				_, err := e.Compile(bg, source(fmt.Sprint(i)))
				answers <- err
			}()
		}
		synctest.Wait()
		go f.Lose()
		close(goOn)
		for i := range compiles {
			select {
			case err := <-answers:
				if err != nil && !errors.Is(err, fault.ErrDeviceLost) {
					t.Fatal(err)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%d of %d are answered", i, compiles)
			}
		}
	})
}
