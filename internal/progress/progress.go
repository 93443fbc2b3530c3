// Package progress tells a listener of work that takes long (SPEC E6).
package progress

import "time"

// The phases of long work. Running comes once for each further stretch that it
// lasts.
const (
	Start   = "start"
	Running = "running"
	End     = "end"
)

// Announcer announces the work of a key, as Announce does. A nil one announces nothing.
type Announcer func(key string) (end func(error))

// Begin announces work that begins now, until end is called with its error.
func (a Announcer) Begin(key string) (end func(error)) {
	if a == nil {
		return func(error) {}
	}
	return a(key)
}

// Announce has tell called while work lasts that began with this call: after slow,
// after each further slow, and at its end if it lasted that long. What it returns
// ends the work and waits for tell, of which one call runs at a time. lend runs a
// function on another goroutine, to its end even if tell ends the goroutine
// (actors.GoOn).
func Announce(slow time.Duration, lend func(func()), tell func(phase string, elapsed time.Duration, err error)) (end func(error)) {
	began, tick := time.Now(), time.NewTicker(slow)
	result, ended := make(chan error, 1), make(chan struct{})
	phase, over := Start, false
	lend(func() {
		for !over {
			select {
			case <-tick.C:
				now := phase
				phase = Running
				tell(now, time.Since(began), nil)
			case err := <-result:
				over = true
				if phase != Start {
					tell(End, time.Since(began), err)
				}
			}
		}
		close(ended)
	})
	return func(err error) {
		tick.Stop()
		result <- err
		<-ended
	}
}
