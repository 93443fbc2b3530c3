package sessioncache

import "context"

// Stats is a snapshot of one session. Counters never fall.
type Stats struct {
	Groups, Objects, Bytes int64

	Hits     uint64 // Get found the name
	Misses   uint64 // a creator made the value
	Joined   uint64 // callers who waited for another's creator
	Failures uint64 // creators that ended with an error, a panic or Goexit
	Running  int    // creators at this moment
	Evicted  uint64 // groups that went to make room
	Thrash   uint64 // warnings: the working set is above the capacity (SPEC S5)

	// Elements of the shapes given to Acquire, as asked and as compiled (SPEC S4):
	// what model runs computed. A lookup by full key computes nothing.
	Useful, Padded int64
}

// Stats waits for one turn of the actor, never for a creator.
func (s *Session) Stats(ctx context.Context) (Stats, error) {
	var r Stats
	err := s.look(ctx, "stats", func(st *state) {
		r.Misses, r.Failures, r.Running = st.misses, st.failures, st.running
		r.Evicted = st.evictions
		r.Thrash = uint64(st.requests.all.Warnings())
		r.Useful, r.Padded = st.requests.padding.Asked, st.requests.padding.Compiled
	})
	if err != nil {
		return Stats{}, err
	}
	r.Groups, r.Objects, r.Bytes = s.Groups(), s.Len(), s.Bytes()
	r.Joined = s.joined.Load()
	for i := range s.hits {
		r.Hits += s.hits[i].Load()
	}
	return r, nil
}

// Padding is Useful and Padded of Stats.
func (s *Session) Padding(ctx context.Context) (useful, padded int64, err error) {
	r, err := s.Stats(ctx)
	return r.Useful, r.Padded, err
}
