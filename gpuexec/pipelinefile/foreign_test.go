//go:build unix

package pipelinefile_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

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
