package artefacts

import (
	"container/list"
	"sync/atomic"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/limit"
)

// state is the pure core: which artefacts are resident, which fly, and which goes
// next. The actor calls one method at a time. The artefacts that lose their
// residency in it collect in dropped. Readers see the table and the gauges, which
// are the state itself and no copy of it.
type state struct {
	table    *table.Table[entry] // residents
	apart    map[string]*node    // evicted while they were leased, and leased still (C13)
	era      *lease.Era          // of claims
	flights  flight.Desk[string, *making]
	flying   list.List // of *making: creators at work, those of kernels too, the oldest first
	order    order     // residents and the flights that count (F9), of no tenant
	tenants  tenants   // each with an order of its own
	ranks    ranks     // of tenants
	owned    owned
	unlisted []unlisted // see unlist
	clock    uint64
	entries  limit.Limit // what binds: while a trim is under way, that or what is there
	bytes    limit.Limit
	goal     capacity // what was asked for
	kernels  layer
	past     runs // of creators
	thrash   thrash
	hits     uint64 // so far; the shell says so before a landing
	touched  touched.Gauge
	stopped  bool // nobody is admitted any more
	closed   bool // nothing may stay any more; it is stopped, too

	gauges  *gauges
	dropped []*node // lost their residency in this turn; the shell takes their pins
	lost    []lost  // of these, what is to be told
}

// lost is an artefact that lost its residency.
type lost struct {
	key string
	why Cause
}

// gauges are read by anybody at any time.
type gauges struct {
	entries, bytes atomic.Int64 // within capacity
	apart          sums.Total   // bytes in use outside the capacity (C12)
	kernels        atomic.Int64
	evictions      atomic.Int64
	untold         atomic.Int64          // of these
	again          [agains]atomic.Uint64 // creators that ran not for the first time
	thrash         atomic.Uint64         // how often it began
	flights        atomic.Int64
	oldest         atomic.Int64 // when the oldest of flights began, as Unix nanoseconds
}

func newState(t *table.Table[entry], entries, bytes limit.Limit) *state {
	s := &state{
		table: t, apart: make(map[string]*node), entries: entries, bytes: bytes, goal: capacity{entries, bytes}, gauges: new(gauges),
		kernels: layer{resident: make(map[string]*node)},
		tenants: make(tenants), ranks: newRanks(), owned: make(owned), era: new(lease.Era),
	}
	s.past.bound(entries)
	s.thrash.window = 1
	return s
}

// disabled reports whether nothing may be kept here, off that nothing is stored either (C1).
func (s *state) disabled() bool { return s.stopped || s.off() }
func (s *state) off() bool      { return !s.entries.Allows(1) || !s.bytes.Allows(1) }

// size is the number of entries.
func (s *state) size() int64 { return s.gauges.entries.Load() }

// drained heeds a use that the log has.
func (s *state) drained(n *node) {
	s.touched.Noted()
	s.use(n)
}

// use notes one use of n, in the order of the uses.
func (s *state) use(n *node) {
	if in := n.Value.in; in != nil {
		s.clock++
		n.Value.used = s.clock
		in.touch(n)
		s.ranks.update(n.Value.tenant)
	}
}

// answer says what becomes of a call.
type answer struct {
	role   role
	n      *node
	aboard *making      // whose flight the caller waits for; nil = it need not wait
	late   bool         // it was cancelled before the caller came
	pinned bool         // n, for the caller
	reason fault.Reason // why nothing is there
}

type role uint8

const (
	found   role = iota // n is resident
	started             // the caller's own flight
	joined              // another's
	missing             // a peek found nothing
)

