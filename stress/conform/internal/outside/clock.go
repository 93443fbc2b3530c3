package outside

import (
	"sync"
	"time"
)

// Clock is the components' clock: real time plus what the script has moved it
// by. Timers made from it fire early when it is moved past them. The zero value
// shows real time. Safe for concurrent use.
type Clock struct {
	mu struct {
		sync.Mutex
		ahead  time.Duration
		timers map[*Timer]struct{}
	}
}

// Timer is one pending AfterFunc.
type Timer struct {
	clock *Clock
	at    time.Time
	real  *time.Timer
}

// Now is the time components see.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.mu.ahead)
}

// Advance moves the clock; what falls due fires at once.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ahead += d
	now := time.Now().Add(c.mu.ahead)
	for t := range c.mu.timers {
		t.real.Reset(max(0, t.at.Sub(now)))
	}
}

// AfterFunc calls f in a goroutine of its own once d has passed on this clock.
func (c *Clock) AfterFunc(d time.Duration, f func()) *Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &Timer{clock: c, at: time.Now().Add(c.mu.ahead + d)}
	if c.mu.timers == nil {
		c.mu.timers = map[*Timer]struct{}{}
	}
	c.mu.timers[t] = struct{}{}
	t.real = time.AfterFunc(d, func() {
		if t.Stop() {
			f()
		}
	})
	return t
}

// Stop tells whether it kept f from being called.
func (t *Timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	_, pending := t.clock.mu.timers[t]
	delete(t.clock.mu.timers, t)
	t.real.Stop()
	return pending
}
