package kiln_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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
	ctx := context.Background()
	asked := &gated{entered: make(chan struct{}), goOn: make(chan struct{})}
	opened, closed := make(chan error), make(chan error)
	go func() {
		late, err := r.Session(kiln.SessionConfig{Name: "late", Pool: pool, Floor: kiln.Floor{Bytes: 50}, Logger: slog.New(asked)})
		if late != nil {
			t.Errorf("%q was opened in a closed runtime", late.Name())
			_ = late.Close(ctx)
		}
		opened <- err
	}()
	<-asked.entered
	go func() { closed <- r.Close(ctx) }()
	for err = nil; !errors.Is(err, kiln.ErrClosed); { // until Close has looked at the sessions
		_, err = r.Session(kiln.SessionConfig{})
	}
	close(asked.goOn)
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

// Q1: a session with a pool of its own takes nothing from the runtime's.
func TestPoolOfASession(t *testing.T) {
	pool, err := sessioncache.NewPool(kiln.LimitOf(100))
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, kiln.Config{SessionBytes: kiln.LimitOf(10)})
	s, err := r.Session(kiln.SessionConfig{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	set(t, s, 1, 60, 0)
	if held, _ := pool.Use(); held != 60 || r.Stats().SessionBytes != 0 {
		t.Errorf("%d bytes of its own pool, %d of the runtime's: want 60 and 0", held, r.Stats().SessionBytes)
	}
}

// gated is a log handler that waits when it is asked for the first time.
type gated struct {
	slog.Handler
	once          sync.Once
	entered, goOn chan struct{}
}

func (h *gated) Enabled(context.Context, slog.Level) bool {
	h.once.Do(func() {
		close(h.entered)
		<-h.goOn
	})
	return false
}

func shape(t *testing.T, dims ...int64) kiln.Shape {
	t.Helper()
	s, err := kiln.ShapeOf(dims)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
