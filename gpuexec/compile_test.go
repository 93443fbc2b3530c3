package gpuexec_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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

// F1, F4: one compile for callers of one key at one time; it goes on when the
// first leaves, and is cancelled when all have.
func TestCompileFlight(t *testing.T) {
	gate, began := make(chan struct{}), make(chan struct{}, 9) // one for each caller that may begin a compile
	aborted := make(chan struct{})
	f := &fakedevice.Backend{OnCompile: func(ctx context.Context, src gpuexec.Source) error {
		began <- struct{}{}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			close(aborted)
			return ctx.Err()
		}
	}}
	e := open(t, f, gpuexec.Config{Linger: -1})
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
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	blob, err := compile(t, e, source("k")).Blob(bg)
	if err != nil {
		t.Fatal(err)
	}
	k, err := e.Load(bg, source("k"), blob)
	if err != nil {
		t.Fatal(err)
	}
	k.Release()
	if _, err := e.Load(bg, source("other"), blob); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("a foreign blob: %v, want ErrRefused", err)
	}
	if _, err := e.Load(bg, source("k"), nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an empty blob: %v, want ErrInvalid", err)
	}
}

// B3: a caller that joined the load of another's blob does not suffer when that blob
// is refused, or blobs are unsupported: a compile compiles, a good blob is loaded.
func TestAnothersBadBlob(t *testing.T) {
	for _, bad := range []error{fault.ErrRefused, fault.ErrUnsupported} {
		actorstest.Bubble(t, func(t *testing.T) {
			gate := make(chan struct{})
			f := &fakedevice.Backend{OnLoad: func(_ context.Context, _ gpuexec.Source, blob []byte) error {
				if string(blob) == "bad" {
					<-gate
					return bad
				}
				return nil
			}}
			e := open(t, f, gpuexec.Config{})
			load := func(blob string) func() (*gpuexec.Kernel, error) {
				return func() (*gpuexec.Kernel, error) { return e.Load(bg, source("k"), []byte(blob)) }
			}
			ask := func(how func() (*gpuexec.Kernel, error)) <-chan error {
				done := make(chan error, 1)
				go func() {
					k, err := how()
					if err == nil {
						k.Release()
					}
					done <- err
				}()
				synctest.Wait() // it waits for the flight
				return done
			}
			first := ask(load("bad"))
			compiled := ask(func() (*gpuexec.Kernel, error) { return e.Compile(bg, source("k")) })
			loaded := ask(load("k"))
			alike := ask(load("bad"))
			close(gate)
			for what, err := range map[string]error{"compile": <-compiled, "load of a good blob": <-loaded} {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := <-first; !errors.Is(err, bad) {
				t.Errorf("load of a bad blob: %v, want %v", err, bad)
			}
			if err := <-alike; err != nil && !errors.Is(err, bad) { // nil if it joined a good one then
				t.Errorf("second load of a bad blob: %v, want %v", err, bad)
			}
		})
	}
}

func TestReadAndWrite(t *testing.T) {
	e := open(t, &fakedevice.Backend{MostBytes: 100}, gpuexec.Config{})
	b := alloc(t, e, 8)
	if err := e.Write(bg, b, 2, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	if err := e.Read(bg, b, 0, got); err != nil || !bytes.Equal(got, []byte("\x00\x00abc\x00\x00\x00")) {
		t.Errorf("read %q, %v", got, err)
	}
	if err := e.Write(bg, b, 6, []byte("abc")); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := e.Alloc(bg, 0); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
	if _, err := e.Alloc(bg, 101); err == nil {
		t.Error("more than the device has")
	}
}

// E6: a compile that lasts is announced, with its start, its going on, its end.
func TestSlowCompileIsAnnounced(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{OnCompile: func(_ context.Context, src gpuexec.Source) error {
			if src.Key == "slow" {
				time.Sleep(2500 * time.Millisecond)
			}
			return nil
		}}
		var mu sync.Mutex
		var phases []string
		e := open(t, f, gpuexec.Config{Listen: func(ev gpuexec.CompileEvent) {
			mu.Lock()
			phases = append(phases, ev.Phase)
			mu.Unlock()
		}})
		compile(t, e, source("fast"))
		compile(t, e, source("slow"))
		synctest.Wait()
		want := []string{gpuexec.PhaseStart, gpuexec.PhaseRunning, gpuexec.PhaseEnd}
		if mu.Lock(); !slices.Equal(phases, want) {
			t.Errorf("phases %v, want %v", phases, want)
		}
		mu.Unlock()
	})
}

