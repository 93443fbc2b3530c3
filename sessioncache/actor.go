package sessioncache

import (
	"fmt"
	"time"

	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/pool"
)

// handler is a turn of the actor: the uses that came before the message, the
// message, and what the state wants done.
func (s *Session) handler(cfg Config) func(message) {
	st, logger := s.state, cfg.Logger
	var drained func() // set by closing
	untold := false
	return func(m message) {
		if s.log.DrainFor(s.actor.Queued, st.drained) {
			st.heeded()
		}
		after := s.event(m)
		if m, ok := m.(emptying); ok && m.left.over {
			drained = m.drained
		}
		st.share.spare()
		s.perform(&st.effects)
		st.touched.Turn()
		if after != nil {
			after()
		}
		if drained != nil && st.idle() {
			drained()
		}
		if st.published.untold.Load() > 0 && !untold {
			untold = true
			s.warning.Throw(func() {
				logger.Warn("session: Evicted does not return in time: it is not told of each eviction any more, see Stats", "session", s.name, "waiting", lease.MostUntold)
			})
		}
		if n := uint64(st.requests.all.Warnings()); n > st.published.warnings.Load() {
			st.published.warnings.Store(n)
			c := st.published.capacity()
			bounds := []any{"session", s.name, "groups", c.Groups.String(), "bytes", c.Bytes.String()}
			if cfg.Pool != nil {
				bounds = append(bounds, "pool_bytes", cfg.Pool.capacity.String())
			}
			s.warning.Throw(func() {
				logger.Warn("session: thrash: more shapes are in use than fit; Advice, or kiln shapes advise, says what would", bounds...)
			})
		}
	}
}

// event translates a message to an event of the state and answers it. after, if
// not nil, is for when what the turn released is in the bin.
func (s *Session) event(m message) (after func()) {
	st := s.state
	switch m := m.(type) {
	case acquire:
		if !st.acquireSifted(&m.sifts, m.use) || !st.backRoomy(&m.turns, m.use.compiled) {
			s.actor.Tell(m)
			break
		}
		s.admit(m)
	case *write:
		if !st.writeSifted(&m.writing) {
			s.actor.Tell(m)
		} else if m.turns > 0 || m.take() {
			s.set(m)
		}
	case take:
		s.take(m)
	case *ask:
		if m.ended && m.failed == nil && !st.createdSifted(&m.sifts, &m.call, m.value.Bytes) {
			s.actor.Tell(m) // one that asks needs no room, and its leaving must not overtake it
		} else if m.ended {
			s.created(m)
		} else {
			st.ask(&m.call)
		}
	case left:
		st.left(&m.ask.call, time.Now())
	case expired:
		st.expired(m.flight, time.Now())
	case vacated:
		st.vacated(m.group)
		m.Reply.Send(struct{}{})
	case roomMade:
		bytes := int64(0)
		if m.claim.Accept() {
			bytes = m.claim.Bytes()
		}
		st.share.made(bytes)
		switch held := m.held.(type) {
		case *writing:
			s.set(held.of.(*write))
		case *call:
			s.created(askOf(held))
		}
	case give:
		freed, more := st.give(&m.turns, m.gift.Bytes-m.given, st.floor, policy.Busy, ForPool)
		if m.given += freed.Bytes; more && !st.closed { // else this actor may end before it comes again
			s.actor.Tell(m)
			break
		}
		m.gift.Answered()
		st.touched.Add(pool.MostAsked)
	case shrink:
		freed, more := st.shrink(m.turns, m.bytes, m.tier)
		return func() { s.published.frees.bin.Soon(func() { m.Reply.Send(shrunk{freed, more}) }) }
	case drain:
	case hold:
		st.hold(m.owner)
	case announce:
		st.announce(m.shapes)
	case resize:
		s.resized(m)
	case intern:
		m.Reply.Send(st.intern(m.name, m.hash))
	case looking:
		if st.closed {
			m.Reply.Fail(errClosed)
			break
		}
		m.at(st)
		m.Reply.Send(struct{}{})
	case save:
		switch {
		case st.closed:
			m.Reply.Fail(errClosed)
		case st.save(&m.of):
			m.Reply.Send(m.of)
		default:
			s.actor.Tell(m)
		}
	case reset:
		return s.cleared(m)
	case closing:
		if st.close() {
			m.Reply.Send(struct{}{})
		} else {
			s.actor.Tell(m)
		}
	case emptying:
		if !st.clear(m.left) {
			s.actor.Tell(m)
		}
	default:
		panic(fmt.Sprintf("sessioncache: unknown message %T", m)) // programmer error only
	}
	return nil
}

