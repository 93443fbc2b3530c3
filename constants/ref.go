package constants

import (
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/guard"
)

// Lease is the right to use a tensor until End, resident or not.
type Lease struct {
	node  *node
	ended atomic.Bool
}

// Value is what the owner delivered. Not to be used after End.
func (l *Lease) Value() any { return l.node.Value.value }

// Resident reports whether the tensor is in the cache at this moment.
func (l *Lease) Resident() bool { return !l.node.Value.gone.Load() }

// End gives the tensor back; the last End of one that is not resident frees it.
// A second End does nothing.
func (l *Lease) End() {
	if l.ended.CompareAndSwap(false, true) {
		l.node.Value.cell.Unpin()
	}
}

// Held is a reference that a backend keeps over many uses (SPEC T8). It is a pin
// of its own: the value stays usable until Drop. Safe for concurrent use.
type Held struct {
	node    *node
	dropped atomic.Bool
}

// Hold keeps a reference beside the lease. removed, if not nil, is called once,
// on a goroutine of the cache, when the tensor stops being resident; it should
// Drop the reference. It reports false, and calls nothing, if that has happened.
func (l *Lease) Hold(removed func(Removal)) (*Held, bool) {
	if l.ended.Load() || !l.node.Value.cell.Pin() {
		return nil, false
	}
	// What never became resident has no removal to wait for, what was removed has
	// had it: the look comes first, since add cannot tell the first from the rest.
	if !l.Resident() || removed != nil && !l.node.Value.calls.add(removed) {
		l.node.Value.cell.Unpin()
		return nil, false
	}
	return &Held{node: l.node}, true
}

// Use gives the value if the tensor is still resident: one atomic load.
func (r *Held) Use() (any, bool) {
	if r.node.Value.gone.Load() {
		return nil, false
	}
	return r.node.Value.value, true
}

// Drop gives the reference up. A second Drop does nothing.
func (r *Held) Drop() {
	if r.dropped.CompareAndSwap(false, true) {
		r.node.Value.cell.Unpin()
	}
}

// callbacks of one tensor: each is called once, at its removal.
type callbacks struct {
	mu struct {
		sync.Mutex
		list  []func(Removal)
		fired bool
	}
}

// add reports false if the removal has happened.
func (c *callbacks) add(f func(Removal)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.fired {
		return false
	}
	c.mu.list = append(c.mu.list, f)
	return true
}

// fire calls each callback, which is user code; panicked is told of one that panics.
func (c *callbacks) fire(why Removal, panicked func(error)) {
	c.mu.Lock()
	list := c.mu.list
	c.mu.list, c.mu.fired = nil, true
	c.mu.Unlock()
	guard.Each(list, func(f func(Removal)) { guard.Call(func() { f(why) }, panicked) })
}
