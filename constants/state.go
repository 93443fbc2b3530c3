package constants

import (
	"container/list"
	"math"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/internal/touched"
)

// tensor is what stands in the table: resident until gone is set.
type tensor struct {
	cell  lease.Cell
	hits  atomic.Uint64 // beside the pins: a hit writes there anyway
	gone  atomic.Bool
	value any
	bytes int64
	cost  time.Duration // what it took to compute
	place int           // in the order by worth; the actor's
	calls callbacks
}

type node = table.Node[tensor]

// pending is a tensor that its owner is computing: a flight whose first caller is
// the owner. Its bytes are reserved as long as it may become resident.
type pending struct {
	flight.Seats
	key        Key
	bytes      int64
	cost       time.Duration
	callback   func(Removal)
	volunteers list.List // of *waiter: those aboard that can compute
	owner      *Promise  // who has to deliver; the shell's
}

// state is the pure core of one engine: what is resident, what is reserved, and
// what has to go. It knows no channel, clock, flight or goroutine.
type state struct {
	table    *table.Table[tensor]
	worth    worth // what is resident, the cheapest to make again first
	flights  flight.Desk[Key, *pending]
	capacity int64 // bytes; noBound = unlimited
	policy   Policy
	resident int64
	reserved int64
	gone     []removal // since the last drain
	touched  touched.Gauge
}

// removal is a node that has left the table.
type removal struct {
	node *node
	why  Removal
}

const noBound = math.MaxInt64

func newState(hash func(string) uint64, capacity int64, policy Policy) *state {
	return &state{table: table.New[tensor](hash), capacity: capacity, policy: policy}
}

// admit decides on a key that is neither resident nor pending: an owner with its
// bytes reserved, or a bypass.
func (s *state) admit(p *pending) Bypass {
	switch {
	case s.capacity == 0:
		return Disabled
	case !s.fits(p.bytes) && !s.displace(p):
		return Full
	}
	s.reserved += p.bytes
	s.flights.Begin(p.key, p, 0)
	return ""
}

// fits reports whether n bytes more stay within the capacity.
func (s *state) fits(n int64) bool {
	return n <= s.capacity && s.resident+s.reserved <= s.capacity-n // also without a bound: no sum wraps (SPEC Q5)
}

// displace removes the tensors that are cheapest to make again, by compute
// seconds per byte, until p fits; but only if all of them together cost less
// than p (SPEC T4).
func (s *state) displace(p *pending) bool {
	if s.policy != Cost || p.bytes > s.capacity || s.reserved > s.capacity-p.bytes {
		return false
	}
	over := s.resident + s.reserved - (s.capacity - p.bytes)
	var victims []*node
	left := p.cost // of its worth
	for over > 0 && left > 0 {
		s.touched.Add(1)
		victim := s.worth.pop()
		victims = append(victims, victim)
		over -= victim.Value.bytes
		left -= victim.Value.cost // neither is negative: it does not wrap
	}
	if over > 0 || left <= 0 {
		for _, n := range victims {
			s.worth.push(n)
		}
		return false
	}
	for _, victim := range victims {
		s.remove(victim, Evicted)
	}
	return true
}

// newNode is the tensor that p will become. It may be called outside a turn.
func (s *state) newNode(p *pending) *node {
	n := s.table.NewNode(p.key.ID, p.key.Backend)
	n.Value.bytes, n.Value.cost, n.Value.place = p.bytes, p.cost, notThere
	return n
}

// deliver ends a pending tensor with its node, and reports whether it is resident
// now: not if it was flushed or removed meanwhile.
func (s *state) deliver(p *pending, n *node) bool {
	if !s.drop(p) {
		n.Value.gone.Store(true)
		return false
	}
	s.resident += p.bytes
	s.table.Put(n)
	s.worth.push(n)
	return true
}

// inherit puts heir, which was asked for by somebody who waits, in the place of
// p, whose owner gave up. It reports false, and changes nothing, if heir has
// more bytes than p and they do not fit.
func (s *state) inherit(p, heir *pending) bool {
	may := s.flights.May(p)
	if may {
		s.reserved -= p.bytes
		if !s.fits(heir.bytes) {
			s.reserved += p.bytes
			return false
		}
		s.reserved += heir.bytes
	}
	s.flights.End(p.key, p)
	s.flights.Begin(p.key, heir, 0)
	if !may {
		s.flights.Void(heir)
	}
	return true
}

// heir takes out the waiter that can compute and has waited longest for p, or gives nil.
func (s *state) heir(p *pending) *waiter {
	e := p.volunteers.Front()
	if e == nil {
		return nil
	}
	return p.volunteers.Remove(e).(*waiter)
}

// join takes a caller aboard a pending tensor; w is not nil if it can compute.
func (s *state) join(k Key, w *waiter) (p *pending, found bool) {
	p, _, found = s.flights.Join(k, 0)
	if found && w != nil {
		w.pending, w.place = p, p.volunteers.PushBack(w)
	}
	return p, found
}

// leave takes a caller off a pending tensor. The owner is aboard until the end.
func (s *state) leave(p *pending) { s.flights.Leave(p, time.Time{}) }

// withdraw forgets a waiter that could compute, if it is still one.
func (s *state) withdraw(w *waiter) { w.pending.volunteers.Remove(w.place) }

// drop ends a pending tensor and its reservation, and reports whether it could
// have become resident.
func (s *state) drop(p *pending) bool {
	_, may := s.flights.End(p.key, p)
	if may {
		s.reserved -= p.bytes
	}
	return may
}

func (s *state) remove(n *node, why Removal) {
	s.touched.Add(1)
	s.table.Remove(n)
	s.worth.drop(n)
	n.Value.gone.Store(true)
	s.resident -= n.Value.bytes
	s.gone = append(s.gone, removal{n, why})
}

// removeKey takes a key out, resident or pending, and reports whether it was there.
func (s *state) removeKey(k Key) bool {
	if n := s.table.Lookup(k.ID, k.Backend); n != nil {
		s.remove(n, Removed)
		return true
	}
	if p, found := s.flights.Find(k); found && s.flights.May(p) {
		s.reserved -= p.bytes
		s.flights.Void(p)
		return true
	}
	return false
}

// flush takes everything out and keeps what is being computed from staying.
func (s *state) flush(why Removal) {
	first := len(s.gone)
	s.touched.Add(s.table.Len())
	s.table.All(func(n *node) bool {
		s.gone = append(s.gone, removal{n, why})
		return true
	})
	s.table.Clear()
	s.worth = nil
	for _, r := range s.gone[first:] { // as in remove: who sees it gone does not find it any more
		r.node.Value.gone.Store(true)
	}
	s.resident, s.reserved = 0, 0
	s.flights.VoidAll()
}

// setCapacity flushes, whatever the value is (SPEC T2).
func (s *state) setCapacity(bytes int64) {
	s.capacity = bytes
	s.flush(Flushed)
}

// take empties the list of what has gone.
func (s *state) take() []removal {
	gone := s.gone
	s.gone = nil
	return gone
}
