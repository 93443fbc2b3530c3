package constants

import "sync/atomic"

// Stats is a snapshot of what a cache has answered. Counters never fall.
type Stats struct {
	// Bypasses are the tensors that were not cached, by reason; every reason of
	// SPEC T3 has its entry.
	Bypasses map[Bypass]uint64
}

var bypasses = [...]Bypass{Disabled, Full, ZeroSize, DeviceRefused}

// counters are what Stats reads.
type counters struct{ bypasses [len(bypasses)]atomic.Uint64 }

func (c *counters) bypass(why Bypass) {
	for i, known := range bypasses {
		if known == why {
			c.bypasses[i].Add(1)
		}
	}
}

// Stats waits for nothing.
func (c *Cache) Stats() Stats {
	s := Stats{Bypasses: make(map[Bypass]uint64, len(bypasses))}
	for i, why := range bypasses {
		s.Bypasses[why] = c.counters.bypasses[i].Load()
	}
	return s
}
