//go:build linux && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// listening is a handler of a log that calls told with each record.
type listening struct {
	slog.Handler
	told func(message string)
}

func (h listening) Handle(_ context.Context, r slog.Record) error {
	h.told(r.Message)
	return nil
}

func listen(told func(message string)) *slog.Logger {
	return slog.New(listening{slog.NewTextHandler(io.Discard, nil), told})
}

// F8: the handler of the backend's log may close the executor whose device tells it that its
// file was not saved, or is damaged, while that closes: ErrCycle, and the closing goes on.
func TestClosedByTheHandlerOfTheLog(t *testing.T) {
	for what, spoil := range map[string]func(file string) error{
		"vulkan: the file of pipelines was not saved": func(file string) error { return os.RemoveAll(filepath.Dir(file)) },
		"pipelinefile:": func(file string) error { return os.WriteFile(file, []byte("damaged"), 0o600) },
	} {
		dir := filepath.Join(t.TempDir(), "d")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var e atomic.Pointer[gpuexec.Executor]
		answers := make(chan error, 16)
		b := driven(t, Config{PipelineFile: filepath.Join(dir, "pipelines.bin"), Logger: listen(func(message string) {
			if e := e.Load(); e != nil && strings.HasPrefix(message, what) {
				ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
				defer stop()
				answers <- e.Close(ctx)
			}
		})})
		e.Store(open(t, b, 1))
		k, err := e.Load().Compile(t.Context(), axpy(t, 64))
		if err != nil {
			t.Fatal(err)
		}
		k.Release()
		if err := spoil(filepath.Join(dir, "pipelines-0.bin")); err != nil {
			t.Fatal(err)
		}
		if err := e.Load().Close(t.Context()); err != nil {
			t.Error(err)
		}
		select {
		case err := <-answers:
			if !errors.Is(err, fault.ErrCycle) {
				t.Errorf("%s: %v", what, err)
			}
		default:
			t.Errorf("%s: the handler was not told", what)
		}
	}
}

// V5: a file that cannot be saved is tried again after as many pipelines more, not with each.
func TestFileThatCannotBeSaved(t *testing.T) {
	var tries atomic.Int64
	dir := filepath.Join(t.TempDir(), "missing")
	b := driven(t, Config{PipelineFile: filepath.Join(dir, "pipelines.bin"), Logger: listen(func(message string) {
		if strings.HasPrefix(message, "vulkan:") {
			tries.Add(1)
		}
	})})
	b.within = time.Hour
	d, err := b.Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	compile := func(from, to int) {
		for i := from; i < to; i++ {
			p, err := d.Compile(t.Context(), axpy(t, i+1))
			if err != nil {
				t.Fatal(err)
			}
			p.Release()
		}
	}
	compile(0, 2*saveEvery+5)
	if n := tries.Load(); n != 2 {
		t.Errorf("tried %d times for %d pipelines, want 2", n, 2*saveEvery+5)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	compile(2*saveEvery+5, 3*saveEvery)
	if _, err := os.Stat(filepath.Join(dir, "pipelines-0.bin")); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := tries.Load(); n != 2 {
		t.Errorf("tried %d times, want 2", n)
	}
}

// V1, V6: what a device made is in its file soon, though it is not closed and makes no more.
func TestPipelinesAreSavedSoon(t *testing.T) {
	dir := t.TempDir()
	b := driven(t, Config{PipelineFile: filepath.Join(dir, "pipelines.bin")})
	b.within = time.Millisecond
	d, err := b.Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the second one has a timer of its own
		p, err := d.Compile(t.Context(), axpy(t, 64<<i))
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		file := filepath.Join(dir, "pipelines-0.bin")
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(file); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("pipeline %d: there is no file", i)
			}
		}
		d.(*device).saving.Lock() // the save is over
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		d.(*device).saving.Unlock()
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// F8: the handler of the log may close the executor while its file is saved by the clock.
func TestClosedWhilePipelinesAreSaved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	var e atomic.Pointer[gpuexec.Executor]
	answers := make(chan error, 16)
	b := driven(t, Config{PipelineFile: filepath.Join(dir, "pipelines.bin"), Logger: listen(func(message string) {
		if e := e.Load(); e != nil && strings.HasPrefix(message, "vulkan:") {
			ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
			defer stop()
			answers <- e.Close(ctx)
		}
	})})
	b.within = time.Millisecond
	e.Store(open(t, b, 1))
	k, err := e.Load().Compile(t.Context(), axpy(t, 64))
	if err != nil {
		t.Fatal(err)
	}
	k.Release()
	if err := <-answers; !errors.Is(err, fault.ErrCycle) {
		t.Error(err)
	}
	if err := e.Load().Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// E1: the handler of the log may have another kernel compiled while it is told of a file that
// cannot be saved.
func TestCompiledWhilePipelinesAreNotSaved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	var e atomic.Pointer[gpuexec.Executor]
	answers := make(chan error, 1)
	var once sync.Once
	b := driven(t, Config{PipelineFile: filepath.Join(dir, "pipelines.bin"), Logger: listen(func(message string) {
		if e := e.Load(); e != nil && strings.HasPrefix(message, "vulkan:") {
			once.Do(func() {
				ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
				defer stop()
				k, err := e.Compile(ctx, axpy(t, 128))
				if err == nil {
					k.Release()
				}
				answers <- err
			})
		}
	})})
	b.within = time.Millisecond
	e.Store(open(t, b, 2))
	k, err := e.Load().Compile(t.Context(), axpy(t, 64))
	if err != nil {
		t.Fatal(err)
	}
	k.Release()
	if err := <-answers; err != nil {
		t.Error(err)
	}
	if err := e.Load().Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// F8: the handler of the log that closes its device, which no executor has opened, is told that it
// would wait for itself: when a compile or the clock saves the file, when the device is closed, and
// when it is told by what keeps the file.
func TestDeviceClosedByTheHandlerOfItsLog(t *testing.T) {
	for what, spoil := range map[string]func(file string) error{
		"vulkan: the file of pipelines was not saved": func(file string) error { return os.RemoveAll(filepath.Dir(file)) },
		"pipelinefile:": func(file string) error { return os.WriteFile(file, []byte("damaged"), 0o600) },
	} {
		for _, when := range []string{"close", "compile", "clock"} {
			dir := filepath.Join(t.TempDir(), "d")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			var device atomic.Pointer[gpuexec.Device]
			answers := make(chan error, 16)
			b := driven(t, Config{PipelineFile: filepath.Join(dir, "pipelines.bin"), Logger: listen(func(message string) {
				if d := device.Load(); d != nil && strings.HasPrefix(message, what) {
					answers <- (*d).Close()
				}
			})})
			if b.within = time.Hour; when == "clock" {
				b.within = time.Millisecond
			}
			d, err := b.Open(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			device.Store(&d)
			if err := spoil(filepath.Join(dir, "pipelines-0.bin")); err != nil {
				t.Fatal(err)
			}
			pipelines := 1
			if when == "compile" {
				pipelines = saveEvery
			}
			for i := range pipelines {
				p, err := d.Compile(t.Context(), axpy(t, i+1))
				if err != nil {
					t.Fatal(err)
				}
				p.Release()
			}
			if when != "close" {
				if err := <-answers; !errors.Is(err, fault.ErrCycle) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if when == "close" {
				if err := <-answers; !errors.Is(err, fault.ErrCycle) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
	}
}
