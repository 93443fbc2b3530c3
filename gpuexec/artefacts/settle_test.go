package artefacts_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
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