// resized carries a resize on, and answers it when that is done.
func (s *Session) resized(m resize) {
	st := s.state
	switch {
	case !m.set:
		if err := st.resize(m.groups, m.bytes); err != nil {
			m.Reply.Fail(err)
			return
		}
	case st.closed:
		m.Reply.Fail(errClosed)
		return
	}
	if m.set = true; st.surplus(&m.sifts) {
		m.Reply.Send(struct{}{})
	} else {
		s.actor.Tell(m)
	}
}

// cleared carries a reset on, and answers it when that is done.
func (s *Session) cleared(m reset) (after func()) {
	st := s.state
	if m.left == nil {
		left, err := st.reset(m.owner, m.all)
		if left == nil {
			m.Reply.Answer(struct{}{}, err)
			return nil
		}
		m.left = left
	}
	switch {
	case st.closed:
		m.Reply.Fail(errClosed)
	case !st.clear(m.left):
		s.actor.Tell(m)
	case m.owner == "":
		return func() { s.published.frees.bin.Fence(func() { m.Reply.Send(struct{}{}) }) }
	default:
		m.Reply.Send(struct{}{})
	}
	return nil
}

// set carries Set out, unless it has to wait for room.
func (s *Session) set(m *write) {
	switch out, err := s.state.set(&m.writing); out {
	case over:
		m.Reply.Answer(struct{}{}, err)
	case again:
		s.actor.Tell(m)
	}
}

// created carries the end of a creator out, unless it has to wait for room.
func (s *Session) created(a *ask) {
	if s.state.created(&a.call, a.value, a.failed) == again {
		s.actor.Tell(a)
	}
}

// admit answers an acquire with a group that is held for the asker.
func (s *Session) admit(m acquire) {
	g, err := s.state.acquire(m.use)
	if err != nil {
		m.Reply.Fail(err)
		return
	}
	phase := g.grace.enter()
	if !m.Reply.Send(admitted{g, phase}) {
		g.grace.leave(phase)
		s.state.vacated(g)
	}
}

// take answers a take, or drops the pin if the asker has left.
func (s *Session) take(m take) {
	if m.only && m.seen != m.group.of.candidate(m.group, m.name, m.hash, m.lane) {
		m.Reply.Send(nil)
		return
	}
	n, err := s.state.take(m.group, m.name, m.hash, m.lane)
	if !m.Reply.Answer(n, err) && err == nil {
		s.state.drop(n)
	}
}

// empty forgets what is in a slice and keeps its memory.
func empty[E any](s *[]E) {
	if len(*s) > 0 {
		clear(*s)
		*s = (*s)[:0]
	}
}

func askOf(c *call) *ask { return c.of.(*ask) }

// perform runs the effects of a turn and empties them.
func (s *Session) perform(e *effects) {
	if e.memory != 0 {
		s.published.frees.memory.Add(e.memory)
	}
	s.published.frees.bin.Throw(e.trash...)
	for _, c := range e.start {
		s.create(askOf(c).run)
	}
	for _, c := range e.answer {
		if a := askOf(c); c.other != nil {
			a.flight.Refer(&askOf(c.other).flight, c.late)
		} else {
			a.flight.Finish(c.node, c.err, release)
		}
	}
	for _, c := range e.cancel {
		askOf(c).flight.Linger(c.rest, func() { s.send(expired{flight: c}) })
	}
	for _, l := range e.lost {
		if !s.telling.Offer(func() { s.evicted(l) }, lease.MostUntold) {
			s.published.untold.Add(1)
		}
	}
	for _, g := range e.vacated {
		s.actor.Tell(vacated{group: g})
	}
	e.memory = 0
	empty(&e.vacated)
	empty(&e.lost)
	empty(&e.trash)
	empty(&e.start)
	empty(&e.answer)
	empty(&e.cancel)
}

// release gives the pin of a flight back.
func release(n *node) {
	if n.Value.cell.Drop() {
		n.Value.group.of.frees.bin.Throw(trash{node: n})
	}
}
