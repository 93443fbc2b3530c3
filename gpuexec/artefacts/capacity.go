package artefacts

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// Has reports whether the artefact is resident and complete. It refreshes
// nothing and waits for nothing.
func (c *Cache) Has(key string) bool { return c.table.Lookup(key, 0) != nil }

// Len is the number of entries: residents, and flights that take a place.
func (c *Cache) Len() int { return int(c.state.gauges.entries.Load()) }

// Bytes is what the residents take of the capacity.
func (c *Cache) Bytes() int64 { return c.state.gauges.bytes.Load() }

// LeasedBytes is what is in use outside the capacity: artefacts that were
// evicted or never kept, until their last lease ends (SPEC C12).
func (c *Cache) LeasedBytes() int64 { return c.state.gauges.apart.Load() }

// Kernels is the number of kernels in the layer below.
func (c *Cache) Kernels() int { return int(c.state.gauges.kernels.Load()) }

// Capacity is what the cache may hold, in entries and in bytes.
func (c *Cache) Capacity() (entries, bytes limit.Limit) {
	p := c.capacity.Load()
	return p.entries, p.bytes
}

// SetCapacity changes the capacities that are given and leaves the others.
// Lowering evicts exactly the surplus, least recently used first, before it
// returns; 0 empties and disables the cache and every layer below. A negative
// capacity is ErrInvalid, one in bytes below the floors of all tenants, but for
// 0, ErrTooLarge: both change nothing.
func (c *Cache) SetCapacity(entries, bytes limit.Limit) error {
	if err := (Config{Entries: entries, Bytes: bytes}).Validate(); err != nil {
		return err
	}
	return c.order("artefacts: set capacity", func(r actors.Reply[struct{}]) message {
		return &resize{ordered: ordered{r}, entries: entries, bytes: bytes}
	})
}

// Reset evicts what only this owner has used, flights included. What others
// used, callers without a name among them, stays (SPEC C10).
func (c *Cache) Reset(owner string) error {
	const op = "artefacts: reset"
	if owner == "" {
		return fault.Invalidf(op, "the owner's name is empty")
	}
	return c.order(op, func(r actors.Reply[struct{}]) message { return &dropOwner{ordered: ordered{r}, owner: owner} })
}

// AddFloor raises an owner's floor by a number of bytes, or lowers it by a negative
// one: others cannot take what the owner uses while that is no more than its floor.
// Artefacts that no floor holds go first. Where the floors of others are all there
// is, a newcomer is not kept. An artefact used by several tenants counts to the
// floor of one. An owner whose floor comes to nothing is forgotten: what only it
// used counts as used by callers without a name. Lowering the capacity in entries
// heeds no floor. ErrTooLarge, and nothing is changed: the floors of all would be
// more than the capacity in bytes. It waits for no turn of the cache: what is asked
// for afterwards finds the floor.
func (c *Cache) AddFloor(owner string, bytes int64) error {
	const op = "artefacts: floor"
	if owner == "" {
		return fault.Invalidf(op, "the owner's name is empty")
	}
	if err := c.floors.add(owner, bytes, func() { c.ref.Tell(&addFloor{owner: owner, bytes: bytes}) }); err != nil {
		return &fault.Error{Op: op, Err: wasClosed(err)}
	}
	return nil
}

// order has the actor carry out what waits for no creator, so it needs no context.
func (c *Cache) order(op string, build func(actors.Reply[struct{}]) message) error {
	_, err := actors.Ask(context.Background(), c.ref, build)
	if err != nil {
		return &fault.Error{Op: op, Err: wasClosed(err)}
	}
	return nil
}

// wasClosed says of ErrClosed what was closed. Other errors it gives as they are.
func wasClosed(err error) error {
	if err == fault.ErrClosed {
		return fmt.Errorf("the cache is %w: open another one", err)
	}
	return err
}

// floors admits floors, so that nobody waits for a turn to know. The actor is told of each
// in the order in which they were admitted.
//
// INVARIANT: the sum of the floors is within the capacity in bytes, unless that is 0 and
// nothing is kept at all.
type floors struct {
	sync.Mutex
	of     map[string]int64 // above 0
	sum    int64
	bytes  limit.Limit // the capacity that was asked for last
	closed bool
}

// add raises an owner's floor, or lowers it by a negative number, and has told know.
func (f *floors) add(owner string, bytes int64, told func()) error {
	f.Lock()
	defer f.Unlock()
	if f.closed {
		return fault.ErrClosed
	}
	if bytes > 0 {
		if err := f.fitLocked(bytes, f.bytes); err != nil {
			return err
		}
	}
	now := max(0, f.of[owner]+bytes)
	f.sum += now - f.of[owner]
	if f.of[owner] = now; now == 0 {
		delete(f.of, owner)
	}
	told()
	return nil
}

// resize takes a capacity in bytes, unless that is below the floors.
func (f *floors) resize(bytes limit.Limit) error {
	f.Lock()
	defer f.Unlock()
	bytes = bytes.Or(f.bytes)
	err := f.fitLocked(0, bytes)
	if err == nil {
		f.bytes = bytes
	}
	return err
}

// fitLocked refuses floors that grow by more bytes than a capacity has left for them.
func (f *floors) fitLocked(more int64, capacity limit.Limit) error {
	most, counted := capacity.Value()
	if !counted || most == 0 {
		most = math.MaxInt64
	}
	if more > most-f.sum {
		return fmt.Errorf("%w: floors of %d bytes, and %d more, in %v bytes: raise the capacity or lower the floors",
			fault.ErrTooLarge, f.sum, more, capacity)
	}
	return nil
}

func (f *floors) close() {
	f.Lock()
	defer f.Unlock()
	f.closed = true
}
