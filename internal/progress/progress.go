// Package progress tells a listener of work that takes long (SPEC E6).
package progress

import (
	"sync"
	"sync/atomic"
	"time"
)

// The phases of long work. Running comes once for each further stretch that it
// lasts.
const (
	Start   = "start"
	Running = "running"
	End     = "end"
)

// Announcer announces the work of a key, as Teller.Announce does. A nil one announces nothing.
type Announcer func(key string) (end func(error))

// Begin announces work that begins now, until end is called with its error.
func (a Announcer) Begin(key string) (end func(error)) {
	if a == nil {
		return func(error) {}
	}
	return a(key)
}

// Teller announces work that takes long to a listener, which is user code. Set the fields
// before use. Safe for concurrent use.
type Teller struct {
	Slow        time.Duration // work that takes longer is announced
	Lend        func(func())  // runs a function on another goroutine, to its end even if the listener ends the goroutine (actors.GoOn)
	Join, Leave func()        // count the listeners that are told, or may still be when their work has ended

	late atomic.Int64 // of these

	mu struct {
		sync.Mutex
		stopped bool
	}
}

// Stop has no listener called any more. Those that are being told are counted still.
func (t *Teller) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.stopped = true
}

// begins counts a listener that is about to be told, unless none is any more.
func (t *Teller) begins() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.stopped {
		return false
	}
	t.Join()
	return true
}

// mostLate is how many works that have ended may wait for the listener: others are not
// announced meanwhile, so that their goroutines are bounded.
const mostLate = 256

// Announce has tell called while work lasts that began with this call: after Slow, after
// each further Slow, and at its end if it lasted that long. What it returns ends the work,
// and waits for nothing: tell may be called after it, one call at a time.
func (t *Teller) Announce(tell func(phase string, elapsed time.Duration, err error)) (end func(error)) {
	began, tick := time.Now(), time.NewTicker(t.Slow)
	result := make(chan error, 1)
	phase, over := Start, false
	say := func(phase string, err error) {
		if t.begins() {
			defer t.Leave()
			tell(phase, time.Since(began), err)
		}
	}
	t.Lend(func() {
		for !over {
			select {
			case <-tick.C:
				if phase == Start && t.late.Load() >= mostLate {
					continue
				}
				now := phase
				phase = Running
				say(now, nil)
			case err := <-result:
				over = true
				if phase != Start {
					say(End, err)
				}
			}
		}
		t.late.Add(-1)
		t.Leave()
	})
	return func(err error) {
		tick.Stop()
		t.late.Add(1)
		t.Join()
		result <- err
	}
}
