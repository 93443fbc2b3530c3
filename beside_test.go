package kiln

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/internal/actorstest"
)

// G9, F8: a session that begins to close beside its runtime is waited for, also where its
// room has not heard of that yet.
func TestSessionClosedBesideTheRuntime(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		ctx := context.Background()
		r, err := Open(Config{Lookup: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Session(SessionConfig{})
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Group(ctx, []int64{1})
		if err == nil {
			err = Set(ctx, g, "n", Made[int]{Free: func() {
				if err := r.Artefacts().Settle(ctx); err != nil {
					t.Errorf("the artefacts of a value that is freed: %v", err)
				}
			}})
			g.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		begun, goOn := make(chan struct{}), make(chan struct{})
		s.leave = func() { close(begun); <-goOn }
		closed := make(chan error, 2)
		go func() { closed <- s.Close(ctx) }()
		<-begun
		go func() { closed <- r.Close(ctx) }()
		synctest.Wait()
		close(goOn)
		if err := errors.Join(<-closed, <-closed); err != nil {
			t.Error(err)
		}
	})
}
