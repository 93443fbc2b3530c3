package progress

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// E6: works that have ended and that nobody was told of keep none from being announced, also
// where many end at one time.
func TestManyEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		wg.Add(1) // the work
		var lent []func()
		teller := Teller{Slow: time.Second, Lend: func(fn func()) { lent = append(lent, fn) }, Join: func() { wg.Add(1) }, Leave: wg.Done}
		for range 2 * mostLate {
			teller.Announce(func(string, time.Duration, error) { t.Error("told of what was quick") })(nil)
		}
		var told []string
		end := teller.Announce(func(phase string, _ time.Duration, _ error) { told = append(told, phase) })
		for _, fn := range lent {
			go fn()
		}
		time.Sleep(teller.Slow + time.Millisecond)
		end(nil)
		wg.Done()
		wg.Wait()
		if len(told) != 2 || told[0] != Start || told[1] != End {
			t.Errorf("told %q of one that took long", told)
		}
	})
}

// F8: after Stop no listener is called, however long its work goes on; one that is told is
// counted until it returns.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var listeners, told atomic.Int64
		goOn := make(chan struct{})
		teller := Teller{Slow: time.Second, Lend: func(fn func()) { go fn() },
			Join: func() { listeners.Add(1) }, Leave: func() { listeners.Add(-1) }}
		end := teller.Announce(func(string, time.Duration, error) {
			told.Add(1)
			<-goOn
		})
		time.Sleep(teller.Slow)
		synctest.Wait()
		teller.Stop()
		if n := listeners.Load(); n != 1 {
			t.Errorf("%d listeners are counted while one is told", n)
		}
		close(goOn)
		synctest.Wait()
		if n := listeners.Load(); n != 0 {
			t.Errorf("%d listeners are counted when none is told", n)
		}
		time.Sleep(3 * teller.Slow)
		end(nil)
		synctest.Wait()
		if told.Load() != 1 || listeners.Load() != 0 {
			t.Errorf("told %d times, %d listeners are counted: want what was told before the stop, and none", told.Load(), listeners.Load())
		}
	})
}
