package kiln_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// G9: Close of a runtime waits for what closed sessions have still to free, with the
// device there, whether their groups were closed after them or nobody waited for them.
func TestCloseWaitsForClosedSessions(t *testing.T) {
	for _, late := range []bool{true, false} {
		actorstest.Bubble(t, func(t *testing.T) {
			r := open(t, kiln.Config{})
			e, err := r.Executor(ctx, &fakedevice.Backend{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := session(t, r)
			g := group(t, s, 1)
			var freed atomic.Bool
			free := func() {
				time.Sleep(time.Minute)
				if err := e.Ready(ctx); err != nil {
					t.Errorf("the device of a value that is freed: %v", err)
				}
				freed.Store(true)
			}
			if err := kiln.Set(ctx, g, "n", kiln.Made[int]{Free: free}); err != nil {
				t.Fatal(err)
			}
			if late {
				if err := s.Close(ctx); err != nil {
					t.Fatal(err)
				}
				g.Close()
			} else {
				g.Close()
				left, leave := context.WithCancel(ctx)
				leave()
				if err := s.Close(left); !errors.Is(err, context.Canceled) {
					t.Fatalf("close with an ended context: %v", err)
				}
			}
			if err := r.Close(ctx); err != nil {
				t.Fatal(err)
			}
			if !freed.Load() {
				t.Error("the runtime was closed before a value was freed")
			}
		})
	}
}

// silent is a context that has ended and does not say why.
type silent struct{ context.Context }

var ended = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (silent) Done() <-chan struct{} { return ended }
func (silent) Err() error            { return nil }

// F8: Close does not say that it is done where it is not, whatever its context
// says.
func TestCloseWithASilentContext(t *testing.T) {
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	entered, goOn := make(chan struct{}), make(chan struct{})
	go kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
		close(entered)
		<-goOn
		return kiln.Made[int]{}, nil
	}})
	<-entered
	if err := r.Close(silent{ctx}); !errors.Is(err, context.Canceled) {
		t.Errorf("Close of the runtime beside a creator: %v", err)
	}
	g.Close()
	close(goOn)
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
}
