package kiln_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/sessioncache"
)

// F8: a session that is being opened when the runtime is closed is refused, and closed
// again: nothing of it is left.
func TestSessionOpenedBesideClose(t *testing.T) {
	pool, err := sessioncache.NewPool(kiln.LimitOf(100))
	if err != nil {
		t.Fatal(err)
	}
	r, err := kiln.Open(kiln.Config{Lookup: environment(nil)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Session(kiln.SessionConfig{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	g, err := s.Cache().Group(ctx, shape(t, 8))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Set(ctx, "name", sessioncache.Value{Any: 1, Bytes: 60}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	inTurn, goOn := make(chan struct{}), make(chan struct{})
	taken, opened, closed := make(chan error), make(chan error), make(chan error)
	go func() { // holds the turn in which the session would give
		_, err := g.Take(ctx, "name", 0, func(any) bool {
			close(inTurn)
			<-goOn
			return false
		})
		g.Close() // the group may go now
		taken <- err
	}()
	<-inTurn
	go func() {
		late, err := r.Session(kiln.SessionConfig{Name: "late", Pool: pool, Floor: kiln.Floor{Bytes: 50}})
		if late != nil {
			t.Errorf("%q was opened in a closed runtime", late.Name())
			_ = late.Close(ctx)
		}
		opened <- err
	}()
	for _, spoken := pool.Use(); spoken <= 60; _, spoken = pool.Use() { // until it waits for its floor
		runtime.Gosched()
	}
	go func() { closed <- r.Close(ctx) }()
	for err = nil; !errors.Is(err, kiln.ErrClosed); { // until Close has looked at the sessions
		_, err = r.Session(kiln.SessionConfig{})
	}
	close(goOn)
	if err := <-taken; !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("take: %v, want ErrInvalid", err)
	}
	if err := <-opened; !errors.Is(err, kiln.ErrClosed) {
		t.Errorf("open beside close: %v, want ErrClosed", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if held, spoken := pool.Use(); held != 0 || spoken != 0 {
		t.Errorf("%d bytes of the pool are held and %d are spoken for by closed sessions", held, spoken)
	}
}

func shape(t *testing.T, dims ...int64) kiln.Shape {
	t.Helper()
	s, err := kiln.ShapeOf(dims)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
