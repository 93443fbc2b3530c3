package blobstore

import (
	"slices"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
)

var reasons = fault.Reasons()

// counters only grow. Safe for concurrent use.
type counters struct {
	hits, stores, evictions, setAside, avoidable atomic.Int64
	reasons                                      [32]atomic.Int64 // in the order of fault.Reasons
}

func (c *counters) reason(r fault.Reason) {
	if i := slices.Index(reasons, r); i >= 0 {
		c.reasons[i].Add(1)
	}
}

// Stats is a snapshot of what a Store did since it was opened.
type Stats struct {
	Hits      int64                  // blobs read, verified and fitting
	Stores    int64                  // entries written
	Evictions int64                  // entries that went for others
	SetAside  int64                  // bad entries moved to quarantine
	Avoidable int64                  // misses though an entry of the key exists (SPEC R2)
	Reasons   map[fault.Reason]int64 // misses and refusals by reason; all of SPEC R1 are there
}

// Stats gives the counters. It reads no file and waits for nobody.
func (s *Store) Stats() Stats {
	c := &s.stats
	out := Stats{
		Hits: c.hits.Load(), Stores: c.stores.Load(), Evictions: c.evictions.Load(),
		SetAside: c.setAside.Load(), Avoidable: c.avoidable.Load(), Reasons: make(map[fault.Reason]int64, len(reasons)),
	}
	for i, r := range reasons {
		out.Reasons[r] = c.reasons[i].Load()
	}
	return out
}
