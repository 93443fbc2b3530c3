package sessioncache

import (
	"context"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
)

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
	Touched  int64  // groups and names that a turn of the actor looked at or changed, at most

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
		Evicted: p.evictions.Load(), Thrash: p.warnings.Load(), Touched: s.state.touched.Most(),
		Useful: p.useful.Load(), Padded: p.padded.Load(),
	}
	for i := range s.hits {
		r.Hits += s.hits[i].Load()
	}
	return r
}

// GroupStats is a snapshot of one registered group.
type GroupStats struct {
	Shape   shapegroups.Shape // as compiled
	Objects int64             // names; one on two lanes counts twice
	Bytes   int64
	Cost    time.Duration // what its values were said to take to make
}

// List gives the registered groups, in no order (SPEC G14). It looks at 4,096 of them
// in a turn: a group that comes or goes meanwhile may be in it or not.
func (s *Session) List(ctx context.Context) ([]GroupStats, error) {
	const atOnce = 4096
	var groups []*group
	s.published.shapes.All(func(at *table.Node[group]) bool {
		groups = append(groups, &at.Value)
		return true
	})
	var all []GroupStats
	for part := range slices.Chunk(groups, atOnce) {
		seen, err := look(ctx, s, "list", func(*state) []GroupStats {
			stats := make([]GroupStats, 0, len(part))
			for _, g := range part {
				if g.registered {
					stats = append(stats, GroupStats{g.shape, g.objects, g.bytes, g.cost.Value()})
				}
			}
			return stats
		})
		if err != nil {
			return nil, err
		}
		all = append(all, seen...)
	}
	return all, nil
}
