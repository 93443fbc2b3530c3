package constants

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/touched"
)

// F8: a close ends what very many owners compute in several turns, and the owner of each
// is told of it.
func TestCloseEndsManyInTurns(t *testing.T) {
	const many = 3 * touched.Most
	c, e := open(t, Config{})
	owners := make([]*Promise, many)
	for i := range owners {
		owners[i] = add(t, e, strconv.Itoa(i), 1, Options{})
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, o := range owners {
		if err := context.Cause(o.Context()); !errors.Is(err, fault.ErrClosed) {
			t.Fatalf("owner %d is told %v", i, err)
		}
		o.Abandon()
	}
	if n := e.shell.state.touched.Most(); n < touched.Most/2 || n > touched.Most {
		t.Errorf("a turn has ended %d of %d", n, many)
	}
}

// F8: the callers of every engine are answered at once, whatever keeps the close of another.
func TestCloseOfAnEngineWaitsForNoOther(t *testing.T) {
	c, _ := open(t, Config{})
	const engines = 4
	goOn, answers := make(chan struct{}), make(chan error, engines)
	for i := range engines {
		e, err := c.Engine(CPU, i, "")
		if err != nil {
			t.Fatal(err)
		}
		put(t, e, "there", 1, Options{Removed: func(Removal) { <-goOn }}, nil)
		o := add(t, e, "k", 1, Options{})
		defer o.Abandon()
		go func() {
			_, err := e.GetOrAdd(t.Context(), key("k"), 1, Options{})
			answers <- err
		}()
		waitFor(t, func() bool { return waiting(o) == 1 })
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := c.Close(left); !errors.Is(err, context.Canceled) {
		t.Errorf("Close beside callbacks that are stuck: %v", err)
	}
	defer close(goOn)
	for range engines {
		select {
		case err := <-answers:
			if !errors.Is(err, fault.ErrClosed) {
				t.Errorf("a caller is told %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a caller waits for the callbacks of other engines")
		}
	}
}
