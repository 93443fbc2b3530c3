package gpuexec_test

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

func open(t *testing.T, f *fakedevice.Backend, cfg gpuexec.Config) *gpuexec.Executor {
	t.Helper()
	cfg.Backend = f
	e, err := gpuexec.Open(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
		if n := f.Leaked(); n != 0 {
			t.Errorf("%d devices and queues left open", n)
		}
	})
	return e
}

func source(key string, params ...gpuexec.Param) gpuexec.Source {
	return gpuexec.Source{Key: key, Params: params}
}

var number = gpuexec.Param{Kind: gpuexec.ParamU32}

func compile(t *testing.T, e *gpuexec.Executor, src gpuexec.Source) *gpuexec.Kernel {
	t.Helper()
	k, err := e.Compile(bg, src)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Release)
	return k
}

func alloc(t *testing.T, e *gpuexec.Executor, n int64) *gpuexec.Buffer {
	t.Helper()
	b, err := e.Alloc(bg, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b
}

// P3, P8: an executor knows what stored code must fit on its device, the same as
// the backend's list of devices says.
func TestIdentity(t *testing.T) {
	f := &fakedevice.Backend{}
	e := open(t, f, gpuexec.Config{})
	got, want := e.Identity(), gpuexec.IdentityOf(bg, f)
	if !reflect.DeepEqual(got, want) || got.Build == "" {
		t.Errorf("the executor says %+v, its backend %+v", got, want)
	}
}

// E3: nothing wrong reaches the driver.
func TestLaunchIsChecked(t *testing.T) {
	var launched atomic.Int32
	f := &fakedevice.Backend{Limits: gpuexec.Limits{MaxGrid: gpuexec.Size{65535}, Alignment: 16},
		OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { launched.Add(1); return nil }}
	e, other := open(t, f, gpuexec.Config{}), open(t, &fakedevice.Backend{}, gpuexec.Config{})
	src := source("add", gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 64}, number)
	k, foreign := compile(t, e, src), compile(t, other, src)
	b, theirs := alloc(t, e, 128), alloc(t, other, 128)
	released, err := e.Alloc(bg, 64)
	if err != nil {
		t.Fatal(err)
	}
	released.Release()
	one := gpuexec.ValueArg(uint32(1))
	bad := map[string]gpuexec.Launch{
		"no kernel":          {Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}, Grid: gpuexec.Size{1}},
		"too few":            {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b)}, Grid: gpuexec.Size{1}},
		"too many":           {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one, one}, Grid: gpuexec.Size{1}},
		"wrong kinds":        {Kernel: k, Args: []gpuexec.Arg{one, gpuexec.BufferArg(b)}, Grid: gpuexec.Size{1}},
		"too small":          {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 0, 63), one}, Grid: gpuexec.Size{1}},
		"past the end":       {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 80, 64), one}, Grid: gpuexec.Size{1}},
		"negative offset":    {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, -16, 64), one}, Grid: gpuexec.Size{1}},
		"wrapping":           {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 1<<62, 1<<62), one}, Grid: gpuexec.Size{1}},
		"unaligned":          {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 8, 64), one}, Grid: gpuexec.Size{1}},
		"nil buffer":         {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(nil), one}, Grid: gpuexec.Size{1}},
		"no blocks":          {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}},
		"too many blocks":    {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}, Grid: gpuexec.Size{65536}},
		"another's kernel":   {Kernel: foreign, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}, Grid: gpuexec.Size{1}},
		"another's buffer":   {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(theirs), one}, Grid: gpuexec.Size{1}},
		"a released buffer":  {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(released), one}, Grid: gpuexec.Size{1}},
		"behind a right one": {},
	}
	right := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 64, 64), one}, Grid: gpuexec.Size{65535}}
	for name, l := range bad {
		if err := e.Submit(bg, right, l); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if n := launched.Load(); n != 0 {
		t.Errorf("%d launches reached the driver", n)
	}
	if err := e.Submit(bg, right, right); err != nil || launched.Load() != 2 {
		t.Errorf("right ones: %v, %d launches", err, launched.Load())
	}
}

// E1: a full queue answers at once; what waits is served when there is room.
func TestFullQueue(t *testing.T) {
	gate, began := make(chan struct{}), make(chan struct{}, 4)
	f := &fakedevice.Backend{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
		began <- struct{}{}
		<-gate
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1, Queue: 2})
	k := compile(t, e, source("k", number))
	launch := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.ValueArg(uint32(0))}, Grid: gpuexec.Size{1}}
	results := make(chan error, 3)
	go func() { results <- e.Submit(bg, launch) }()
	<-began
	for range 2 {
		go func() { results <- e.Submit(bg, launch) }()
	}
	eventually(t, func() bool { return e.Stats().Queued == 2 })
	if err := e.Submit(bg, launch); !errors.Is(err, fault.ErrOverloaded) {
		t.Errorf("got %v, want ErrOverloaded", err)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	if err := e.Submit(ctx, launch); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	close(gate)
	for range 3 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if err := e.Submit(bg, launch); err != nil {
		t.Error(err)
	}
}

