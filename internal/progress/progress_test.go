package progress

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// E6: works that have ended and that nobody was told of keep none from being announced, also
// where many end at one time.
func TestManyEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
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
		wg.Wait()
		if len(told) != 2 || told[0] != Start || told[1] != End {
			t.Errorf("told %q of one that took long", told)
		}
	})
}
