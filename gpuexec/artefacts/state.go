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
		tenants: make(tenants),
	}
}

// disabled reports whether nothing may be kept, here and below (C1).
func (s *state) disabled() bool {
	return s.closed || !s.entries.Allows(1) || !s.bytes.Allows(1)
}

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
	for !s.entries.Allows(int64(s.size()) + 1) {
		victim := s.victim(t, either)
		if victim == nil {
			return // the floors of others are all there is
		}
		s.evict(victim)
	}
	s.clock++
	n.Value.used = s.clock
	s.enter(n, t)
	s.gauges.entries.Store(int64(s.size()))
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
	if !n.Value.resident.Load() && n.Value.in != nil {
		s.withdraw(n)
		s.gauges.entries.Store(int64(s.size()))
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
	if n.Value.resident.Load() {
		n.Value.resident.Store(false)
		s.table.Remove(n)
		s.gauges.bytes.Add(-n.Value.bytes)
		s.gauges.evictions.Add(1)
		s.dropped = append(s.dropped, n)
	}
	s.gauges.entries.Store(int64(s.size()))
}

// shrinkBytes evicts the least recently used artefacts until the bytes of n fit,
// and reports whether they do. Flights hold no bytes yet and are passed over:
// they are as few as creators that have been running for longer than any
// artefact was left alone.
func (s *state) shrinkBytes(n *node) bool {
	for !s.bytes.Allows(s.gauges.bytes.Load() + n.Value.bytes) {
		victim := s.victim(n.Value.tenant, landed)
		if victim == nil {
			return false
		}
		s.evict(victim)
	}
	return true
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
	for !s.entries.Allows(int64(s.size())) {
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

// release evicts what only owner used (C10).
func (s *state) release(owner string) {
	s.each(func(n *node) {
		if discredit(&n.Value.users, owner) {
			s.evict(n)
		}
	})
}

// close evicts everything for good.
func (s *state) close() {
	s.closed = true
	s.empty()
}

// layer is the kernel layer below the artefacts (C11): part of the pure core. A
// kernel in use never leaves it by eviction, so finding a victim needs the
// unused ones only.
type layer struct {
	resident map[string]*node
	pending  map[string]*node
	unused   order // residents that no artefact holds, by when they became so
}

// beginKernel registers the flight of a kernel.
func (s *state) beginKernel(n *node) {
	n.Value.registered = true
	s.kernels.pending[n.Key] = n
}

// landKernel ends a kernel's flight with a value and reports whether it is
// resident now.
func (s *state) landKernel(n *node) bool {
	kept := n.Value.registered && !s.disabled()
	s.failKernel(n)
	if !kept {
		return false
	}
	n.Value.resident.Store(true)
	s.kernels.resident[n.Key] = n
	s.trimKernels()
	s.gauges.kernels.Store(int64(len(s.kernels.resident)))
	return true
}

// failKernel ends a kernel's flight without a value.
func (s *state) failKernel(n *node) {
	if s.kernels.pending[n.Key] == n {
		delete(s.kernels.pending, n.Key)
	}
	n.Value.registered = false
}

// useKernel notes that a resident kernel is about to be held.
func (s *state) useKernel(n *node) { s.kernels.unused.remove(n) }

// idleKernel notes that nobody holds n now, and gives it up where it does not
// fit into as many entries as the artefacts' capacity.
func (s *state) idleKernel(n *node) {
	if n.Value.resident.Load() && n.Value.in == nil {
		s.kernels.unused.push(n)
		s.trimKernels()
	}
}

func (s *state) trimKernels() {
	for s.kernels.unused.oldest != nil && !s.entries.Allows(int64(len(s.kernels.resident))) {
		s.evictKernel(s.kernels.unused.oldest)
	}
}

func (s *state) evictKernel(n *node) {
	s.kernels.unused.remove(n)
	delete(s.kernels.resident, n.Key)
	n.Value.resident.Store(false)
	s.gauges.kernels.Store(int64(len(s.kernels.resident)))
	s.dropped = append(s.dropped, n)
}

// emptyKernels forgets all kernels; those in use live on until their artefacts
// go. Flights stay joinable and are not kept.
func (s *state) emptyKernels() {
	for _, n := range s.kernels.resident {
		s.evictKernel(n)
	}
	for _, n := range s.kernels.pending {
		n.Value.registered = false
	}
}

// order is an intrusive list of nodes by use. A node is in at most one order at
// a time; all operations are O(1). Owned by the actor.
type order struct {
	oldest, newest *node
	size           int
}

// push makes n, which is in no order, the newest.
func (o *order) push(n *node) {
	e := &n.Value
	e.in, e.older, e.newer = o, o.newest, nil
	if o.newest == nil {
		o.oldest = n
	} else {
		o.newest.Value.newer = n
	}
	o.newest = n
	o.size++
}

// remove takes n out; it reports false if n is not in o.
func (o *order) remove(n *node) bool {
	e := &n.Value
	if e.in != o {
		return false
	}
	if e.older == nil {
		o.oldest = e.newer
	} else {
		e.older.Value.newer = e.newer
	}
	if e.newer == nil {
		o.newest = e.older
	} else {
		e.newer.Value.older = e.older
	}
	e.in, e.older, e.newer = nil, nil, nil
	o.size--
	return true
}

// insert puts n, which is in no order, where its last use belongs: as a rule at
// one of the ends.
func (o *order) insert(n *node) {
	if o.newest == nil || o.newest.Value.used <= n.Value.used {
		o.push(n)
		return
	}
	newer := o.oldest
	for newer.Value.used < n.Value.used {
		newer = newer.Value.newer
	}
	older := newer.Value.older
	n.Value.in, n.Value.older, n.Value.newer = o, older, newer
	newer.Value.older = n
	if older == nil {
		o.oldest = n
	} else {
		older.Value.newer = n
	}
	o.size++
}

// first is the least recently used that may go, or nil.
func (o *order) first(may func(*node) bool) *node {
	n := o.oldest
	for n != nil && !may(n) {
		n = n.Value.newer
	}
	return n
}

// touch makes n the newest, if it is in o at all.
func (o *order) touch(n *node) {
	if o.newest != n && o.remove(n) {
		o.push(n)
	}
}
