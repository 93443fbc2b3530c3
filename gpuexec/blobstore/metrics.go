package blobstore

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

var reasons = fault.Reasons()

// counters only grow, but for pending. They are safe for concurrent use.
type counters struct {
	hits, stores, evictions, setAside, avoidable atomic.Int64
	pending                                      atomic.Int64     // falls, too
	reasons                                      [32]atomic.Int64 // in the order of fault.Reasons
}

func (c *counters) reason(r fault.Reason) {
	if i := slices.Index(reasons, r); i >= 0 {
		c.reasons[i].Add(1)
	}
}

// Stats counts what a Store did since it was opened, and what it is doing.
type Stats struct {
	Hits      int64                  // blobs given by Get and Obtain
	Stores    int64                  // entries written
	Evictions int64                  // entries removed to make room
	SetAside  int64                  // bad entries moved to quarantine/, or hidden in a base
	Avoidable int64                  // misses of a key that has an entry of another identity (SPEC R2)
	Pending   int64                  // stores under way now, also those that wait for the disk (SPEC P18)
	Capacity  limit.Limit            // bytes that entries may take: the directory's own, or Config.Capacity; not given of a store that is off
	Reasons   map[fault.Reason]int64 // misses and refusals by reason; every reason of SPEC R1 has an element
	Locked    time.Duration          // longest time for which this Store held the directory's lock (SPEC P7)
}

// Stats gives a snapshot of the counters. It reads no file and takes no lock.
func (s *Store) Stats() Stats {
	c := &s.stats
	out := Stats{
		Hits: c.hits.Load(), Stores: c.stores.Load(), Evictions: c.evictions.Load(),
		SetAside: c.setAside.Load(), Avoidable: c.avoidable.Load(), Pending: c.pending.Load(), Reasons: make(map[fault.Reason]int64, len(reasons)),
	}
	if s.dir.lock != nil {
		out.Locked = s.dir.lock.Longest()
	}
	if have := s.settings.Load(); have != nil {
		out.Capacity = have.capacity
	}
	for i, r := range reasons {
		out.Reasons[r] = c.reasons[i].Load()
	}
	return out
}
