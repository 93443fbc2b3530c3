package lease

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// F6: a bin in which as many Frees are stuck as may be keeps nobody waiting who does not wait for
// stuck ones, and takes no more goroutines.
func TestFullOfStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 3 * mostStuck
		goOn := make(chan struct{})
		var workers, most, freed atomic.Int64
		var b Bin[int]
		b.Init(func(fn func()) {
			if n := workers.Add(1); n > most.Load() {
				most.Store(n)
			}
			go func() {
				defer workers.Add(-1)
				fn()
			}()
		}, func(int) { <-goOn; freed.Add(1) }, func(error) {})
		for n := range all {
			b.Throw(n)
		}
		soon := func() time.Duration {
			began, passed := time.Now(), make(chan struct{})
			b.Soon(func() { close(passed) })
			select {
			case <-passed:
			case <-time.After(time.Hour):
				t.Fatal("whoever does not wait for what is stuck waits for it")
			}
			return time.Since(began)
		}
		if d := soon(); d > 2*patience*(mostStuck+2) {
			t.Errorf("the first waited %v", d)
		}
		for range 3 {
			b.Throw(all)
			if d := soon(); d != 0 {
				t.Errorf("one that came when it was full waited %v", d)
			}
		}
		if n := most.Load(); n != mostStuck+1 {
			t.Errorf("%d goroutines, want %d", n, mostStuck+1)
		}
		fenced := make(chan struct{})
		b.Fence(func() { close(fenced) })
		synctest.Wait()
		select {
		case <-fenced:
			t.Error("a fence was passed before what is stuck")
		default:
		}
		close(goOn)
		<-fenced
		if n := freed.Load(); n != all+3 {
			t.Errorf("%d were freed, want %d", n, all+3)
		}
		soon()
	})
}

// F6: that costs nothing by what waits: it is called in turns.
func TestSoonInAFullBin(t *testing.T) {
	took := func(waiting int) time.Duration {
		var b Bin[int]
		b.mu.workers, b.mu.stuck, b.mu.watched = mostStuck+1, mostStuck+1, true
		b.mu.waiting = make([]thrown[int], waiting)
		passed, began := 0, time.Now()
		for range 100 {
			b.Soon(func() { passed++ })
		}
		if passed != 100 || len(b.mu.waiting) != waiting {
			t.Fatalf("%d passed, %d wait", passed, len(b.mu.waiting))
		}
		return time.Since(began)
	}
	best := func(waiting int) time.Duration {
		least := took(waiting)
		for range 4 {
			least = min(least, took(waiting))
		}
		return least
	}
	few, many := best(10), best(1<<18)
	if many > 100*few+time.Millisecond {
		t.Errorf("100 take %v where few wait, %v where many do", few, many)
	}
}
