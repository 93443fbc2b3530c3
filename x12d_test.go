package kiln_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// Runtime.Close in the Free of an artefact that turned out to hold another type: it runs on the
// goroutine of the session's creator, which Session.Close waits for.
func TestX12CloseInTheFreeOfAnotherType(t *testing.T) {
	r := x12Runtime(t, kiln.Config{ArtefactEntries: kiln.LimitOf(0)})
	_, g := x12Group(t, r, "s", 1)
	closed := make(chan error, 1)
	started, hold := make(chan struct{}), make(chan struct{})
	first, leave := context.WithCancel(context.Background())
	go r.Artefacts().Get(first, artefacts.Request{Key: "k", Backend: "go", Create: func(context.Context) (artefacts.Built, error) {
		close(started)
		<-hold
		return artefacts.Built{Value: 1, Free: func() { closed <- r.Close(context.Background()) }}, nil
	}})
	<-started
	go kiln.Get(context.Background(), g, "n", kiln.Recipe[string]{Key: "k", Make: func(context.Context) (kiln.Made[string], error) { return kiln.Made[string]{}, nil }})
	time.Sleep(300 * time.Millisecond) // it has joined
	leave()
	time.Sleep(100 * time.Millisecond)
	close(hold)
	select {
	case err := <-closed:
		if !errors.Is(err, kiln.ErrCycle) {
			t.Errorf("Close in a Free answered %v, want ErrCycle", err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("Close in a Free has not answered in 10 s: want ErrCycle at once")
	}
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
	defer stop()
	if err := r.Close(ctx); err != nil {
		t.Errorf("the runtime never closes: %v", err)
	}
}

// F5 through the store, with nobody's deadline: it never ends.
func TestX12CircleThroughTheStoreForEver(t *testing.T) {
	dir := t.TempDir()
	a := x12Runtime(t, kiln.Config{StoreDir: dir})
	b := x12Runtime(t, kiln.Config{StoreDir: dir})
	_, ga := x12Group(t, a, "a", 1)
	_, gb := x12Group(t, b, "b", 1)
	done := make(chan error, 1)
	go func() {
		_, err := kiln.Get(context.Background(), ga, "n", x12Recipe("x", func(ctx context.Context) (int, error) {
			return kiln.Get(ctx, gb, "m", x12Recipe("y", func(ctx context.Context) (int, error) {
				return kiln.Get(ctx, gb, "n", x12Recipe("x", func(context.Context) (int, error) { return 7, nil }))
			}))
		}))
		done <- err
	}()
	select {
	case err := <-done:
		t.Log(err)
	case <-time.After(45 * time.Second):
		t.Error("no answer after 45 s (the lease of the store is 10 s): want ErrCycle within a second")
	}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	t.Log("close:", b.Close(ctx), a.Close(ctx))
}
