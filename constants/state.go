package constants

import (
	"container/list"
	"math"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/priority"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/internal/touched"
)

// tensor is what stands in the table: resident until gone is set.
type tensor struct {
	cell  lease.Cell
	hits  atomic.Uint64 // beside the pins: a hit writes there anyway
	gone  atomic.Bool
	apart atomic.Bool // in the state's apart, or was so until a flush
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
	key      Key
	hash     uint64 // of key, as the table places it
	bytes    int64
	cost     time.Duration
	callback func(Removal)
	line     atomic.Pointer[line] // nil = nobody who waits can compute; the actor's
	owner    *Promise             // who has to deliver; the shell's
}

// line is those who wait for a tensor and can compute it, whoever its owner is. An owner
// that gives up hands it on as a whole.
type line struct {
	volunteers list.List            // of *waiter
	flight     flight.Flight[*node] // which they are aboard of; the shell's
}

// state is the pure core of one engine: what is resident, what is reserved, and
// what has to go. It knows no channel, clock, flight or goroutine.
type state struct {
	table    *table.Table[tensor]
	worth    worth         // what is resident
	apart    map[Key]*node // evicted while they were leased, and leased still (C13)
	flights  flight.Desk[Key, *pending]
	capacity int64 // bytes; noBound = unlimited
	policy   Policy
	resident int64
	reserved int64
	gone     []removal // since the last take
	flushed  []flushed // oldest first; out of the table, and not gone yet
	leased   int64     // bytes of those in apart
	runs     runs
	touched  touched.Gauge
}

// removal is a node that has left the table.
type removal struct {
	node  *node
	why   Removal
	calls *list.List // its callbacks; the shell's
}

// flushed is what one flush took out.
type flushed struct {
	nodes []*node
	why   Removal
}

const noBound = math.MaxInt64

// worth has the resident tensors, the cheapest to make again first, by compute seconds
// per byte.
type worth = priority.Queue[*node]

func newWorth() worth {
	return priority.New(func(a, b *node) bool { return pressure.Cheaper(a.Value.item(), b.Value.item()) < 0 },
		func(n *node) *int { return &n.Value.place })
}

// mostVictims is how many tensors one newcomer displaces. A miss that displaces none may
// have looked at as many.
const mostVictims = 1024

func newState(hash func(string) uint64, capacity int64, policy Policy) *state {
	s := &state{table: table.New[tensor](hash), worth: newWorth(), apart: make(map[Key]*node), capacity: capacity, policy: policy}
	s.runs.init()
	return s
}

// admit decides on a key that is neither resident nor pending: an owner with its
// bytes reserved, or a bypass.
func (s *state) admit(p *pending) Bypass {
	s.runs.begin(p.key)
	switch {
	case s.capacity == 0:
		s.runs.end(p.key, refused)
		return Disabled
	case !s.room(p):
		s.runs.end(p.key, refused)
		return Full
	}
	s.reserved += p.bytes
	s.flights.Begin(p.key, p, 0)
	return ""
}

// room reports whether there is room for p, for which others may have gone.
func (s *state) room(p *pending) bool { return s.fits(p.bytes) || s.displace(p) }

// fits reports whether n bytes more stay within the capacity. No sum wraps: what is
// resident and reserved is within it, also where it is noBound.
func (s *state) fits(n int64) bool {
	return n <= s.capacity && s.resident+s.reserved <= s.capacity-n
}

// displace removes the tensors that are cheapest to make again, by compute
// seconds per byte, until p fits; but only if all of them together cost less
// than p (SPEC T4), and are at most mostVictims.
func (s *state) displace(p *pending) bool {
	if s.policy != Cost || p.bytes > s.capacity || s.reserved > s.capacity-p.bytes {
		return false
	}
	over := s.resident + s.reserved - (s.capacity - p.bytes)
	var victims []*node
	left := p.cost // what p is worth beyond them: a difference of costs does not wrap
	for over > 0 && left > 0 && len(victims) < mostVictims {
		s.touched.Add(1)
		victim := s.worth.Pop()
		victims = append(victims, victim)
		over -= victim.Value.bytes
		left -= victim.Value.cost
	}
	if over > 0 || left <= 0 {
		for _, n := range victims {
			s.worth.Push(n)
		}
		return false
	}
	for _, victim := range victims {
		s.evict(victim)
	}
	return true
}

// found is the tensor of a key that is resident, or in apart; or nil.
func (s *state) found(k Key, hash uint64) *node {
	if n := s.table.Hashed(hash, k.ID, k.Backend); n != nil {
		return n
	}
	return s.apart[k]
}

// evict takes a resident tensor out for others. One that is leased is found by its key
// until its last lease ends (C13). It reports false if n is not resident any more.
func (s *state) evict(n *node) bool {
	if !s.remove(n, Evicted) {
		return false
	}
	if n.Value.cell.Leased() { // what is pinned from now on sees that it is gone
		if gone := s.apart[keyOf(n)]; gone != nil { // its last lease has ended, of which the actor is told late
			s.forget(gone)
		}
		s.apart[keyOf(n)] = n
		s.leased += n.Value.bytes
		n.Value.apart.Store(true)
	}
	return true
}

// revive has what is in apart become resident again, if there is room for it, and reports
// whether it has. It then has a pin for that.
func (s *state) revive(n *node) bool {
	p := &pending{key: keyOf(n), bytes: n.Value.bytes, cost: n.Value.cost}
	if !n.Value.apart.Load() || !s.room(p) {
		return false
	}
	s.forget(n)
	n.Value.cell.Pin()
	n.Value.gone.Store(false)
	s.enter(n)
	return true
}

