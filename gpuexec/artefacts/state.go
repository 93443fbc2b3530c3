package artefacts

import (
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/limit"
)

// state is the pure core: which artefacts are resident, which fly, and who goes
// next. The actor calls one method at a time; what must be let go because of it
// collects in dropped. The table and the gauges are what readers see, and are
// kept nowhere else.
type state struct {
	table   *table.Table[entry] // residents
	pending map[string]*node    // flights that may be joined: at most one a key (F1)
	order   order               // residents and the flights that count (F9), of no tenant
	tenants tenants             // those of tenants
	owned   owned
	clock   uint64
	entries limit.Limit
	bytes   limit.Limit
	kernels layer
	closed  bool

	gauges  *gauges
	dropped []*node // lost their residency in this turn; the shell takes their pins
}

// gauges are read by anybody at any time.
type gauges struct {
	entries, bytes atomic.Int64 // within capacity
	apart          atomic.Int64 // bytes in use outside the capacity (C12)
	kernels        atomic.Int64
	evictions      atomic.Int64
}

func newState(t *table.Table[entry], entries, bytes limit.Limit) *state {
	return &state{
		table: t, pending: make(map[string]*node), entries: entries, bytes: bytes, gauges: new(gauges),
		kernels: layer{resident: make(map[string]*node), pending: make(map[string]*node)},
		tenants: make(tenants), owned: make(owned),
	}
}

// disabled reports whether nothing may be kept, here and below (C1).
func (s *state) disabled() bool {
	return s.closed || !s.entries.Allows(1) || !s.bytes.Allows(1)
}

// size is the number of entries.
func (s *state) size() int64 { return s.gauges.entries.Load() }

// use notes one use of n, in the order of the uses.
func (s *state) use(n *node) {
	if in := n.Value.in; in != nil {
		s.clock++
		n.Value.used = s.clock
		in.touch(n)
	}
}

// begin registers the flight of n; where something may be kept it takes its place now.
func (s *state) begin(n *node) {
	n.Value.registered = true
	s.pending[n.Key] = n
	if s.disabled() {
		return
	}
	t := s.tenants.of(n)
	for !s.entries.Allows(s.size() + 1) {
		victim := s.victim(t, either)
		if victim == nil {
			return // the floors of others are all there is
		}
		s.evict(victim)
	}
	s.clock++
	n.Value.used = s.clock
	s.enter(n, t)
	for owner := range n.Value.users.Load().all {
		s.owned.add(owner, n)
	}
}

// land ends the flight of n with a value. It reports whether n is resident now:
// not if it was evicted meanwhile or is larger than all there is (C1, F7).
func (s *state) land(n *node) bool {
	s.unregister(n)
	if n.Value.in == nil {
		return false
	}
	if !s.bytes.Allows(n.Value.bytes) {
		s.evict(n)
		return false
	}
	if !s.shrinkBytes(n) {
		s.evict(n) // the floors of others are all there is
		return false
	}
	n.Value.resident.Store(true)
	s.table.Put(n)
	s.gauges.bytes.Add(n.Value.bytes)
	n.Value.tenant.charge(n.Value.bytes)
	return true
}

// fail ends the flight of n without a value.
func (s *state) fail(n *node) {
	s.unregister(n)
	s.forsake(n)
}

// forsake takes a flight's place away. The flight stays joinable.
func (s *state) forsake(n *node) {
	if !n.Value.resident.Load() {
		s.withdraw(n)
		s.owned.drop(n)
	}
}

func (s *state) unregister(n *node) {
	if n.Value.registered {
		n.Value.registered = false
		delete(s.pending, n.Key)
	}
}

// evict takes n, resident or flying, out of the order.
func (s *state) evict(n *node) {
	s.withdraw(n)
	s.owned.drop(n)
	if n.Value.resident.Load() {
		n.Value.resident.Store(false)
		s.table.Remove(n)
		s.gauges.bytes.Add(-n.Value.bytes)
		s.gauges.evictions.Add(1)
		s.dropped = append(s.dropped, n)
	}
}

// resize sets the capacities that are given and evicts exactly the surplus (C2).
// It changes nothing if the floors are more than the bytes.
func (s *state) resize(entries, bytes limit.Limit) error {
	bytes = bytes.Or(s.bytes)
	if err := s.tenants.fit(0, bytes); err != nil {
		return err
	}
	s.entries, s.bytes = entries.Or(s.entries), bytes
	if s.disabled() {
		s.empty()
		return nil
	}
	for !s.entries.Allows(s.size()) {
		s.evict(s.surplus(either))
	}
	for !s.bytes.Allows(s.gauges.bytes.Load()) {
		s.evict(s.surplus(landed))
	}
	s.trimKernels()
	return nil
}

// empty evicts everything, here and in the kernel layer.
func (s *state) empty() {
	s.each(s.evict)
	s.emptyKernels()
}

// credited notes the first use of n by an owner.
func (s *state) credited(n *node, owner string) {
	if n.Value.in != nil && n.Value.users.Load().has(owner) {
		s.owned.add(owner, n)
	}
}

// release evicts what only owner used (C10).
func (s *state) release(owner string) {
	for _, n := range s.owned.forget(owner) {
		s.evict(n)
	}
}

// close evicts everything for good.
func (s *state) close() {
	s.closed = true
	s.empty()
}

// each calls fn, which may evict what it is given, on every entry.
func (s *state) each(fn func(*node)) {
	walk := func(o *order) {
		for n := o.oldest; n != nil; {
			next := n.Value.newer
			fn(n)
			n = next
		}
	}
	walk(&s.order)
	for _, t := range s.tenants {
		walk(&t.order)
	}
}

// enter puts n, which is in no order, among what t uses, or what nobody with a
// floor does, where its last use belongs.
func (s *state) enter(n *node, t *tenant) {
	s.gauges.entries.Add(1)
	n.Value.tenant = t
	if t == nil {
		s.order.insert(n)
		return
	}
	t.insert(n)
	t.charge(n.Value.kept())
}

// withdraw takes n out of its order, if it is in one.
func (s *state) withdraw(n *node) {
	if in := n.Value.in; in != nil {
		in.remove(n)
		s.gauges.entries.Add(-1)
		n.Value.tenant.charge(-n.Value.kept())
		n.Value.tenant = nil
	}
}

func (s *state) move(n *node, t *tenant) {
	s.withdraw(n)
	s.enter(n, t)
}
