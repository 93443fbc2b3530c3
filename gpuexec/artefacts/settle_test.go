package artefacts_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// P18: callers that give up waiting for a write that is stuck leave nothing behind.
func TestSettleGivenUp(t *testing.T) {
	bubble(t, stored(newShelf(t), 4), func(t *testing.T, c room) {
		stuck := gate()
		defer close(stuck)
		r := c.request(c.Cache, "a", maker{})
		r.Create = func(context.Context) (artefacts.Built, error) {
			b := c.built("a", maker{})
			b.Blob = func(context.Context) ([]byte, error) { <-stuck; return nil, nil }
			return b, nil
		}
		want(t, "get", said(c.Get(background, r)), "a by=miss")
		giveUp := func(callers int) {
			ctx, cancel := context.WithCancel(background)
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					if c.Settle(ctx) == nil {
						t.Error("a write that is stuck has ended")
					}
				})
			}
			synctest.Wait()
			cancel()
			all.Wait()
		}
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		giveUp(1000)
		before := heap()
		for range 8 {
			giveUp(1000)
		}
		if more := heap() - before; more > 256<<10 {
			t.Errorf("8,000 callers left %d KiB behind", more>>10)
		}
	})
}

// F5, P18: a Blob that waits for the writes under way waits for its own: it is told so. So
// is the Free that comes after, of what nobody else holds.
func TestSettleCalledByAWrite(t *testing.T) {
	bubble(t, stored(newShelf(t), 4), func(t *testing.T, c room) {
		answers := make(map[string]error)
		settle := func(by string) {
			ctx, stop := context.WithTimeout(background, time.Minute)
			defer stop()
			answers[by] = c.Settle(ctx)
		}
		r := c.request(c.Cache, "a", maker{})
		ended := gate()
		r.Create = func(context.Context) (artefacts.Built, error) {
			b := c.built("a", maker{})
			b.Blob = func(context.Context) ([]byte, error) { settle("Blob"); <-ended; return []byte("a"), nil }
			b.Free = func() { settle("Free") }
			return b, nil
		}
		l, _, err := c.Get(background, r)
		if err != nil {
			t.Fatal(err)
		}
		l.End()
		if err := c.SetCapacity(limit.Of(0), limit.Limit{}); err != nil {
			t.Fatal(err)
		}
		close(ended)
		if err := c.Settle(background); err != nil {
			t.Error(err)
		}
		for _, by := range []string{"Blob", "Free"} {
			if !errors.Is(answers[by], fault.ErrCycle) {
				t.Errorf("settle in a %s: %v", by, answers[by])
			}
		}
	})
}
