package constants

import (
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/sums"
)

// Stats is a snapshot of what a cache has answered and what it holds; the sums are
// those of its engines. Counters never fall, but for Hits: those of a tensor are
// missing for the moment in which it is removed.
type Stats struct {
	Engines int   // there are at this moment
	Len     int64 // resident tensors
	Bytes   int64 // resident
	Pending int64 // bytes promised to owners
	Leased  int64 // bytes of evicted tensors that are still leased, and so found by their keys (SPEC C13)
	Touched int64 // most tensors that one turn of an engine's actor looked at or changed

	Hits     uint64 // leases given on a resident tensor
	Promises uint64 // ownerships given, those passed on to a waiter included
	// Removals are the tensors that stopped being resident and Bypasses those that
	// were not cached, by reason; every reason has its entry.
	Removals map[Removal]uint64
	Bypasses map[Bypass]uint64
	// Again counts the computations of keys that were computed before, by why they were
	// computed again ("evicted", "cleared", "failed", "refused"; each has its entry). A
	// computation is an ownership that was given, or a bypass other than ZeroSize. An
	// engine knows its last 262,144 keys at least (SPEC F10).
	Again map[string]uint64
}

var (
	removals = [...]Removal{Removed, Flushed, Evicted, Closed}
	bypasses = [...]Bypass{Disabled, Full, ZeroSize, DeviceRefused}
)

// counters are what Stats reads. Hits on resident tensors are counted beside their
// pins, which a hit writes anyway, and added here when a tensor goes.
type counters struct {
	hits, promises atomic.Uint64
	removals       [len(removals)]atomic.Uint64
	bypasses       [len(bypasses)]atomic.Uint64
	again          [agains]atomic.Uint64
}

func count[T comparable](known []T, counts []atomic.Uint64, what T) {
	for i, k := range known {
		if k == what {
			counts[i].Add(1)
		}
	}
}

func (c *counters) bypass(why Bypass) { count(bypasses[:], c.bypasses[:], why) }

func (c *counters) removed(r removal) {
	c.hits.Add(r.node.Value.hits.Swap(0))
	count(removals[:], c.removals[:], r.why)
}

// Stats waits for nothing. It looks at each resident tensor.
func (c *Cache) Stats() Stats {
	s := Stats{
		Hits: c.counters.hits.Load(), Promises: c.counters.promises.Load(),
		Removals: make(map[Removal]uint64, len(removals)), Bypasses: make(map[Bypass]uint64, len(bypasses)),
		Again: make(map[string]uint64, agains-1),
	}
	for i, why := range removals {
		s.Removals[why] = c.counters.removals[i].Load()
	}
	for i, why := range bypasses {
		s.Bypasses[why] = c.counters.bypasses[i].Load()
	}
	for why := first + 1; why < agains; why++ {
		s.Again[againWords[why]] = c.counters.again[why].Load()
	}
	for _, e := range c.Engines() {
		s.Engines++
		s.Len += e.Len()
		s.Bytes = sums.Add(s.Bytes, e.Size())
		s.Pending = sums.Add(s.Pending, e.Reserved())
		s.Leased = sums.Add(s.Leased, e.leased.Load())
		s.Touched = max(s.Touched, e.shell.state.touched.Most())
		e.shell.state.table.All(func(n *node) bool {
			s.Hits += n.Value.hits.Load()
			return true
		})
	}
	return s
}

// event tells the listener, if there is one, of what began at start. Where a call
// failed, that is all that is said of its answer. It tells of a promise that is about to be
// given, and of a removal after that, on another goroutine: others wait until the promise is
// kept.
func (e *Engine) event(start time.Time, told Event, out Outcome) {
	if e.cache.cfg.Listen == nil {
		return
	}
	if told.Engine = e; told.Err != nil {
		told.Hit, told.Owner, told.Joined, told.Bypass = false, false, false, ""
	}
	if !start.IsZero() {
		told.Duration = time.Since(start)
	}
	switch {
	case told.Removal != "":
		e.promises.bin.Throw(told)
	case out.Owner != nil:
		e.promised(told)
	default:
		e.tellListener(told, out.Lease)
	}
}

// tellListener calls it. Where it ends the goroutine the lease is ended, which the call was to
// return; or nil.
func (e *Engine) tellListener(told Event, l *Lease) {
	guard.Call(func() { e.cache.cfg.Listen(told) }, func(err error) {
		if err == fault.ErrGoexit && l != nil {
			l.End()
		}
		e.failed(err)
	})
}

// promised has the listener told of a promise, unless the engine closes, which waits for it.
func (e *Engine) promised(told Event) {
	e.promises.Lock()
	defer e.promises.Unlock()
	if !e.promises.over {
		e.promises.bin.Offer(told, lease.MostUntold)
	}
}

// clock is the time if somebody listens, else zero: nobody else pays for it.
func (e *Engine) clock() (now time.Time) {
	if e.cache.cfg.Listen != nil {
		now = time.Now()
	}
	return now
}
