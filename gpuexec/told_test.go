package gpuexec_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
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

// hostile is a log handler that ends its goroutine, or panics.
type hostile struct {
	slog.Handler
	harm func()
}

func (h hostile) Handle(context.Context, slog.Record) error { h.harm(); return nil }

// The debug log says that a device was opened, and which kernels were compiled or loaded.
func TestDebugLog(t *testing.T) {
	var log bytes.Buffer // written before the answers
	e := open(t, new(fakedevice.Backend), gpuexec.Config{Workers: 1, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	compile(t, e, source("k"))
	if _, err := e.Load(bg, source("l"), []byte("l")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"executor: opened" device="fake device"`, `"executor: compiled" kernel=k took=`, `"executor: loaded" kernel=l took=`} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
}

// F3, E1: a logger that ends its goroutine, or panics, keeps no lost device from
// being opened again, as often as it takes, and no caller from its answer.
func TestHostileLogger(t *testing.T) {
	for _, harm := range []func(){runtime.Goexit, func() { panic("handler") }} {
		var opened atomic.Int32
		f := &fakedevice.Backend{
			OnOpen: func() error {
				if n := opened.Add(1); n > 1 && n < 4 {
					return errors.New("not yet")
				}
				return nil
			},
			OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { panic("driver") },
		}
		e := open(t, f, gpuexec.Config{Workers: 1, Logger: slog.New(hostile{slog.NewTextHandler(io.Discard, nil), harm})})
		k := compile(t, e, source("k"))
		f.Lose()
		eventually(t, func() bool { return e.Stats().Restarts == 1 })
		soon(t, "ready", func() {
			if err := e.Ready(bg); err != nil {
				t.Error(err)
			}
		})
		soon(t, "a launch", func() {
			err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}})
			if _, ok := errors.AsType[*fault.PanicError](err); !ok {
				t.Errorf("got %v, want the panic", err)
			}
		})
		soon(t, "Close", func() { e.Close(bg) })
	}
}

// R3, E6: what a driver does wrong names the kernel that it was at, as people read
// it: in the error, in the log, and in the event of a long compile.
func TestDriversFaultNamesItsKernel(t *testing.T) {
	for _, name := range []string{"", "matmul 3x4"} {
		want := cmp.Or(name, `"\x00\x01"`)
		for what, harm := range map[string]func() error{
			"panic": func() error { panic("driver") }, "goexit": func() error { runtime.Goexit(); return nil }, "error": func() error { return errors.New("driver") },
		} {
			var out bytes.Buffer // of one goroutine at a time: each log line is written before its caller goes on
			var armed atomic.Bool
			at := func() error {
				if armed.Load() {
					return harm()
				}
				return nil
			}
			events := make(chan gpuexec.CompileEvent, 1000)
			told := make(chan struct{})
			tellOnce := sync.OnceFunc(func() { close(told) })
			f := &fakedevice.Backend{
				OnCompile: func(context.Context, gpuexec.Source) error {
					if armed.Load() {
						<-told
					}
					return at()
				},
				OnLoad:   func(context.Context, gpuexec.Source, []byte) error { return at() },
				OnLaunch: func(context.Context, string, []gpuexec.DeviceArg, int) error { return at() },
				OnBlob:   func(string) error { return errors.New("none") },
			}
			e := open(t, f, gpuexec.Config{Workers: 1, Slow: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&out, nil)),
				Listen: func(ev gpuexec.CompileEvent) {
					if ev.Key != "\x00\x01\x00" { // the first compile may be slow, too
						return
					}
					if ev.Phase == gpuexec.PhaseStart {
						tellOnce()
					}
					if ev.Phase == gpuexec.PhaseEnd {
						events <- ev
					}
				}})
			src := source("\x00\x01")
			src.Name = name
			k := compile(t, e, src)
			armed.Store(true)
			other := src
			other.Key += "\x00"
			other.Name = cmp.Or(name, want)
			_, compiled := e.Compile(bg, other)
			_, loaded := e.Load(bg, other, []byte(other.Key))
			for call, err := range map[string]error{"compile": compiled, "load": loaded, "launch": e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}})} {
				if err == nil || !strings.Contains(err.Error(), strings.Trim(want, `"`)) || !strings.Contains(err.Error(), call) {
					t.Errorf("%s in %s: %v, want it to name %s", what, call, err, want)
				}
			}
			armed.Store(false)
			if ev := <-events; ev.Name != want || ev.Key != other.Key || ev.Err == nil {
				t.Errorf("%s: event %+v, want the name %s and the error", what, ev, want)
			}
			if err := e.Close(bg); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(out.String(), "executor: driver"); what != "error" && n != 3 || what == "error" && n != 0 {
				t.Errorf("%s: %d log lines in %q", what, n, out.String())
			}
		}
	}
}

// F6, E6: a listener that does not return keeps no compile waiting, and has no more than a
// bounded number of goroutines wait for it. Close waits for it.
func TestStuckListenerHoldsNobodyUp(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		const most, all = 256, 600
		goOn := make(chan struct{})
		var told, ended atomic.Int64
		e := open(t, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error { time.Sleep(1500 * time.Millisecond); return nil }},
			gpuexec.Config{Compiles: 1, Listen: func(ev gpuexec.CompileEvent) {
				told.Add(1)
				<-goOn
				if ev.Phase == gpuexec.PhaseEnd {
					ended.Add(1)
				}
			}})
		began := time.Now()
		for i := range all {
			k, err := e.Compile(bg, source(strconv.Itoa(i)))
			if err != nil {
				t.Fatal(err)
			}
			k.Release()
		}
		if d := time.Since(began); d != all*1500*time.Millisecond {
			t.Errorf("%d compiles of 1.5 s took %v", all, d)
		}
		if n := told.Load(); n != most {
			t.Errorf("%d calls of the listener are under way, want %d", n, most)
		}
		closed := make(chan error, 1)
		go func() { closed <- e.Close(bg) }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("Close has not waited for the listener")
		}
		close(goOn)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if n := ended.Load(); n != most {
			t.Errorf("told of the end of %d compiles, want %d", n, most)
		}
	})
}
