package recency

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// C12: of two notes that do not overlap, the one that ended first comes out first: for
// any number of writers beside a consumer that drains, gathers and calms at any time.
func TestNotesInOrder(t *testing.T) {
	type note struct{ began, ended uint64 }
	rapid.Check(t, func(t *rapid.T) {
		writers := rapid.IntRange(1, 6).Draw(t, "writers")
		each := rapid.IntRange(1, 2*segment).Draw(t, "notes each") // of all, fewer than may wait
		turns := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 20).Draw(t, "what the consumer does")
		l := NewLog[note](func() {})
		var tick atomic.Uint64
		var ready sync.WaitGroup
		var running atomic.Int32
		ready.Add(writers)
		running.Store(int32(writers))
		for range writers {
			go func() {
				defer running.Add(-1)
				ready.Done()
				ready.Wait()
				for range each {
					n := &note{began: tick.Add(1)}
					l.Note(n, 0)
					atomic.StoreUint64(&n.ended, tick.Add(1))
				}
			}()
		}
		var out []*note
		drain := func() { l.Drain(func(n *note) { out = append(out, n) }) }
		for i := 0; running.Load() > 0; i++ {
			switch turns[i%len(turns)] {
			case 0:
				runtime.Gosched()
			case 1:
				if clock {
					l.gather(l.era.Load())
				}
			case 2:
				l.calm()
			}
			drain()
		}
		drain()
		if len(out) != writers*each || l.Count() != uint64(len(out)) {
			t.Fatalf("%d notes came out of %d, count %d", len(out), writers*each, l.Count())
		}
		last := out[0]
		for i, n := range out {
			if n.ended < last.began {
				t.Fatalf("note %d ended at %d and came out after one that began at %d", i, n.ended, last.began)
			}
			if n.began > last.began {
				last = n
			}
		}
	})
}
