package pipelinefile

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
)

// Stats is what a cache did so far.
type Stats struct {
	Hits   int64 // calls answered by a live object or another call's build
	SPIRV  int64 // calls whose build began with SPIR-V that was there
	Built  int64 // calls whose build began with source or the caller's words
	Failed int64 // calls that returned an error after they asked for a build

	Compiles  int64 // of the front end, failed ones included
	Pipelines int64 // that the driver built
	Live      int   // objects in the cache now
	Entries   int   // of SPIR-V in memory now

	// Reasons counts misses by their reason, those of Load and of the files that Save
	// would join; source_changed by entry, and quirk by blob left aside.
	Reasons map[fault.Reason]int64
}

type counters struct {
	hits, spirv, built, failed, compiles, pipelines atomic.Int64

	mu struct {
		sync.Mutex
		reasons map[fault.Reason]int64
	}
}

func (n *counters) origin(o Origin) {
	switch o {
	case Hit:
		n.hits.Add(1)
	case SPIRV:
		n.spirv.Add(1)
	case Built:
		n.built.Add(1)
	}
}

func (n *counters) miss(r fault.Reason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.reasons == nil {
		n.mu.reasons = make(map[fault.Reason]int64)
	}
	n.mu.reasons[r]++
}

// Stats is a snapshot; its parts are read one after the other.
func (c *Cache) Stats() Stats {
	n := &c.counters
	m := Stats{
		Hits: n.hits.Load(), SPIRV: n.spirv.Load(), Built: n.built.Load(), Failed: n.failed.Load(),
		Compiles: n.compiles.Load(), Pipelines: n.pipelines.Load(), Live: c.Len(), Entries: c.SPIRV(),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m.Reasons = maps.Clone(n.mu.reasons)
	return m
}
