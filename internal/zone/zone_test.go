package zone_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/internal/zone"
)

// F8: the code of a zone, and of those within it, is told from all other code, also when
// it has ended its goroutine.
func TestHere(t *testing.T) {
	var above zone.Zone
	below, beside := zone.Zone{Up: &above}, zone.Zone{Up: &above}
	var wg sync.WaitGroup
	lend := below.Lend(func(fn func()) { wg.Go(fn) })
	look := func(want bool) {
		t.Helper()
		if below.Here() != want || above.Here() != want || beside.Here() {
			t.Errorf("here: %v below, %v above, %v beside; want %v, %v and false", below.Here(), above.Here(), beside.Here(), want, want)
		}
	}
	lend(func() {
		look(true)
		below.Run(func() { look(true) })
		look(true)
		wg.Go(func() { look(false) })
	})
	wg.Wait()
	ended := make(chan struct{})
	lend(func() {
		defer func() {
			look(true) // its goroutine is on its way out
			close(ended)
		}()
		runtime.Goexit()
	})
	<-ended
	wg.Wait()
	look(false)
	below.Run(func() { look(true) })
	look(false)
	(*zone.Zone)(nil).Run(func() {})
	if (*zone.Zone)(nil).Here() {
		t.Error("a nil zone has code")
	}
}

// F8: what code of a zone lends and waits for is code of that zone, besides that of which it is
// by itself, and of none when it has ended.
func TestCarry(t *testing.T) {
	var caller, lender zone.Zone
	var wg sync.WaitGroup
	lend := zone.Carry(lender.Lend(func(fn func()) { wg.Go(fn) }))
	look := func(byCaller, byLender bool) {
		t.Helper()
		if caller.Here() != byCaller || lender.Here() != byLender {
			t.Errorf("the caller's %v, the lender's %v; want %v and %v", caller.Here(), lender.Here(), byCaller, byLender)
		}
	}
	caller.Run(func() {
		lend(func() { look(true, true) })
		wg.Wait()
		look(true, false)
	})
	lend(func() { look(false, true) })
	wg.Wait()
	lender.Run(func() {
		caller.Run(func() {
			zone.Carry(func(fn func()) { fn() })(func() { look(true, true) })
			look(true, true)
		})
		look(false, true)
	})
	look(false, false)
}

// F8: of many goroutines that run at once each is told from the others, also when its stack
// has moved.
func TestHereOfMany(t *testing.T) {
	var in, out zone.Zone
	var ready, done sync.WaitGroup
	ready.Add(64)
	for i := range 64 {
		mine, other := &in, &out
		if i%2 == 0 {
			mine, other = other, mine
		}
		done.Go(func() {
			mine.Run(func() {
				ready.Done()
				ready.Wait()
				if !deep(1000, mine.Here) || other.Here() {
					t.Error("a goroutine is taken for another")
				}
			})
		})
	}
	done.Wait()
}

// deep asks at the bottom of a large stack.
func deep(n int, ask func() bool) bool {
	var room [64]int
	room[n%64] = n
	if n == 0 {
		return ask()
	}
	return deep(n-1+room[(n+1)%64], ask)
}

func BenchmarkRun(b *testing.B) {
	var z zone.Zone
	for b.Loop() {
		z.Run(func() {})
	}
}
