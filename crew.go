package kiln

import (
	"sync"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/zone"
)

// crew lends goroutines and counts those that are at work.
type crew struct {
	zone zone.Zone // what they run, and all else that Runtime.Close waits for

	mu struct {
		sync.Mutex
		working int
		idle    chan struct{} // closed when nobody works; nil = nobody waits for that
	}
}

// join counts one more at work, until back.
func (c *crew) join() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.working++
}

// lend runs fn on another goroutine, which wait waits for.
func (c *crew) lend(fn func()) {
	c.join()
	actors.Go(func() {
		defer c.back()
		c.zone.Run(fn)
	})
}

func (c *crew) back() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.working--; c.mu.working == 0 && c.mu.idle != nil {
		close(c.mu.idle)
		c.mu.idle = nil
	}
}

// wait waits until nobody works. It is for one caller.
func (c *crew) wait() {
	c.mu.Lock()
	if c.mu.working == 0 {
		c.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	c.mu.idle = idle
	c.mu.Unlock()
	<-idle
}
