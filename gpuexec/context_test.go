package gpuexec_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

var harms = map[string]func(){"panic": func() { panic("context") }, "goexit": runtime.Goexit, "nil": func() {}}

// F3: a context that panics, ends its goroutine or has no error when it has ended
// does so on its caller's goroutine alone: the process lives, and what the caller had
// under way ends and is given back.
func TestForeignContext(t *testing.T) {
	for what, harm := range harms {
		entered, goOn := make(chan struct{}), make(chan struct{})
		var armed atomic.Bool
		var asked atomic.Int32 // for blobs
		wait := func() {
			if armed.Load() {
				entered <- struct{}{}
				<-goOn
			}
		}
		f := &fakedevice.Backend{
			OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
				entered <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			},
			OnCompile: func(ctx context.Context, src gpuexec.Source) error {
				if src.Key == "waits" {
					entered <- struct{}{}
					<-ctx.Done()
				}
				return ctx.Err()
			},
			OnBlob: func(string) error { asked.Add(1); wait(); return errors.New("none") },
			OnCall: func(string) error { wait(); return nil },
		}
		e := open(t, f, gpuexec.Config{Workers: 1, Linger: -1})
		k := compile(t, e, source("k"))
		eventually(t, func() bool { return asked.Load() == 1 }) // by the executor itself
		for call, fn := range map[string]func(ctx context.Context) error{
			"submit": func(ctx context.Context) error {
				return e.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}})
			},
			"compile": func(ctx context.Context) error {
				_, err := e.Compile(ctx, source("waits"))
				return err
			},
			"blob": func(ctx context.Context) error {
				_, err := k.Blob(ctx)
				return err
			},
			"alloc": func(ctx context.Context) error {
				_, err := e.Alloc(ctx, 8)
				return err
			},
		} {
			armed.Store(call == "blob" || call == "alloc")
			ctx := actorstest.NewForeign(harm)
			left := make(chan struct{})
			go func() {
				defer close(left)
				defer func() { _ = recover() }()
				if err := fn(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("%s, %s: %v, want Canceled", what, call, err)
				}
			}()
			soon(t, call, func() { <-entered })
			armed.Store(false)
			ctx.End()
			soon(t, call, func() { <-left })
			if call == "blob" || call == "alloc" {
				goOn <- struct{}{}
			}
		}
		eventually(t, func() bool { return f.Memories() == 0 })
		soon(t, "Close", func() { e.Close(bg) })
	}
}

// F6: a context that blocks keeps its own caller waiting and nobody else: no turn asks
// it.
func TestContextThatBlocks(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	f := &fakedevice.Backend{OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	e := open(t, f, gpuexec.Config{Workers: 1})
	k := compile(t, e, source("k"))
	ctx := actorstest.NewForeign(func() { <-goOn })
	left := make(chan struct{})
	for range 2 { // one runs, one waits
		go func() {
			_ = e.Submit(ctx, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}})
			left <- struct{}{}
		}()
	}
	<-entered
	eventually(t, func() bool { return e.Stats().Queued == 1 })
	ctx.Arm()
	f.Lose()
	eventually(t, func() bool { return e.Stats().Restarts == 1 })
	soon(t, "ready", func() {
		if err := e.Ready(bg); err != nil {
			t.Error(err)
		}
	})
	soon(t, "Close", func() { e.Close(bg) })
	close(goOn)
	<-left
	<-left
}