// ask answers the call of m: with what is resident, with the flight of its key, or
// by having m fly.
func (s *state) ask(m *making) answer {
	k := m.call
	if n := s.resident(k); n != nil {
		return answer{role: found, n: n}
	}
	if n := s.apart[k.Key]; n != nil && (k.kind == normal || k.kind == peek) {
		if n.Value.cell.Pin() {
			return answer{role: found, n: n, pinned: !s.revive(n, k)}
		}
		s.gone(n) // its last lease has just ended
	}
	if k.kind != lone {
		if f, late, ok := s.desk(m).Join(k.Key, m.linger); ok {
			if k.kind == normal && credit(&f.n.Value.users, k.Owner) {
				s.credited(f.n, k.Owner)
			}
			s.use(f.n)
			return answer{role: joined, n: f.n, aboard: f, late: late}
		}
	}
	if k.kind == peek {
		return answer{role: missing, reason: s.absence()}
	}
	s.begin(m)
	return answer{role: started, n: m.n, aboard: m}
}

// resident is what a call need not wait for, or nil.
func (s *state) resident(k *call) *node {
	switch k.kind {
	case lone:
		return nil
	case kernel:
		return s.useKernel(k.Key)
	}
	return s.table.Hashed(k.placed.key, k.Key, 0)
}

// desk is where a flight is listed.
func (s *state) desk(m *making) *flight.Desk[string, *making] {
	if m.call.kind == kernel {
		return &s.kernels.flights
	}
	return &s.flights
}

// absence says why what is not there is not.
func (s *state) absence() fault.Reason {
	if s.disabled() {
		return fault.Disabled
	}
	return fault.Absent
}

// place gives n a place in an order, for which others may have to go. It reports
// false if there is none: the floors of others are all there is.
func (s *state) place(n *node) bool {
	t := s.tenantOf(n)
	for !s.entries.Allows(s.size() + 1) {
		victim, _ := s.victim(t, either, always)
		if victim == nil {
			return false
		}
		s.evict(victim, ForEntries)
	}
	s.clock++
	n.Value.used = s.clock
	s.enter(n, t)
	return true
}

// evict takes n, resident or flying, out of its order. A flight stays joinable, and
// a resident that is leased is found by its key until its last lease ends (C13).
func (s *state) evict(n *node, why Cause) {
	if n.Value.resident.Load() {
		n.Value.apart.Store(true)
		s.apart[n.Key] = n
	}
	s.takeOut(n, why)
}

// clear is evict for what is not to be found again.
func (s *state) clear(n *node, why Cause) {
	if n.Value.flight == nil {
		s.past.cleared(n.Key, normal)
		n.Value.claim.Grant(nil)
	}
	s.takeOut(n, why)
	s.gone(n)
}

// taken is why an entry goes that is none of its own any more, and a flight.
const taken Cause = ""

func (s *state) takeOut(n *node, why Cause) {
	s.touched.Add(1)
	s.withdraw(n)
	if n.Value.flight == nil && !n.Value.apart.Load() {
		s.unlist(n)
	}
	if n.Value.resident.Load() {
		n.Value.resident.Store(false)
		s.table.Remove(n)
		s.gauges.bytes.Add(-n.Value.bytes)
		s.dropped = append(s.dropped, n)
		if why != taken {
			s.gauges.evictions.Add(1)
			s.lost = append(s.lost, lost{n.Key, why})
		}
	}
}

// overleased reports whether what was evicted while it was leased is more than the
// capacity: then most of what is in use is beyond it (C13).
func (s *state) overleased() bool {
	return len(s.apart) > 0 && !s.disabled() &&
		(!s.entries.Allows(int64(len(s.apart))) || !s.bytes.Allows(s.gauges.apart.Load()))
}

// revive makes an evicted artefact resident again, as a new entry would become, and
// reports whether it has: not where it does not fit, or is part of what is resident.
// The caller's pin is then the residency's.
func (s *state) revive(n *node, k *call) bool {
	if s.disabled() || !s.keep(n, k) {
		return false
	}
	delete(s.apart, n.Key)
	n.Value.apart.Store(false)
	s.gauges.apart.Add(-n.Value.bytes)
	return true
}

// gone forgets an evicted artefact: its last lease has ended, or it was cleared.
func (s *state) gone(n *node) {
	if n.Value.apart.Swap(false) {
		delete(s.apart, n.Key)
		s.unlist(n)
	}
}

