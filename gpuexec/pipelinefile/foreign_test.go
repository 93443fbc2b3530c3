//go:build unix

package pipelinefile_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
)

// rude is a log handler that fails at each record.
type rude struct {
	slog.Handler
	fail func()
}

func (r rude) Handle(context.Context, slog.Record) error { r.fail(); return nil }

// F3: a log handler that panics or ends its goroutine loses a record; here that of a
// Destroy that panicked, of a pipeline that nobody waits for any more.
func TestHandlerThatPanics(t *testing.T) {
	for _, fail := range []func(){func() { panic("handler") }, runtime.Goexit} {
		r := open(t, func(s *setup) {
			s.Linger, s.Logger = time.Hour, slog.New(rude{slog.NewTextHandler(t.Output(), nil), fail})
		})
		entered, goOn := make(chan struct{}), make(chan struct{})
		r.driver.onFree = func() { panic("destroy") }
		r.driver.during(func(context.Context, pipelinefile.Module) error { close(entered); <-goOn; return nil })
		r.shader("s", "source")
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, _, err := r.Get(ctx, pipelinefile.Request{Shader: "s"})
			left <- err
		}()
		<-entered
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		r.Clear() // what is built is not kept
		close(goOn)
		if err := r.Close(t.Context()); err != nil { // it waits for what is freed
			t.Error(err)
		}
	}
}

// F8: what destroys a pipeline, and the handler of a log, that closes its own cache would wait
// for itself: it is told so, and the cache closes.
func TestClosedByItsOwnDestroy(t *testing.T) {
	for _, by := range []string{"destroy", "log"} {
		var closes func()
		r := open(t, func(s *setup) {
			s.Logger = slog.New(rude{slog.NewTextHandler(t.Output(), nil), func() { closes() }})
		})
		answers := make(chan error, 9)
		closes = func() { answers <- r.Close(t.Context()) }
		if r.driver.onFree = closes; by == "log" {
			r.driver.onFree = func() { panic("which is logged") }
		}
		r.shader("s", "source")
		l, _, err := r.Get(t.Context(), pipelinefile.Request{Shader: "s"})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
		r.Clear()
		select {
		case err := <-answers:
			if !errors.Is(err, fault.ErrCycle) {
				t.Errorf("by %s: %v", by, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("by %s: it waits for itself", by)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// F8: a front end, a driver, or a reader of a file, that closes the cache which calls it would
// wait for itself: it is told so at once, and the cache closes.
func TestClosedByWhatItCalls(t *testing.T) {
	for _, by := range []string{"front end", "front end's goroutine", "build", "blob", "reader"} {
		r := open(t, func(*setup) {})
		answer := errors.New("it was not called")
		closes := func() error {
			ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
			defer stop()
			answer = r.Close(ctx)
			return nil
		}
		r.shader("s", "source")
		switch by {
		case "front end":
			r.front.onCompile = func(context.Context, string) error { return closes() }
		case "front end's goroutine":
			r.front.onCompile = func(ctx context.Context, _ string) error {
				answers := make(chan error)
				go func() { answers <- r.Close(ctx) }()
				answer = <-answers
				return nil
			}
		case "build":
			r.driver.during(func(context.Context, pipelinefile.Module) error { return closes() })
		case "blob":
			r.driver.onBlob = func() { _ = closes() }
			_, _, _ = r.SaveBytes(t.Context())
		case "reader":
			_, _ = r.LoadFrom(t.Context(), readers(closes))
		}
		if l, _, err := r.Get(t.Context(), pipelinefile.Request{Shader: "s"}); err == nil {
			l.End()
		}
		if err := r.Close(t.Context()); err != nil || !errors.Is(answer, fault.ErrCycle) {
			t.Errorf("closed by a %s: %v; and then: %v", by, answer, err)
		}
	}
}

// readers has nothing to read and calls a function.
type readers func() error

func (r readers) Read([]byte) (int, error) { return 0, cmp.Or(r(), io.EOF) }

// silent is a context that has ended and does not say why.
type silent struct{ context.Context }

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (silent) Done() <-chan struct{} { return ended }
func (silent) Err() error            { return nil }

// F4: a context that has ended without an error ends the wait of its own caller: who
// has not got the token of a save does not give it back.
func TestContextWithoutAnError(t *testing.T) {
	r := open(t)
	path := filepath.Join(t.TempDir(), "file")
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 50 { // of a token that is there and an end, either may be seen
			_, _ = r.Save(silent{t.Context()}, path)
		}
	}()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("a save with a context that has ended hangs")
	}
	entered, goOn := make(chan struct{}), make(chan struct{})
	r.driver.during(func(context.Context, pipelinefile.Module) error { close(entered); <-goOn; return nil })
	r.shader("s", "source")
	go r.Get(t.Context(), pipelinefile.Request{Shader: "s"})
	<-entered
	if err := r.Close(silent{t.Context()}); !errors.Is(err, context.Canceled) {
		t.Errorf("Close beside a build: %v", err)
	}
	close(goOn)
}
