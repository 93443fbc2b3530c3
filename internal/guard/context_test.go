package guard_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/guard"
)

// F3: whichever call of a context panics, to stop watching it leaves nothing with those
// around it, which may live as long as the process.
func TestWatchingLeavesNothing(t *testing.T) {
	for n := int64(1); n < 12; n++ {
		around, end := context.WithCancel(context.Background())
		kept := watchOnce(actorstest.NewMoody(around, n, func() { panic("asked") }))
		runtime.GC()
		runtime.GC()
		if kept.Value() != nil {
			t.Errorf("a context that panics at call %d: what was to be called is kept", n)
		}
		end()
	}
}

func watchOnce(ctx context.Context) weak.Pointer[[64]byte] {
	kept := new([64]byte)
	context.AfterFunc(guard.Context(ctx), func() { kept[0]++ })()
	return weak.Make(kept)
}

// F3: a context that is not of the standard library, and panics, ends no goroutine that
// waits for it, and its end is still heard.
func TestOtherContextsAreWatched(t *testing.T) {
	ended := make(chan struct{})
	close(ended)
	ctx, stop := context.WithCancel(guard.Context(other{context.Background(), ended}))
	defer stop()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("the end of the context was not heard")
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Error(ctx.Err())
	}
}

// other has ended, and panics when it is asked why.
type other struct {
	context.Context
	done chan struct{}
}

func (o other) Done() <-chan struct{} { return o.done }
func (o other) Err() error            { panic("asked") }

// F3: a context that is watched gives the value of each key, whichever was asked for first.
func TestWatchedValues(t *testing.T) {
	type key int
	ctx := guard.Context(context.WithValue(context.WithValue(context.Background(), key(1), "one"), key(2), "two"))
	for range 2 {
		for k, want := range map[key]any{1: "one", 2: "two", 3: nil} {
			if got := ctx.Value(k); got != want {
				t.Errorf("key %d has the value %v, want %v", k, got, want)
			}
		}
	}
}
