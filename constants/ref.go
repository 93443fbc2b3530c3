package constants

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
)

// Lease is the right to use a tensor until End, resident or not.
type Lease struct{ lease lease.Lease[*node] }

// newLease takes a pin of the tensor over.
func newLease(n *node) *Lease {
	l := new(Lease)
	l.lease.Init(n, unpin)
	return l
}

func unpin(n *node) { n.Value.cell.Unpin() }

// Value is what the owner delivered. Not to be used after End.
func (l *Lease) Value() any { return l.lease.Value().Value.value }

// Resident reports whether the tensor is in the cache at this moment.
func (l *Lease) Resident() bool { return !l.lease.Value().Value.gone.Load() }

func (l *Lease) cost() time.Duration { return l.lease.Value().Value.cost }

// End gives the tensor back; the last End of one that is not resident frees it.
// A second End does nothing.
func (l *Lease) End() { l.lease.End() }

// Held is a reference that a backend keeps over many uses (SPEC T8). It is a pin
// of its own: the value stays usable until Drop. Safe for concurrent use.
type Held struct {
	node     *node
	callback *list.Element // of removed, in the tensor's list; nil = there is none
	dropped  atomic.Bool
}

// Hold keeps a reference beside the lease. removed, if not nil, is called once,
// on a goroutine of the cache, when the tensor stops being resident; it should
// Drop the reference. It reports false, and calls nothing, if that has happened.
func (l *Lease) Hold(removed func(Removal)) (*Held, bool) {
	n := l.lease.Value()
	if l.lease.Ended() || !n.Value.cell.Pin() {
		return nil, false
	}
	// What never became resident has no removal to wait for, what was removed has
	// had it: the look comes first, since add cannot tell the first from the rest.
	h := &Held{node: n}
	there := l.Resident()
	if there && removed != nil {
		h.callback = n.Value.calls.add(func(why Removal) {
			if !h.dropped.Load() {
				removed(why)
			}
		})
		there = h.callback != nil
	}
	if !there {
		unpin(n)
		return nil, false
	}
	return h, true
}

// Use gives the value if the tensor is still resident: one atomic load. Not to be
// called after Drop: the value that it gave then could be freed at any time.
func (r *Held) Use() (any, bool) {
	if r.node.Value.gone.Load() {
		return nil, false
	}
	return r.node.Value.value, true
}

// Drop gives the reference up, and its callback with it: only one that is being
// called at this moment still runs. A second Drop does nothing.
func (r *Held) Drop() {
	if r.dropped.CompareAndSwap(false, true) {
		r.node.Value.calls.remove(r.callback)
		r.node.Value.cell.Unpin()
	}
}

// callbacks of one tensor: each is called once, at its next removal.
type callbacks struct {
	mu struct {
		sync.Mutex
		list  *list.List // of func(Removal), the oldest first; nil = none
		taken bool       // it is not resident
	}
}

// add gives nil if the removal has happened, else what remove takes.
func (c *callbacks) add(f func(Removal)) *list.Element {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.taken {
		return nil
	}
	if c.mu.list == nil {
		c.mu.list = list.New()
	}
	return c.mu.list.PushBack(f)
}

func (c *callbacks) remove(e *list.Element) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e != nil && c.mu.list != nil {
		c.mu.list.Remove(e) // which does nothing if take has had it
	}
}

// take takes the callbacks of a tensor that is not resident any more out.
func (c *callbacks) take() (all *list.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, c.mu.list, c.mu.taken = c.mu.list, nil, true
	return all
}

// renew is for a tensor that has become resident again.
func (c *callbacks) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.taken = false
}

// fire calls each callback, which is user code; panicked is told of one that panics.
func fire(list *list.List, why Removal, panicked func(error)) {
	var all []func(Removal)
	if list != nil {
		for e := list.Front(); e != nil; e = e.Next() {
			all = append(all, e.Value.(func(Removal)))
		}
	}
	guard.Each(all, func(f func(Removal)) { guard.Call(func() { f(why) }, panicked) })
}