// E1: a caller that leaves gives its place in the queue back.
func TestWithdraw(t *testing.T) {
	gate, began := make(chan struct{}), make(chan struct{}, 9)
	f := &fakedevice.Backend{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
		began <- struct{}{}
		<-gate
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1, Queue: 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
	results := make(chan error, 2)
	go func() { results <- e.Submit(bg, launch) }()
	<-began
	ctx, cancel := context.WithCancel(bg)
	go func() { results <- e.Submit(ctx, launch) }()
	eventually(t, func() bool { return e.Stats().Queued == 1 })
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	eventually(t, func() bool { return e.Stats().Queued == 0 })
	close(gate)
	if err := <-results; err != nil {
		t.Error(err)
	}
}

// E1: compiles that run when the device goes are told that it has.
func TestDeviceLostDuringCompiles(t *testing.T) {
	began := make(chan struct{}, 2)
	f := &fakedevice.Backend{OnCompile: func(ctx context.Context, _ gpuexec.Source) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	e := open(t, f, gpuexec.Config{Compiles: 2})
	ended := make(chan error, 2)
	for _, key := range []string{"a", "b"} {
		go func() {
			_, err := e.Compile(bg, source(key))
			ended <- err
		}()
	}
	<-began
	<-began
	f.Lose()
	for range 2 {
		if err := <-ended; !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("got %v, want ErrDeviceLost", err)
		}
	}
}

// E1: the device goes and comes back, with its kernels rebuilt from blobs, or
// from source where there are none; buffers are lost.
func TestDeviceLost(t *testing.T) {
	for _, noBlobs := range []bool{false, true} {
		stuck := make(chan struct{}, 1)
		f := &fakedevice.Backend{NoBlobs: noBlobs, OnLaunch: func(ctx context.Context, key string, _ []gpuexec.DeviceArg, grid int) error {
			if grid == 2 {
				stuck <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{Workers: 1})
		a, b := compile(t, e, source("a")), compile(t, e, source("b", gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}))
		buffer := alloc(t, e, 4)
		running := make(chan error, 1)
		go func() { running <- e.Submit(bg, gpuexec.Launch{Kernel: a, Grid: gpuexec.Size{2}}) }()
		<-stuck
		f.Lose()
		if err := <-running; !errors.Is(err, fault.ErrDeviceLost) {
			t.Fatalf("got %v, want ErrDeviceLost", err)
		}
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(bg, gpuexec.Launch{Kernel: a, Grid: gpuexec.Size{1}}); err != nil {
			t.Error(err)
		}
		old := gpuexec.Launch{Kernel: b, Args: []gpuexec.Arg{gpuexec.BufferArg(buffer)}, Grid: gpuexec.Size{1}}
		if err := e.Submit(bg, old); !errors.Is(err, fault.ErrDeviceLost) {
			t.Errorf("a buffer from before: %v, want ErrDeviceLost", err)
		}
		old.Args[0] = gpuexec.BufferArg(alloc(t, e, 4))
		if err := e.Submit(bg, old); err != nil {
			t.Error(err)
		}
		want := gpuexec.Stats{Compiles: 2, BlobLoads: 2, Restarts: 1}
		if noBlobs {
			want.Compiles, want.BlobLoads = 4, 0
		}
		if s := e.Stats(); s.Compiles != want.Compiles || s.BlobLoads != want.BlobLoads || s.Restarts != want.Restarts {
			t.Errorf("blobs off %v: %+v, want %+v", noBlobs, s, want)
		}
	}
}

// E1: a device that cannot be opened again is tried until it can.
func TestReopenIsRetried(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var opened atomic.Int32
		f := &fakedevice.Backend{OnOpen: func() error {
			if n := opened.Add(1); n > 1 && n < 9 {
				return errors.New("still gone")
			}
			return nil
		}}
		e := open(t, f, gpuexec.Config{})
		f.Lose()
		synctest.Wait() // the loss is noticed
		if err := e.Ready(bg); err != nil || opened.Load() != 9 {
			t.Errorf("ready: %v after %d openings", err, opened.Load())
		}
	})
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen within 10 s")
		}
	}
}
