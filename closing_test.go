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
