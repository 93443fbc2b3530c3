package artefacts

import (
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
)

// Ref is an uncounted reference to an artefact: it keeps nothing alive on its
// device. The zero Ref refers to nothing. Safe for concurrent use.
type Ref struct {
	cache *Cache
	n     *node
}

// Resident reports whether the artefact is still in the cache; one atomic load.
func (r Ref) Resident() bool { return r.n != nil && r.n.Value.resident.Load() }

// Value is the artefact. It may be released at any time unless somebody holds a
// lease on it: use it without one only where that is harmless.
func (r Ref) Value() any { return r.n.Value.value }

// Acquire takes a lease on the artefact. It reports false if its last user has
// gone already; then ask the cache again.
func (r Ref) Acquire() (*Lease, bool) {
	if r.n == nil || !r.n.Value.cell.Pin() {
		return nil, false
	}
	return r.leased(), true
}

// Lease is the right to use one artefact until End, whatever is evicted
// meanwhile (SPEC C5). Safe for concurrent use.
type Lease struct{ lease lease.Lease[Ref] }

// lease makes a lease of a pin on n.
func (c *Cache) lease(n *node) *Lease { return Ref{c, n}.leased() }

// leases are made some at a time, so that few hits allocate.
type leases struct {
	used int
	of   [32]Lease
}

var unused sync.Pool // of *leases, each with some left

func (r Ref) leased() *Lease {
	some, _ := unused.Get().(*leases)
	if some == nil {
		some = new(leases)
	}
	l := &some.of[some.used]
	if some.used++; some.used < len(some.of) {
		unused.Put(some)
	}
	l.lease.Init(r, unpinRef)
	return l
}

func unpinRef(r Ref) { r.cache.unpin(r.n) }

// Value is the artefact; not to be used after End.
func (l *Lease) Value() any { return l.Ref().Value() }

// Bytes is what the artefact takes of the capacity.
func (l *Lease) Bytes() int64 { return l.Ref().n.Value.bytes }

// Cost is what the artefact took to make.
func (l *Lease) Cost() time.Duration { return l.Ref().n.Value.cost }

// Ref gives an uncounted reference that may outlive the lease.
func (l *Lease) Ref() Ref { return l.lease.Value() }

// End gives the lease back. After the last one an evicted artefact is freed on
// the caller's goroutine. Ending it again does nothing.
func (l *Lease) End() {
	if l != nil && l.lease.End() {
		l.lease.Forget() // its neighbours may live on
	}
}

// unpin takes one pin of n away and frees it after the last. Not in a turn.
func (c *Cache) unpin(n *node) {
	if c.drop(n) {
		c.discard(n)
	}
}

// drop takes one pin of n away; if it was the last, n must be discarded.
func (c *Cache) drop(n *node) bool {
	if !n.Value.cell.Drop() {
		return false
	}
	c.cfg.memory.Add(-n.Value.bytes)
	c.state.gauges.apart.Add(-n.Value.bytes) // it was not resident, or its residency would hold a pin
	return true
}

// discard frees n, whose last pin has gone, then gives back its kernels.
func (c *Cache) discard(n *node) {
	defer c.giveBack(n.Value.kernels) // also after a Free that ends its goroutine
	if n.Value.apart.Load() {
		c.ref.Tell(unleased{n})
	}
	c.free(n)
}

func (c *Cache) free(n *node) {
	if n.Value.free != nil {
		guard.Call(n.Value.free, c.freeFailed(n.Key))
	}
}

func (c *Cache) freeFailed(key string) func(error) {
	return func(err error) {
		c.log.Error("artefacts: the release of an artefact went wrong", "key", fault.Printable(key), "error", err)
	}
}
