package artefacts

import (
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// begin has m fly. Where something may be kept the flight takes its place now.
func (s *state) begin(m *making) {
	k := m.call
	m.n = s.table.HashedNode(k.placed.key, k.Key, 0)
	m.n.Value.users.Store(usersOf(k.Owner))
	m.n.Value.flight = m
	m.origin = Outcome{Event: Miss, Reason: s.absence()}
	m.at = s.flying.PushBack(m)
	s.countFlights()
	switch {
	case k.kind == lone:
		s.flights.BeginLone(m, m.linger)
		if k.Unhashable != "" {
			m.origin.Reason, m.origin.Field = fault.KeyRefused, k.Unhashable
		}
		return
	case k.kind == kernel:
		s.kernels.flights.Begin(k.Key, m, 0)
		return
	}
	s.flights.Begin(k.Key, m, m.linger)
	if s.disabled() {
		s.flights.Void(m)
		return
	}
	m.stored = k.given == nil && k.Load != nil && k.bars == ""
	if k.bars != "" {
		m.origin.Reason, m.origin.Field = k.barred, k.bars
	}
	part := s.part(k)
	if part != nil {
		s.use(part)
	}
	if part != nil && part.Value.heir == nil {
		m.part, part.Value.heir = part, m // its place is the flight's: the two will be one entry (D3)
	} else {
		s.place(m.n)
	}
	s.owned.add(k.Owner, m.n)
}

// part is the entry that what k makes is to take over, resident or flying, or nil.
func (s *state) part(k *call) *node {
	n := s.other(k.Part, k.placed.part)
	if f, ok := s.flights.Find(k.Part); n == nil && ok {
		n = f.n
	}
	if n == nil || n.Value.in == nil {
		return nil
	}
	return n
}

// other is the resident of a part's or a whole's key, or nil. No key is empty: a hash may
// rely on that.
func (s *state) other(key string, hash uint64) *node {
	if key == "" {
		return nil
	}
	return s.table.Hashed(hash, key, 0)
}

// disown has the place of the part be the part's alone.
func (m *making) disown() {
	if m.part != nil {
		m.part.Value.heir, m.part = nil, nil
	}
}

// left takes a caller off a flight. alone says that it was the last one: the flight
// then lingers, or, where that time is 0, has no place any more, and its creator is
// to end (SPEC F4).
func (s *state) left(m *making, now time.Time) (alone bool, linger time.Duration) {
	if alone, linger = s.desk(m).Leave(m, now); alone && linger == 0 {
		s.withdraw(m.n)
		m.disown()
	}
	return alone, linger
}

// expired ends the linger time of a flight. It reports whether nobody came
// meanwhile: then the flight has no place any more, and its creator is to end.
func (s *state) expired(m *making, now time.Time) bool {
	over := s.desk(m).Expire(m, now)
	if over {
		s.withdraw(m.n)
		m.disown()
	}
	return over
}

// land ends a flight with a value and reports whether that is resident now: not if
// it was cleared meanwhile, is larger than all there is (C1, F7), or finds the
// floors of others in its way, or is part of what is resident. One that had lost its
// place gets another (C4), and its part goes (D3).
func (s *state) land(m *making) (resident bool) {
	keep := s.end(m)
	end := refused
	switch {
	case m.call.kind == lone:
		if m.call.Unhashable == "" {
			end = forced
		}
	case !keep || s.disabled():
		if m.origin.Reason != fault.Disabled {
			end = cleared
		}
	case m.call.kind == kernel:
		resident = true
		s.landKernel(m.n)
	default:
		resident = s.keep(m.n, m.call)
	}
	if resident {
		end = evicted // before there is another run
		m.n.Value.claim.Grant(s.era)
	} else {
		s.takeOut(m.n, taken)
	}
	s.flown(m, end)
	return resident
}

// keep has n, which k asked for, become resident, if it fits: then its part goes, whose
// room it has. It looks for bytes first: what goes for them leaves its place, too.
func (s *state) keep(n *node, k *call) bool {
	if s.other(k.Whole, k.placed.whole) != nil {
		return false
	}
	part, t, room := s.takePart(k)
	if fits, _ := s.shrinkBytes(n, room, always); !fits || n.Value.in == nil && !s.place(n) {
		s.withdraw(n)
		if part != nil {
			s.enter(part, t)
		}
		return false
	}
	if part == nil {
		part = s.apart[k.Part]
	}
	if part != nil {
		s.takeOut(part, taken)
		s.gone(part)
	}
	s.enterTable(n)
	return true
}

// takePart takes the resident part of what k asked for out of its order, so that it does
// not go for its whole, and gives it, its tenant and the room that it has; or nil.
func (s *state) takePart(k *call) (part *node, t *tenant, room int64) {
	if part = s.other(k.Part, k.placed.part); part != nil {
		t, room = part.Value.tenant, part.Value.bytes
		s.withdraw(part)
	}
	return part, t, room
}

// fail ends a flight without a value.
func (s *state) fail(m *making) {
	s.end(m)
	s.takeOut(m.n, taken)
	s.flown(m, failed)
}

// end ends a flight. keep says that its value, if there is one, may stay.
func (s *state) end(m *making) (keep bool) {
	_, keep = s.desk(m).End(m.call.Key, m)
	m.n.Value.flight = nil
	m.disown()
	s.flying.Remove(m.at)
	s.countFlights()
	return keep
}

func (s *state) countFlights() {
	s.gauges.flights.Store(int64(s.flying.Len()))
	if oldest := s.flying.Front(); oldest != nil {
		s.gauges.oldest.Store(oldest.Value.(*making).began.UnixNano())
	}
}
