package sessioncache

import (
	"context"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Stats is a snapshot of one session. Counters never fall.
type Stats struct {
	Groups, Objects, Bytes int64

	Hits     uint64 // Get or Lookup of a Group found the name; LookupID and a Ref count none
	KeyHits  uint64 // Session.Lookup found the name by its full key
	Misses   uint64 // a creator made the value
	Joined   uint64 // callers that waited for another's creator
	Failures uint64 // creators that ended with an error, a panic or Goexit
	Running  int    // creators at this moment
	Evicted  uint64 // groups that went to make room
	Untold   uint64 // evictions of which Config.Evicted was not told: 65,536 waited for it
	Thrash   uint64 // warnings: the working set is above the capacity (SPEC S5)
	Touched  int64  // most groups and names that one turn of the actor looked at or changed; ten uses count as one

	// Useful and Padded are elements of the shapes given to Session.Group, as asked
	// and as compiled (SPEC S4): what model runs computed. A lookup by full key
	// computes nothing.
	Useful, Padded int64
}

// Stats waits for nothing. Requests for resident groups come into KeyHits, Useful,
// Padded and Thrash with the session's next turn: after a Stream all that were made
// before it are in. Its cost grows with the largest number of groups that there were
// at a time.
func (s *Session) Stats() Stats {
	p := s.published
	r := Stats{
		Groups: s.Groups(), Objects: s.Len(), Bytes: s.Bytes(),
		Hits: p.hits(), KeyHits: p.keyHits.Load() + s.log.Dropped(keyHit), Misses: p.misses.Load(), Joined: s.joined.Load(), Failures: p.failures.Load(), Running: int(p.running.Load()),
		Evicted: p.evictions.Load(), Untold: p.untold.Load(), Thrash: p.warnings.Load(), Touched: s.state.touched.Most(),
		Useful: sums.Add(p.useful.Load(), p.unkept.useful.Load()), Padded: sums.Add(p.padded.Load(), p.unkept.padded.Load()),
	}
	return r
}

// GroupStats is a snapshot of one registered group.
type GroupStats struct {
	Shape   shapegroups.Shape // as compiled
	Objects int64             // names; one on two lanes counts twice
	Bytes   int64
	Cost    time.Duration // what its values were said to take to make
	Hits    uint64        // as in Stats, since the group was registered

	names *table.Table[entry]
}

// NameStats is one name of a group.
type NameStats struct {
	Name  string
	Lane  Lane
	Owner string // who is credited with it; empty is nobody
	Key   string // content key that its value was made from; empty is none
	Bytes int64
	Cost  time.Duration
}

// List gives the registered groups, in no order (SPEC G14). It looks at 512 of them
// in a turn: a group that comes or goes meanwhile may be in it or not.
func (s *Session) List(ctx context.Context) ([]GroupStats, error) {
	const atOnce = 512
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
					stats = append(stats, GroupStats{g.shape, g.objects, g.bytes, g.cost.Value(), g.hits(), g.names})
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

// Names gives the names that the group has at this moment, in no order: they are
// looked at as a look-up does, without a turn. A group that has gone since the List
// has those that it went with.
func (g GroupStats) Names() []NameStats {
	if g.names == nil {
		return nil
	}
	names := make([]NameStats, 0, g.Objects)
	g.names.All(func(n *node) bool {
		e := &n.Value
		names = append(names, NameStats{n.Key, Lane(n.Sub), e.owner, e.key, e.bytes, e.cost})
		return true
	})
	return names
}
