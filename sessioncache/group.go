package sessioncache

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
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
	leased     int64 // the part of bytes that other caches own
	cost       time.Duration
	vacant     bool             // it was evicted since nothing came of its requests
	flights    int              // creators running for its names
	forsaken   int              // those of them whose callers have all left
	owners     map[string]*node // newest name of each owner
}

// slots are the names of a group by NameID.
type slots struct{ at []atomic.Pointer[node] }

// busy says that it should not be evicted while another group can be (SPEC S3).
func (g *group) busy() bool {
	return g.awaited() || g.leases.Load() > 0
}

// awaited says that somebody uses it or waits for a name of it.
func (g *group) awaited() bool { return g.flights > g.forsaken || g.grace.open() }

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

// node is one name with its value: the entry of a group's table. Overwriting a
// name replaces its node, so what readers see in one never changes.
type node = table.Node[entry]

// entry is what a node holds. The fields above dead are set before the node is
// published and never again; those below cell belong to the actor.
type entry struct {
	group *group
	value any
	bytes int64
	cost  time.Duration
	owner string
	key   string // content key; empty is none
	lease bool   // its bytes are counted for the memory limit elsewhere
	loose bool   // no group ever held it
	taken bool   // it is not the session's any more; the actor sets it, before its pin goes

	dead atomic.Bool // taken out of its group; a group that died as a whole says so itself
	cell lease.Cell

	newer, older *node // the other names of this owner in the group
	slot         int   // place among the interned names, -1 for none
}

// newNode makes a node for the value, pinned once on behalf of the group.
func (s *state) newNode(g *group, hash uint64, name string, o Options, v Value) *node {
	n := g.names.HashedNode(hash, name, uint64(o.Lane))
	e := &n.Value
	e.group, e.value, e.bytes, e.cost, e.owner, e.lease, e.slot = g, v.Any, v.Bytes, v.Cost, o.Owner, v.Leased, -1
	e.key = cmp.Or(v.Key, o.Key)
	e.cell.Init(v.Free)
	s.effects.memory += e.own()
	return n
}

// own is how many of its bytes count for the memory limit.
func (e *entry) own() int64 {
	if e.lease || e.taken {
		return 0
	}
	return e.bytes
}

// another refuses to give what was made from one content key where another is
// asked for (SPEC G13). A value without a key, and a call without, fit all.
func another(op, name, held, asked string) error {
	if held == asked || held == "" || asked == "" {
		return nil
	}
	return fault.Invalidf(room+op, "%q stands for %q: asked for %q; give each content key a name of its own", name, held, asked)
}

// Ref is a held reference to one value: an uncounted pointer that may be kept
// and copied at will. The zero Ref refers to nothing. Safe for concurrent use.
type Ref struct{ at *node }

// Value is the value, resident or not; nil for the zero Ref.
func (r Ref) Value() any {
	if r.at == nil {
		return nil
	}
	return r.at.Value.value
}

// Resident reports whether a lookup would still find this value: two atomic
// loads.
func (r Ref) Resident() bool {
	return r.at != nil && !r.at.Value.dead.Load() && !r.at.Value.group.dead.Load()
}

// Bytes is what the value was said to hold.
func (r Ref) Bytes() int64 {
	if r.at == nil {
		return 0
	}
	return r.at.Value.bytes
}

// Key is the content key that the value was made from, or empty.
func (r Ref) Key() string {
	if r.at == nil {
		return ""
	}
	return r.at.Value.key
}

// Cost is what the value was said to take to make.
func (r Ref) Cost() time.Duration {
	if r.at == nil {
		return 0
	}
	return r.at.Value.cost
}

// Acquire pins the value until the lease's End. It reports false if the value
// was freed, or is about to be: then ask for the name again.
func (r Ref) Acquire() (*Lease, bool) {
	if r.at == nil || !r.at.Value.cell.Pin() {
		return nil, false
	}
	r.at.Value.group.leases.Add(1)
	l := new(Lease)
	l.lease.Init(r.at, endLease)
	return l, true
}

// Lease is the right to use a value until End. Safe for concurrent use.
type Lease struct{ lease lease.Lease[*node] }

// Value is the leased value; not to be used after End.
func (l *Lease) Value() any { return l.lease.Value().Value.value }

// Ref refers to the same value without a pin.
func (l *Lease) Ref() Ref { return Ref{l.lease.Value()} }

// End gives the lease up. If the value is no longer resident and this was its
// last use, its Free runs before End returns. Further calls do nothing.
func (l *Lease) End() { l.lease.End() }

func endLease(n *node) {
	n.Value.group.leases.Add(-1)
	unpin(n)
}

// NameID is an interned name: looking it up in a group costs no hash. It is
// meant for the session that interned it; another one takes it as the name.
type NameID struct {
	name string
	slot int
	of   *published // whose slots it counts in
}

// String is the name.
func (id NameID) String() string { return id.name }
