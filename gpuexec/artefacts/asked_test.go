package artefacts

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/limit"
)

// pause stops the actor in a turn of its own until it is ended.
type pause struct{ begun, end chan struct{} }

func (p pause) handle(*shell) {
	close(p.begun)
	<-p.end
}

// paused runs fn while the actor takes messages and handles none.
func paused(c *Cache, fn func()) {
	p := pause{make(chan struct{}), make(chan struct{})}
	c.ref.Tell(p)
	<-p.begun
	defer close(p.end)
	fn()
}

// queues runs fn until the paused actor of c has the message that fn sends.
func queues(t *testing.T, c *Cache, fn func()) {
	t.Helper()
	before := c.ref.Queued()
	go fn()
	for end := time.Now().Add(10 * time.Second); c.ref.Queued() <= before; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("no message came")
		}
	}
}

// forsaken has a call leave after it was sent and before its turn.
func forsaken(t *testing.T, c *Cache, ctx context.Context, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := make(chan error, 1)
	queues(t, c, func() { left <- call(ctx) })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that left: %v", err)
	}
}

func openHere(t *testing.T, entries int64) *Cache {
	t.Helper()
	c, err := Open(Config{Entries: limit.Of(entries)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func freedWithin(t *testing.T, what string, freed <-chan struct{}) {
	t.Helper()
	select {
	case <-freed:
	case <-time.After(10 * time.Second):
		t.Errorf("%s is not freed", what)
	}
}

// F4, C5: what is found for a call that has left meanwhile is pinned for nobody,
// whether it has just been made or was evicted while it was leased.
func TestFoundButLeft(t *testing.T) {
	c := openHere(t, 1)
	freed, gate := make(chan struct{}), make(chan struct{})
	request := Request{Key: "k", Create: func(ctx context.Context) (Built, error) {
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return Built{Value: 1, Free: func() { close(freed) }}, nil
	}}
	get := func(ctx context.Context) error {
		l, _, err := c.Get(ctx, request)
		l.End()
		return err
	}
	first := make(chan *Lease, 1)
	go func() {
		l, _, err := c.Get(context.Background(), request)
		if err != nil {
			t.Error(err)
		}
		first <- l
	}()
	for c.Stats().Flights == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	paused(c, func() {
		queues(t, c, func() { close(gate) }) // the landing comes first
		forsaken(t, c, context.Background(), get)
	})
	l := <-first
	other := Request{Key: "other", Create: func(context.Context) (Built, error) { return Built{}, nil }}
	evict := func() {
		lease, _, err := c.Get(context.Background(), other)
		if err != nil {
			t.Fatal(err)
		}
		lease.End()
	}
	evict()
	paused(c, func() { forsaken(t, c, context.Background(), get) }) // found apart, and back in place of the other
	paused(c, func() {})                                            // after that turn
	evict()
	select {
	case <-freed:
		t.Error("k was freed under its lease")
	default:
	}
	l.End()
	freedWithin(t, "k", freed)
}

// F4, C11: a kernel that is found for a creator that has left meanwhile is unused.
func TestKernelFoundButLeft(t *testing.T) {
	c := openHere(t, 1)
	freed := make(chan struct{})
	kernel := func(key string, free func()) Request {
		return Request{Key: key, Create: func(context.Context) (Built, error) { return Built{Value: key, Free: free}, nil }}
	}
	get := func(key string, create func(context.Context) error) {
		t.Helper()
		l, _, err := c.Get(context.Background(), Request{Key: key, Create: func(ctx context.Context) (Built, error) {
			return Built{}, create(ctx)
		}})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	x := kernel("x", func() { close(freed) })
	get("a", func(ctx context.Context) error {
		_, err := c.Kernel(ctx, x)
		return err
	})
	get("b", func(ctx context.Context) error {
		paused(c, func() {
			forsaken(t, c, ctx, func(ctx context.Context) error {
				_, err := c.Kernel(ctx, x)
				return err
			})
		})
		return nil
	})
	get("c", func(ctx context.Context) error {
		_, err := c.Kernel(ctx, kernel("y", nil))
		return err
	})
	freedWithin(t, "the unused kernel", freed)
}
