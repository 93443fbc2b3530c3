package artefacts

import (
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Stats is what the cache counted since Open, and its state at one moment. The
// fields are read one by one: while calls run they need not fit together.
type Stats struct {
	Events  map[Event]uint64        // calls by how they ended (SPEC C8)
	Reasons map[fault.Reason]uint64 // misses and rejections by why (SPEC R1)
	Again   Again
	Thrash  uint64 // warnings: what is in use is more than the capacity (SPEC S5)

	// Overleased says that at some time the artefacts that were evicted and still leased
	// were more than the capacity, in entries or in bytes: it is too small for what names
	// and leases hold (SPEC C13). The log says so once.
	Overleased bool

	Entries, Bytes, LeasedBytes int64 // see Len, Bytes and LeasedBytes of Cache
	Kernels                     int64
	Evictions                   int64 // residents that had to go, for whatever cause
	Untold                      int64 // evictions of which Config.Evicted was not told: 65,536 waited for it
	Touched                     int64 // most entries that one turn of the actor looked at or changed; ten uses count as one
	Loads                       int64 // blobs given to a driver

	Saves        int64         // stores of what was made that have not ended yet (SPEC P18)
	Flights      int64         // creators at work, those of kernels among them
	OldestFlight time.Duration // since the oldest of them began; 0 if there is none

	// Runs counts the runs of creators, failed ones among them, by the time they took:
	// Runs[0] those of less than 1 microsecond, Runs[i] those of at least 2^(i-1) and
	// less than 2^i microseconds, the last one all that took longer.
	Runs [32]uint64
}

// counters are written by the calls themselves; hits are not among them, since
// the log of uses counts those (see Cache.hits).
type counters struct {
	events  [len(events)]atomic.Uint64
	reasons map[fault.Reason]*atomic.Uint64 // all of R1; the map itself never changes
	unhit   atomic.Uint64                   // uses that were no hits
	loads   atomic.Int64
	saves   atomic.Int64 // falls, too
	runs    [len(Stats{}.Runs)]atomic.Uint64
}

func (c *counters) init() {
	c.reasons = make(map[fault.Reason]*atomic.Uint64)
	for _, r := range fault.Reasons() {
		c.reasons[r] = new(atomic.Uint64)
	}
}

func (c *counters) reason(r fault.Reason) {
	if n := c.reasons[r]; n != nil {
		n.Add(1)
	}
}

// run counts a creator by the time it took.
func (c *counters) run(took time.Duration) {
	c.runs[min(bits.Len64(uint64(took.Microseconds())), len(c.runs)-1)].Add(1)
}

// Stats gives the counts so far. It waits for nobody.
func (c *Cache) Stats() Stats {
	s := Stats{
		Events:      make(map[Event]uint64, len(events)),
		Reasons:     make(map[fault.Reason]uint64, len(c.counters.reasons)),
		Entries:     int64(c.Len()),
		Bytes:       c.Bytes(),
		LeasedBytes: c.LeasedBytes(),
		Kernels:     int64(c.Kernels()),
		Evictions:   c.state.gauges.evictions.Load(),
		Untold:      c.state.gauges.untold.Load(),
		Touched:     c.state.touched.Most(),
		Loads:       c.counters.loads.Load(),
		Overleased:  c.overleased.Load(),
		Thrash:      c.state.gauges.thrash.Load(),
		Saves:       c.counters.saves.Load(),
		Flights:     c.state.gauges.flights.Load(),
	}
	if s.Flights > 0 {
		s.OldestFlight = c.since(time.Unix(0, c.state.gauges.oldest.Load()))
	}
	for i := range s.Runs {
		s.Runs[i] = c.counters.runs[i].Load()
	}
	again := &c.state.gauges.again
	s.Again = Again{again[evicted].Load(), again[cleared].Load(), again[failed].Load(), again[forced].Load(), again[refused].Load()}
	for i, e := range events {
		s.Events[e] = c.counters.events[i].Load()
	}
	s.Events[Hit] = c.hits()
	for r, n := range c.counters.reasons {
		s.Reasons[r] = n.Load()
	}
	return s
}

// hits is every use that the log of uses saw, less those that were counted as
// something else.
func (c *Cache) hits() uint64 {
	other := c.counters.unhit.Load() // before the log: each of these was noted first
	return c.uses.Count() - other
}

// ended counts and tells how a call ended that was no plain hit. l is its lease, if
// it has one.
func (c *Cache) ended(l *Lease, key string, o Outcome) {
	for i, e := range events {
		if e == o.Event {
			c.counters.events[i].Add(1)
		}
	}
	if o.Reason != "" {
		c.counters.reason(o.Reason)
	}
	if c.cfg.Listen != nil {
		c.tell(l, key, o)
	}
}

// tell tells the listener how a call ended. A panic in it is logged and the call
// goes on. Where it ends the goroutine, the caller gets no lease that it could end.
func (c *Cache) tell(l *Lease, key string, o Outcome) {
	guard.Call(func() { c.cfg.Listen(key, o) }, func(err error) {
		if errors.Is(err, fault.ErrGoexit) {
			l.End()
		}
		c.listenerFailed(err)
	})
}

func (c *Cache) listenerFailed(err error) { c.log.Error("artefacts: listener", "error", err) }
