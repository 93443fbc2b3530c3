package sessioncache

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/table"
)

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

	of           *node // whose value it has, of another group; nil = its own
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

// whole is the node whose value n has.
func whole(n *node) *node { return cmp.Or(n.Value.of, n) }

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
// last use, its Free runs before End returns. A group is a use until its close is
// noticed, soon after Close returned. Further calls do nothing.
func (l *Lease) End() { l.lease.End() }

func endLease(n *node) {
	if g := n.Value.group; g.leases.Add(-1) == 0 && g.aside.Load() {
		g.of.tell(vacated{group: g})
	}
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
