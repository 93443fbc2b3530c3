package lease

import "sync/atomic"

// Cell counts the pins on one value. It starts with one pin, that of the cache
// it is resident in; every lease and held reference adds its own. When the last
// pin goes, the value may be freed and can never be pinned again.
//
// Safe for concurrent use. It must not be copied after Init.
type Cell struct {
	pins atomic.Int64
	free func()
}

// Init sets the first pin. free, if not nil, is called once after the last.
func (c *Cell) Init(free func()) {
	c.free = free
	c.pins.Store(1)
}

// Pin adds a pin. It reports false if the last one has gone already.
func (c *Cell) Pin() bool { return c.PinBeyond(0) }

// PinBeyond is Pin where there are more pins than least, which is 0 or more.
func (c *Cell) PinBeyond(least int64) bool {
	for {
		n := c.pins.Load()
		if n <= least {
			return false
		}
		if c.pins.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Drop takes one pin away and reports whether it was the last: then the caller
// must call Free, where it suits it (not in an actor's turn).
func (c *Cell) Drop() bool {
	n := c.pins.Add(-1)
	if n < 0 {
		panic("lease: dropped more often than pinned")
	}
	return n == 0
}

// Free runs what Init was given. Only for the one whose Drop reported true.
func (c *Cell) Free() {
	if c.free != nil {
		c.free()
	}
}

// Unpin is Drop and, after the last pin, Free.
func (c *Cell) Unpin() {
	if c.Drop() {
		c.Free()
	}
}

// Leased reports whether anybody besides the cache holds a pin.
func (c *Cell) Leased() bool { return c.pins.Load() > 1 }

// Pins is the number of pins at this moment.
func (c *Cell) Pins() int64 { return c.pins.Load() }
