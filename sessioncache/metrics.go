package sessioncache

// Stats is a snapshot of one session. Counters never fall.
type Stats struct {
	Groups, Objects, Bytes int64

	Hits     uint64 // Get or Lookup of a Group found the name
	Misses   uint64 // a creator made the value
	Joined   uint64 // callers that waited for another's creator
	Failures uint64 // creators that ended with an error, a panic or Goexit
	Running  int    // creators at this moment
	Evicted  uint64 // groups that went to make room
	Thrash   uint64 // warnings: the working set is above the capacity (SPEC S5)

	// Useful and Padded are elements of the shapes given to Session.Group, as asked
	// and as compiled (SPEC S4): what model runs computed. A lookup by full key
	// computes nothing.
	Useful, Padded int64
}

// Stats waits for nothing. Requests for resident groups come into Useful, Padded
// and Thrash with the session's next turn: after a Stream all that were made
// before it are in.
func (s *Session) Stats() Stats {
	p := s.published
	r := Stats{
		Groups: s.Groups(), Objects: s.Len(), Bytes: s.Bytes(),
		Misses: p.misses.Load(), Joined: s.joined.Load(), Failures: p.failures.Load(), Running: int(p.running.Load()),
		Evicted: p.evictions.Load(), Thrash: p.warnings.Load(),
		Useful: p.useful.Load(), Padded: p.padded.Load(),
	}
	for i := range s.hits {
		r.Hits += s.hits[i].Load()
	}
	return r
}
