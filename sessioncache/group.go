package sessioncache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/policy"
)

// group is everything cached for one compiled shape: the value of a node in the
// session's table of shapes.
type group struct {
	dead   atomic.Bool // INVARIANT: set once, before the group is unlinked and the counts fall
	filled atomic.Bool // it has held a name
	names  *table.Table[entry]
	slots  atomic.Pointer[slots] // names by NameID; nil until one is interned
	of     *published            // the session it belongs to
	asked  [2]asked              // notes of its use where the shape asked is the shape compiled

	_ [64]byte // what readers write must not share a line with what they read

	grace  grace
	leases atomic.Int64 // leases of its values
	torn   atomic.Bool  // its values are being freed

	// For the actor only.
	at         *table.Node[group]
	shape      shapegroups.Shape
	policy     *policy.Group // while registered
	registered bool
	objects    int64
	bytes      int64
	cost       time.Duration
	flights    int              // creators running for its names
	owners     map[string]*node // newest name of each owner
}

// slots are the names of a group by NameID.
type slots struct{ at []atomic.Pointer[node] }

// busy says that it should not be evicted while another group can be (SPEC S3).
func (g *group) busy() bool {
	return g.flights > 0 || g.grace.open() || g.leases.Load() > 0
}

// Group is an uncounted reference to a shape group, for readers that look up
// several names. Once the group is evicted it finds nothing. The zero Group is
// empty. Safe for concurrent use.
type Group struct {
	g    *group
	held bool // by a Handle: an evicted group goes on serving
}

// Resident reports whether the group is still registered.
func (g Group) Resident() bool { return g.g != nil && !g.g.dead.Load() }

// Get looks up a name that is shared by all lanes.
func (g Group) Get(name string) (Ref, bool) { return g.GetLane(name, 0) }

// GetLane looks up a name of one lane; it sees no other lane's.
func (g Group) GetLane(name string, lane Lane) (Ref, bool) {
	if g.g == nil {
		return Ref{}, false
	}
	n := g.g.names.Lookup(name, uint64(lane))
	if n == nil || !g.held && g.g.dead.Load() {
		return Ref{}, false
	}
	return Ref{n}, true
}

// GetID looks up a shared name by its id, without hashing.
func (g Group) GetID(id NameID) (Ref, bool) {
	if g.g == nil {
		return Ref{}, false
	}
	if s := g.g.slots.Load(); s != nil && id.of == g.g.of && uint(id.slot) < uint(len(s.at)) {
		if n := s.at[id.slot].Load(); n != nil && (g.held || !g.g.dead.Load()) {
			return Ref{n}, true
		}
	}
	return g.GetLane(id.name, 0)
}

// Handle is a lease on a shape group from one request. Close it when the
// request is done. Safe for concurrent use; Close must come last.
type Handle struct {
	Group
	session *Session
	phase   uint32 // of the grace it entered
	stripe  uint32 // where its hits are counted

	mu struct {
		sync.Mutex
		closed  bool
		adopted []*node // values it uses that its group does not hold
	}
}

// Shape is the shape compiled, after bucketing.
func (h *Handle) Shape() shapegroups.Shape { return h.g.shape }

// Close ends the lease. Further calls do nothing.
func (h *Handle) Close() {
	h.mu.Lock()
	closed, adopted := h.mu.closed, h.mu.adopted
	h.mu.closed, h.mu.adopted = true, nil
	h.mu.Unlock()
	if closed {
		return
	}
	for _, n := range adopted {
		if n.Value.cell.Drop() {
			h.g.of.bin.now(n)
		}
	}
	h.session.leave(h.g, h.phase)
}

// adopt keeps a value alive until Close. It reports false if that has come
// already: then the pin is given back.
func (h *Handle) adopt(n *node) bool {
	n.Value.cell.Pin() // cannot fail: who calls holds another pin
	h.mu.Lock()
	open := !h.mu.closed
	if open {
		h.mu.adopted = append(h.mu.adopted, n)
	}
	h.mu.Unlock()
	if !open && n.Value.cell.Drop() {
		h.g.of.bin.now(n)
	}
	return open
}

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

// retire takes a name that has left the table and settles.
func (r *grace) retire(n *node, drop func(*node)) {
	r.wanted.Store(true) // before handles are looked at: one of us sees the other
	phase := r.phase.Load() & 1
	r.retired[phase] = append(r.retired[phase], n)
	r.settle(drop)
}

// settle gives every retired name that no open handle can have seen to drop,
// and begins a new phase if names of this one wait.
func (r *grace) settle(drop func(*node)) {
	for range 2 {
		now := r.phase.Load() & 1
		before := 1 - now
		if r.handles[before].Load() > 0 {
			return // at most two phases: the earlier one must end first
		}
		for _, n := range r.retired[before] {
			drop(n)
		}
		r.retired[before] = nil
		if len(r.retired[now]) == 0 {
			r.wanted.Store(false)
			return
		}
		r.phase.Store(before)
	}
}