// forget takes a tensor out of apart, if it is there.
func (s *state) forget(n *node) (there bool) {
	if there = s.apart[keyOf(n)] == n; there {
		delete(s.apart, keyOf(n))
		s.leased -= n.Value.bytes
		n.Value.apart.Store(false)
	}
	return there
}

// newNode is the tensor that p will become. It may be called outside a turn.
func (s *state) newNode(p *pending) *node {
	n := s.table.HashedNode(p.hash, p.key.ID, p.key.Backend)
	n.Value.bytes, n.Value.cost = p.bytes, p.cost
	return n
}

// deliver ends a pending tensor with its node, and reports whether it is resident
// now: not if it was flushed or removed meanwhile.
func (s *state) deliver(p *pending, n *node) bool {
	if !s.drop(p) {
		n.Value.gone.Store(true)
		s.runs.end(p.key, cleared)
		return false
	}
	s.runs.end(p.key, evicted) // before there is another run
	s.enter(n)
	return true
}

func (s *state) enter(n *node) {
	s.resident += n.Value.bytes
	s.table.Put(n)
	s.worth.Push(n)
}

// fail ends a pending tensor without a node.
func (s *state) fail(p *pending, how again) {
	s.drop(p)
	s.runs.end(p.key, how)
}

// inherit puts heir, which was asked for by somebody who waits, in the place of
// p, whose owner gave up. It reports false, and changes nothing, if heir has
// more bytes than p and they neither fit nor displace others.
func (s *state) inherit(p, heir *pending) bool {
	may := s.flights.May(p)
	if may {
		s.reserved -= p.bytes
		if !s.room(heir) {
			s.reserved += p.bytes
			return false
		}
		s.reserved += heir.bytes
	}
	s.runs.end(p.key, failed)
	s.runs.begin(p.key)
	heir.line.Store(p.line.Load())
	s.flights.End(p.key, p)
	s.flights.Begin(p.key, heir, 0)
	if !may {
		s.flights.Void(heir)
	}
	return true
}

// heir takes out the waiter that can compute and has waited longest for p, or gives nil.
func (s *state) heir(p *pending) *waiter {
	l := p.line.Load()
	if l == nil || l.volunteers.Len() == 0 {
		return nil
	}
	return l.volunteers.Remove(l.volunteers.Front()).(*waiter)
}

// join takes a caller aboard a pending tensor; w is not nil if it can compute. first
// says that it begins a line.
func (s *state) join(k Key, w *waiter) (p *pending, first, found bool) {
	p, _, found = s.flights.Join(k, 0)
	if found && w != nil {
		if w.line = p.line.Load(); w.line == nil {
			first, w.line = true, new(line)
			p.line.Store(w.line)
		}
		w.place = w.line.volunteers.PushBack(w)
	}
	return p, first, found
}

// leave takes a caller off a pending tensor. The owner is aboard until the end.
func (s *state) leave(p *pending) { s.flights.Leave(p, time.Time{}) }

// withdraw forgets a waiter that could compute, if it is still one.
func (s *state) withdraw(w *waiter) { w.line.volunteers.Remove(w.place) }

// drop ends a pending tensor and its reservation, and reports whether it could
// have become resident.
func (s *state) drop(p *pending) bool {
	_, may := s.flights.End(p.key, p)
	if may {
		s.reserved -= p.bytes
	}
	return may
}

// remove takes a resident tensor out; it reports false if n is none any more.
func (s *state) remove(n *node, why Removal) bool {
	s.touched.Add(1)
	if !s.table.Remove(n) {
		return false
	}
	s.worth.Remove(n)
	n.Value.gone.Store(true)
	s.resident -= n.Value.bytes
	s.gone = append(s.gone, removal{node: n, why: why})
	return true
}

// removeKey takes a key out, resident or pending, and reports whether it was there.
func (s *state) removeKey(k Key, hash uint64) bool {
	if n := s.found(k, hash); n != nil {
		s.runs.end(k, cleared)
		return s.forget(n) || s.remove(n, Removed)
	}
	if p, found := s.flights.Find(k); found && s.flights.May(p) {
		s.reserved -= p.bytes
		s.flights.Void(p)
		return true
	}
	return false
}

// flush takes everything out and keeps what is being computed from staying. It costs
// the same however much there is; drain does the rest.
func (s *state) flush(why Removal) {
	s.table.Clear()
	s.flushed = append(s.flushed, flushed{s.worth.Items(), why})
	s.worth, s.apart = newWorth(), make(map[Key]*node)
	s.resident, s.reserved, s.leased = 0, 0, 0
	s.runs.flushes++
	s.flights.VoidAll()
}

// drain has up to that many flushed tensors go, and reports whether none is left.
func (s *state) drain(most int) bool {
	for most > 0 && len(s.flushed) > 0 {
		f := &s.flushed[0]
		n := min(most, len(f.nodes))
		for _, n := range f.nodes[:n] {
			n.Value.gone.Store(true)
			s.gone = append(s.gone, removal{node: n, why: f.why})
		}
		s.touched.Add(n)
		most -= n
		if f.nodes = f.nodes[n:]; len(f.nodes) == 0 {
			s.flushed = s.flushed[1:]
		}
	}
	return len(s.flushed) == 0
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