// F8: Close answers callers whose work runs or waits, and frees everything.
func TestCloseDuringWork(t *testing.T) {
	f := &fakedevice.Backend{
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
	launch := gpuexec.Launch{Kernel: compile(t, e, source("k")), Grid: gpuexec.Size{1}}
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
		if err := <-results; !errors.Is(err, fault.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
	if err := e.Submit(bg, launch); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A failed Open leaves nothing behind.
func TestFailedOpen(t *testing.T) {
	f := &fakedevice.Backend{OnOpen: func() error { return fault.ErrUnavailable }}
	if _, err := gpuexec.Open(bg, gpuexec.Config{Backend: f}); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := gpuexec.Open(bg, gpuexec.Config{Backend: &fakedevice.Backend{}, Slow: -1}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("slow below 0: %v, want ErrInvalid", err)
	}
	if _, err := gpuexec.Open(bg, gpuexec.Config{Workers: -1}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// E1: a backend that panics fails what called it, not the process: nor where a
// blob is taken for a restart, or the device is opened again.
func TestBackendPanics(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		var opened atomic.Int32
		f := &fakedevice.Backend{
			OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { panic("driver") },
			OnBlob:   func(string) error { panic("driver") },
			OnOpen: func() error {
				if opened.Add(1) == 2 {
					panic("driver")
				}
				return nil
			},
		}
		e := open(t, f, gpuexec.Config{Workers: 1})
		k := compile(t, e, source("k"))
		panicked := func(what string, err error) {
			if _, ok := errors.AsType[*fault.PanicError](err); !ok {
				t.Errorf("%s: %v, want the panic as an error", what, err)
			}
		}
		for range 2 {
			panicked("launch", e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}}))
		}
		_, err := k.Blob(bg)
		panicked("blob", err)
		f.Lose()
		synctest.Wait() // the loss is noticed
		if err := e.Ready(bg); err != nil || opened.Load() != 3 {
			t.Errorf("ready: %v after %d openings", err, opened.Load())
		}
	})
}

// F6, F8: a listener that closes its own executor would wait for itself: it is told so,
// and the executor closes.
func TestClosedByItsListener(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		f := &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error {
			time.Sleep(time.Minute)
			return nil
		}}
		var e *gpuexec.Executor
		answers := make(chan error, 100)
		e = open(t, f, gpuexec.Config{Listen: func(gpuexec.CompileEvent) { answers <- e.Close(bg) }})
		_, err := e.Compile(bg, source("slow"))
		if !errors.Is(err, fault.ErrClosed) {
			t.Errorf("compile: %v", err)
		}
		if err := <-answers; !errors.Is(err, fault.ErrCycle) {
			t.Errorf("close: %v", err)
		}
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
	})
}

// F8: a compile that closes its own executor would wait for itself, on its goroutine with any
// context, on another one with its own.
func TestClosedByItsCompile(t *testing.T) {
	for _, own := range []bool{true, false} {
		var e *gpuexec.Executor
		var answer error
		f := &fakedevice.Backend{OnCompile: func(ctx context.Context, _ gpuexec.Source) error {
			waiting, stop := context.WithTimeout(bg, 10*time.Second)
			defer stop()
			if !own {
				answer = e.Close(waiting)
				return nil
			}
			answers := make(chan error, 1)
			go func() { answers <- e.Close(ctx) }()
			select {
			case answer = <-answers:
			case <-waiting.Done():
			}
			return nil
		}}
		e = open(t, f, gpuexec.Config{})
		_, _ = e.Compile(bg, source("k"))
		if err := e.Close(bg); err != nil || !errors.Is(answer, fault.ErrCycle) {
			t.Errorf("closed by the compile, own context %v: %v; and then: %v", own, answer, err)
		}
	}
}

// F6, F8: so would a driver that makes a kernel again, for a device that was lost.
func TestClosedByARestart(t *testing.T) {
	var e *gpuexec.Executor
	var lost atomic.Bool
	answer := make(chan error, 1)
	again := func() error {
		if lost.Load() {
			waiting, stop := context.WithTimeout(bg, 10*time.Second)
			defer stop()
			answer <- e.Close(waiting)
		}
		return nil
	}
	for what, f := range map[string]*fakedevice.Backend{
		"its blob":   {OnLoad: func(context.Context, gpuexec.Source, []byte) error { return again() }},
		"its source": {NoBlobs: true, OnCompile: func(context.Context, gpuexec.Source) error { return again() }},
	} {
		lost.Store(false)
		e = open(t, f, gpuexec.Config{})
		compile(t, e, source("k"))
		lost.Store(true)
		f.Lose()
		if err := <-answer; !errors.Is(err, fault.ErrCycle) {
			t.Errorf("closed by the driver that makes a kernel of %s: %v, want ErrCycle", what, err)
		}
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
	}
}

// warned is the handler of a log that calls a function for each warning and error.
type warned struct {
	slog.Handler
	do func()
}

func (h warned) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (h warned) Handle(context.Context, slog.Record) error    { h.do(); return nil }

// F6, F8: so would the handler of its log, be it told of a driver or of a restart.
func TestClosedByItsLog(t *testing.T) {
	for what, do := range map[string]func(*fakedevice.Backend, *gpuexec.Executor){
		"a driver that panics": func(f *fakedevice.Backend, e *gpuexec.Executor) {
			f.OnCompile = func(context.Context, gpuexec.Source) error { panic("which is logged") }
			_, _ = e.Compile(bg, source("k"))
		},
		"a device that is lost": func(f *fakedevice.Backend, _ *gpuexec.Executor) { f.Lose() },
	} {
		t.Run(what, func(t *testing.T) {
			actorstest.Bubble(t, func(t *testing.T) {
				f := &fakedevice.Backend{}
				var e *gpuexec.Executor
				answers := make(chan error, 100)
				e = open(t, f, gpuexec.Config{Logger: slog.New(warned{slog.DiscardHandler, func() { answers <- e.Close(bg) }})})
				do(f, e)
				if err := <-answers; !errors.Is(err, fault.ErrCycle) {
					t.Errorf("close: %v", err)
				}
				if err := e.Close(bg); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
