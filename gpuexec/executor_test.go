package gpuexec_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/actors/actorstest"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

func open(t *testing.T, f *devicetest.Fake, cfg gpuexec.Config) *gpuexec.Executor {
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

// E3: nothing wrong reaches the driver.
func TestLaunchIsChecked(t *testing.T) {
	var launched atomic.Int32
	f := &devicetest.Fake{Limits: gpuexec.Limits{MaxGrid: 65535, Alignment: 16},
		OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { launched.Add(1); return nil }}
	e, other := open(t, f, gpuexec.Config{}), open(t, &devicetest.Fake{}, gpuexec.Config{})
	src := source("add", gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 64}, number)
	k, foreign := compile(t, e, src), compile(t, other, src)
	b, theirs := alloc(t, e, 128), alloc(t, other, 128)
	released, err := e.Alloc(bg, 64)
	if err != nil {
		t.Fatal(err)
	}
	released.Release()
	one := gpuexec.U32Arg(1)
	bad := map[string]gpuexec.Launch{
		"no kernel":          {Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}, Grid: 1},
		"too few":            {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b)}, Grid: 1},
		"too many":           {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one, one}, Grid: 1},
		"wrong kinds":        {Kernel: k, Args: []gpuexec.Arg{one, gpuexec.BufferArg(b)}, Grid: 1},
		"too small":          {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 0, 63), one}, Grid: 1},
		"past the end":       {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 80, 64), one}, Grid: 1},
		"negative offset":    {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, -16, 64), one}, Grid: 1},
		"wrapping":           {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 1<<62, 1<<62), one}, Grid: 1},
		"unaligned":          {Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 8, 64), one}, Grid: 1},
		"nil buffer":         {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(nil), one}, Grid: 1},
		"no blocks":          {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}},
		"too many blocks":    {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}, Grid: 65536},
		"another's kernel":   {Kernel: foreign, Args: []gpuexec.Arg{gpuexec.BufferArg(b), one}, Grid: 1},
		"another's buffer":   {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(theirs), one}, Grid: 1},
		"a released buffer":  {Kernel: k, Args: []gpuexec.Arg{gpuexec.BufferArg(released), one}, Grid: 1},
		"behind a right one": {},
	}
	right := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.PartArg(b, 64, 64), one}, Grid: 65535}
	for name, l := range bad {
		if err := e.Submit(bg, right, l); !errors.Is(err, gpuexec.ErrInvalid) {
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
	f := &devicetest.Fake{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
		began <- struct{}{}
		<-gate
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1, Queue: 2})
	k := compile(t, e, source("k", number))
	launch := gpuexec.Launch{Kernel: k, Args: []gpuexec.Arg{gpuexec.U32Arg(0)}, Grid: 1}
	results := make(chan error, 3)
	go func() { results <- e.Submit(bg, launch) }()
	<-began
	for range 2 {
		go func() { results <- e.Submit(bg, launch) }()
	}
	eventually(t, func() bool { return e.Stats().Queued == 2 })
	if err := e.Submit(bg, launch); !errors.Is(err, gpuexec.ErrOverloaded) {
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
	f := &devicetest.Fake{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error {
		began <- struct{}{}
		<-gate
		return nil
	}}
	e := open(t, f, gpuexec.Config{Workers: 1, Queue: 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: 1}
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

// E1: the device goes and comes back, with its kernels rebuilt from blobs, or
// from source where there are none; buffers are lost.
func TestDeviceLost(t *testing.T) {
	for _, noBlobs := range []bool{false, true} {
		stuck := make(chan struct{}, 1)
		f := &devicetest.Fake{NoBlobs: noBlobs, OnLaunch: func(ctx context.Context, key string, _ []gpuexec.DeviceArg, grid int) error {
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
		go func() { running <- e.Submit(bg, gpuexec.Launch{Kernel: a, Grid: 2}) }()
		<-stuck
		f.Lose()
		if err := <-running; !errors.Is(err, gpuexec.ErrDeviceLost) {
			t.Fatalf("got %v, want ErrDeviceLost", err)
		}
		if err := e.Ready(bg); err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(bg, gpuexec.Launch{Kernel: a, Grid: 1}); err != nil {
			t.Error(err)
		}
		old := gpuexec.Launch{Kernel: b, Args: []gpuexec.Arg{gpuexec.BufferArg(buffer)}, Grid: 1}
		if err := e.Submit(bg, old); !errors.Is(err, gpuexec.ErrDeviceLost) {
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
		f := &devicetest.Fake{OnOpen: func() error {
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

// F1, F4: one compile for callers of one key at one time; it goes on when the
// first leaves, and is cancelled when all have.
func TestCompileFlight(t *testing.T) {
	gate, began := make(chan struct{}), make(chan struct{}, 1)
	aborted := make(chan struct{})
	f := &devicetest.Fake{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
		began <- struct{}{}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			close(aborted)
			return ctx.Err()
		}
	}}
	e := open(t, f, gpuexec.Config{})
	ctx, cancel := context.WithCancel(bg)
	first := make(chan error, 1)
	go func() { _, err := e.Compile(ctx, source("k")); first <- err }()
	<-began
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	<-aborted
	var wg sync.WaitGroup
	kernels := make([]*gpuexec.Kernel, 8)
	for i := range kernels {
		wg.Add(1)
		go func() {
			defer wg.Done()
			k, err := e.Compile(bg, source("k"))
			if err != nil {
				t.Error(err)
				return
			}
			kernels[i] = k
		}()
	}
	<-began
	close(gate)
	wg.Wait()
	if n := e.Stats().Compiles; n < 2 {
		t.Errorf("%d compiles, want the aborted one and another", n)
	}
	for _, k := range kernels {
		k.Release()
	}
}

// B2, B3: a blob makes the kernel without a compile; a foreign one is refused.
func TestBlob(t *testing.T) {
	e := open(t, &devicetest.Fake{}, gpuexec.Config{})
	blob, err := compile(t, e, source("k")).Blob(bg)
	if err != nil {
		t.Fatal(err)
	}
	k, err := e.Load(bg, source("k"), blob)
	if err != nil {
		t.Fatal(err)
	}
	k.Release()
	if _, err := e.Load(bg, source("other"), blob); !errors.Is(err, gpuexec.ErrRefused) {
		t.Errorf("a foreign blob: %v, want ErrRefused", err)
	}
	if _, err := e.Load(bg, source("k"), nil); !errors.Is(err, gpuexec.ErrInvalid) {
		t.Errorf("an empty blob: %v, want ErrInvalid", err)
	}
}

// E1: launch by name compiles once.
func TestNamed(t *testing.T) {
	e := open(t, &devicetest.Fake{}, gpuexec.Config{})
	if err := e.Define("add", source("k")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		k, err := e.Named(bg, "add")
		if err != nil {
			t.Fatal(err)
		}
		k.Release()
	}
	if n := e.Stats().Compiles; n != 1 {
		t.Errorf("%d compiles", n)
	}
	if _, err := e.Named(bg, "none"); !errors.Is(err, gpuexec.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestReadAndWrite(t *testing.T) {
	e := open(t, &devicetest.Fake{MostBytes: 100}, gpuexec.Config{})
	b := alloc(t, e, 8)
	if err := e.Write(bg, b, 2, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	if err := e.Read(bg, b, 0, got); err != nil || !bytes.Equal(got, []byte("\x00\x00abc\x00\x00\x00")) {
		t.Errorf("read %q, %v", got, err)
	}
	if err := e.Write(bg, b, 6, []byte("abc")); !errors.Is(err, gpuexec.ErrInvalid) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := e.Alloc(bg, 0); !errors.Is(err, gpuexec.ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
	if _, err := e.Alloc(bg, 101); err == nil {
		t.Error("more than the device has")
	}
}

// E6: a compile that lasts is announced, with its start, its going on, its end.
func TestSlowCompileIsAnnounced(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &devicetest.Fake{OnCompile: func(_ context.Context, src gpuexec.Source) error {
			if src.Key == "slow" {
				time.Sleep(2500 * time.Millisecond)
			}
			return nil
		}}
		var mu sync.Mutex
		var phases []gpuexec.CompilePhase
		e := open(t, f, gpuexec.Config{Listen: func(ev gpuexec.CompileEvent) {
			mu.Lock()
			phases = append(phases, ev.Phase)
			mu.Unlock()
		}})
		compile(t, e, source("fast"))
		compile(t, e, source("slow"))
		want := []gpuexec.CompilePhase{gpuexec.PhaseStart, gpuexec.PhaseRunning, gpuexec.PhaseEnd}
		if mu.Lock(); !slices.Equal(phases, want) {
			t.Errorf("phases %v, want %v", phases, want)
		}
		mu.Unlock()
	})
}

// F8: Close answers who runs and who waits, and frees everything.
func TestCloseDuringWork(t *testing.T) {
	f := &devicetest.Fake{
		OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
			<-ctx.Done()
			return ctx.Err()
		},
		OnCompile: func(ctx context.Context, src gpuexec.Source) error {
			if src.Key == "never" {
				<-ctx.Done()
			}
			return ctx.Err()
		},
	}
	e := open(t, f, gpuexec.Config{Workers: 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: 1}
	results := make(chan error, 3)
	for range 2 {
		go func() { results <- e.Submit(bg, launch) }()
	}
	go func() { _, err := e.Compile(bg, source("never")); results <- err }()
	eventually(t, func() bool { return e.Stats().Queued == 1 && e.Stats().Compiles == 2 })
	for range 2 {
		if err := e.Close(bg); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := <-results; !errors.Is(err, gpuexec.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
	if err := e.Submit(bg, launch); !errors.Is(err, gpuexec.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A failed Open leaves nothing behind.
func TestFailedOpen(t *testing.T) {
	f := &devicetest.Fake{OnOpen: func() error { return gpuexec.ErrUnavailable }}
	if _, err := gpuexec.Open(bg, gpuexec.Config{Backend: f}); !errors.Is(err, gpuexec.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := gpuexec.Open(bg, gpuexec.Config{Workers: -1}); !errors.Is(err, gpuexec.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// E5: a backend that panics fails the launch, not the process.
func TestBackendPanics(t *testing.T) {
	f := &devicetest.Fake{OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { panic("driver") }}
	e := open(t, f, gpuexec.Config{Workers: 1})
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: 1}
	for range 2 {
		if err := e.Submit(bg, launch); err == nil {
			t.Error("want the panic as an error")
		}
	}
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("did not happen within 10 s")
		}
	}
}
