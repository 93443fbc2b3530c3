package actorstest

import (
	"sync/atomic"
	"time"
)

// Foreign is a context of a user's own. Its methods do harm from Arm or End on; it never
// has an error. Make one with NewForeign.
type Foreign struct {
	done  chan struct{}
	armed atomic.Bool
	harm  func()
}

// NewForeign is a context that has not ended.
func NewForeign(harm func()) *Foreign { return &Foreign{done: make(chan struct{}), harm: harm} }

// Arm has it do harm from now on.
func (c *Foreign) Arm() { c.armed.Store(true) }

// End ends the context.
func (c *Foreign) End() {
	c.Arm()
	close(c.done)
}

func (c *Foreign) hurt() {
	if c.armed.Load() {
		c.harm()
	}
}

// Done, Err, Value and Deadline are those of a context.Context.
func (c *Foreign) Done() <-chan struct{}            { return c.done }
func (c *Foreign) Err() error                       { c.hurt(); return nil }
func (c *Foreign) Value(any) any                    { c.hurt(); return nil }
func (c *Foreign) Deadline() (t time.Time, ok bool) { c.hurt(); return t, false }