func (s *state) enterTable(n *node) {
	n.Value.resident.Store(true)
	s.table.Put(n)
	n.Value.in.came(n)
	s.gauges.bytes.Add(n.Value.bytes)
	n.Value.tenant.charge(n, 1)
	s.ranks.update(n.Value.tenant)
}

// resize sets the capacities that are given. Calls of trim follow.
func (s *state) resize(entries, bytes limit.Limit) {
	s.goal = capacity{entries.Or(s.goal.entries), bytes.Or(s.goal.bytes)}
	s.past.bound(s.goal.entries)
	if !s.goal.entries.Allows(1) || !s.goal.bytes.Allows(1) {
		s.entries, s.bytes = s.goal.entries, s.goal.bytes
		s.era.End()
		s.era = new(lease.Era)
		s.flights.VoidAll()
		s.kernels.flights.VoidAll()
	}
}

// trim evicts as much of the surplus as a turn may, and reports whether exactly that has
// gone (C2). Until then what is there is the bound.
func (s *state) trim() (over bool) {
	if s.entries == s.goal.entries && s.bytes == s.goal.bytes && s.disabled() {
		return s.empty()
	}
	for !s.goal.entries.Allows(s.size()) && s.touched.Left() {
		n, over := s.surplus(either, s.touched.Left)
		if !over {
			break
		}
		s.evict(n, ForEntries)
	}
	for !s.goal.bytes.Allows(s.gauges.bytes.Load()) && s.touched.Left() {
		n, over := s.surplus(complete, s.touched.Left)
		if !over {
			break
		}
		s.evict(n, ForBytes)
	}
	s.entries = atLeast(s.goal.entries, s.size())
	s.bytes = atLeast(s.goal.bytes, s.gauges.bytes.Load())
	for s.tooManyKernels() && s.touched.Left() {
		s.evictKernel(s.kernels.unused.oldest)
	}
	return s.entries == s.goal.entries && s.bytes == s.goal.bytes && !s.tooManyKernels()
}

func atLeast(l limit.Limit, n int64) limit.Limit {
	if l.Allows(n) {
		return l
	}
	return limit.Of(n)
}

// empty evicts as much as a turn may, here and in the kernel layer, and reports whether
// nothing is left. Nothing may stay any more of what flies.
func (s *state) empty() (over bool) {
	for n := s.entry(); n != nil; n = s.entry() {
		if !s.touched.Left() {
			return false
		}
		s.clear(n, Cleared)
	}
	for _, n := range s.apart {
		if !s.touched.Left() {
			return false
		}
		s.clear(n, Cleared)
	}
	return s.emptyKernels()
}

// credited notes the first use of n by an owner.
func (s *state) credited(n *node, owner string) {
	if n.Value.known() && n.Value.users.Load().has(owner) {
		s.owned.add(owner, n)
	}
}

// release takes an owner off as much of what it used as a turn may, evicts what nobody
// else used (C10), and reports whether uses is empty.
func (s *state) release(owner string, uses uses) (over bool) {
	for n := range uses {
		if !s.touched.Left() {
			return false
		}
		s.touched.Add(1)
		delete(uses, n)
		if !n.Value.known() || !discredit(&n.Value.users, owner) {
			continue
		}
		if m := n.Value.flight; m != nil {
			s.flights.Void(m)
		}
		s.clear(n, OfOwner)
	}
	return true
}

// stop admits nobody any more, and takes flights off their desks as far as a turn goes,
// each of which it gives to end. It reports whether none is left.
func (s *state) stop(end func(*making)) (over bool) {
	s.stopped = true
	for _, d := range []*flight.Desk[string, *making]{&s.flights, &s.kernels.flights} {
		for m := range d.All() {
			if !s.touched.Left() {
				return false
			}
			s.touched.Add(1)
			d.End(m.call.Key, m)
			end(m)
		}
	}
	return true
}
