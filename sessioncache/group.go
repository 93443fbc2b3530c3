package sessioncache

import (
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
)

// group is everything cached for one compiled shape: the value of a node in the
// session's table of shapes.
type group struct {
	dead   atomic.Bool // INVARIANT: set before the group is unlinked and the counts fall, unset after they rise, see back
	filled atomic.Bool // it has held a name
	names  *table.Table[entry]
	slots  atomic.Pointer[slots] // names by NameID; nil until one is interned
	of     *published            // the session it belongs to
	asked  notes                 // notes of its use where the shape asked is the shape compiled

	_ [64]byte // what readers write must not share a line with what they read

	grace   grace
	tallies tallies
	leases  atomic.Int64 // leases of its values
	torn    atomic.Bool  // its values are being freed
	aside   atomic.Bool  // the policy passes over it until the actor is told that it is free, see free

	// For the actor only.
	before     uint64 // the count of its tallies that is not its own
	at         *table.Node[group]
	shape      shapegroups.Shape
	policy     *policy.Group // while registered
	registered bool
	serves     int // its place, plus 1, among the groups that serve; 0 is none
	objects    int64
	bytes      int64
	leased     int64 // the part of bytes that other caches own
	cost       sums.Sum[time.Duration]
	unsettled  bool             // the actor is told to settle its grace in another turn
	vacant     bool             // it was evicted since nothing came of its requests
	flights    int              // creators running for its names
	forsaken   int              // those of them whose callers have all left
	owners     map[string]*node // newest name of each owner
}

// slots are the names of a group by NameID: those from the first id on, and far from these
// others in parts, so that none is copied where a group has many.
type slots struct {
	first int
	at    []atomic.Pointer[node]
	far   []*farSlots // by the id over their number; nil = none of these
	parts int         // how many of far there are
}

const manyFarSlots = 1 << 10

type farSlots [manyFarSlots]atomic.Pointer[node]

// of is the slot of an id, nil if there is none.
func (s *slots) of(id int) *atomic.Pointer[node] {
	if i := uint(id - s.first); i < uint(len(s.at)) {
		return &s.at[i]
	}
	return s.farOf(uint(id))
}

func (s *slots) farOf(id uint) *atomic.Pointer[node] {
	if i := id / manyFarSlots; i < uint(len(s.far)) && s.far[i] != nil {
		return &s.far[i][id%manyFarSlots]
	}
	return nil
}

// busy says that it should not be evicted while another group can be (SPEC S3).
func (g *group) busy() bool {
	return g.awaited() || g.leases.Load() > 0
}

// free is what the policy may know of it. Where it is busy, its last user tells the
// actor of its end.
//
// INVARIANT: aside is set before the users are looked at again. One of us sees the other.
func (g *group) free() bool {
	if !g.busy() {
		return true
	}
	g.aside.Store(true)
	return !g.busy()
}

// awaited says that somebody uses it or waits for a name of it.
func (g *group) awaited() bool { return g.flights > g.forsaken || g.grace.open() }

// late says that it went since nobody waited for what is made for it.
func (g *group) late() bool { return !g.registered && g.vacant && !g.grace.open() }

// grace counts the open handles of a group in two phases, so that names taken
// out of a group in use are freed when the handles that may have seen them are
// closed, even if new handles never cease to come.
//
// INVARIANT: a name is retired after it has left the table. A handle that
// enters afterwards cannot find it, whichever phase it is counted in.
type grace struct {
	phase   atomic.Uint32 // its lowest bit is where new handles are counted
	handles [2]atomic.Int64
	wanted  atomic.Bool // the actor wants to know when a phase has no handle left

	// For the actor only: what left the table during each phase.
	retired [2][]*node
}

// enter counts a handle and gives the phase for leave.
func (r *grace) enter() uint32 {
	phase := r.phase.Load() & 1
	r.handles[phase].Add(1)
	return phase
}

// leave reports whether its phase has no handle left.
func (r *grace) leave(phase uint32) bool { return r.handles[phase].Add(-1) == 0 }

func (r *grace) open() bool { return r.handles[0].Load() > 0 || r.handles[1].Load() > 0 }

// retire takes a name that has left the table. settle follows.
func (r *grace) retire(n *node) {
	r.wanted.Store(true) // before handles are looked at: one of us sees the other
	phase := r.phase.Load() & 1
	r.retired[phase] = append(r.retired[phase], n)
}

// settle gives every retired name that no open handle can have seen to drop,
// and begins a new phase if names of this one wait. It reports false if left has ended
// that before.
func (r *grace) settle(drop func(*node), left func() bool) (done bool) {
	for range 2 {
		now := r.phase.Load() & 1
		before := 1 - now
		if r.handles[before].Load() > 0 {
			return true // at most two phases: the earlier one must end first
		}
		for ; len(r.retired[before]) > 0; r.retired[before] = r.retired[before][1:] {
			if !left() {
				return false
			}
			drop(r.retired[before][0])
		}
		r.retired[before] = nil
		if len(r.retired[now]) == 0 {
			r.wanted.Store(false)
			return true
		}
		r.phase.Store(before)
	}
	return true
}

// serve has a group serve its handles until they are closed, served ends that.
//
// INVARIANT: the place of a group among those that serve never becomes a later one.
func (s *state) serve(g *group) {
	s.serving = append(s.serving, g)
	g.serves = len(s.serving)
}

func (s *state) served(g *group) {
	last := s.serving[len(s.serving)-1]
	s.serving[g.serves-1], last.serves = last, g.serves
	s.serving[len(s.serving)-1] = nil
	s.serving = s.serving[:len(s.serving)-1]
	g.serves = 0
	if s.evicted[g.shape] == g {
		delete(s.evicted, g.shape)
	}
}

// settle drops what was retired of g as far as a turn goes: the rest in further turns.
func (s *state) settle(g *group) {
	if !g.unsettled && !g.grace.settle(s.drop, s.touched.Left) {
		g.unsettled = true
		s.effects.vacated = append(s.effects.vacated, g)
	}
}
