package constants

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/touched"
)

type message interface{ isMessage() }

type (
	getMsg struct {
		pending *pending // what the caller would own, with its promise
		compute bool     // it can
		reply   actors.Reply[answer]
	}
	fulfilMsg struct {
		owner *Promise
		node  *node
		reply actors.Reply[struct{}]
	}
	endMsg struct { // an owner without a value
		owner *Promise
		err   error
	}
	leaveMsg struct { // a caller that was answered has given up
		asked  *pending // what it would have owned
		waiter *waiter  // nil = one that cannot compute
		aboard *pending // what it came to wait for, if it left before the end; or nil
	}
	removeMsg struct {
		key   Key
		hash  uint64
		reply actors.Reply[bool]
	}
	capacityMsg struct {
		bytes   int64
		drained chan struct{} // closed when everything has gone, and the telling of it has begun
		failed  chan error    // of the turn
	}
	stopMsg  struct{} // the first step of a close: callers go, then tensors
	closeMsg struct {
		reply actors.Reply[<-chan struct{}] // what capacityMsg has
	}
	forgetMsg struct{ node *node } // its last lease has ended
	drainMsg  struct{}             // the next piece of what was flushed
)

func (getMsg) isMessage()      {}
func (fulfilMsg) isMessage()   {}
func (endMsg) isMessage()      {}
func (leaveMsg) isMessage()    {}
func (removeMsg) isMessage()   {}
func (capacityMsg) isMessage() {}
func (stopMsg) isMessage()     {}
func (closeMsg) isMessage()    {}
func (forgetMsg) isMessage()   {}
func (drainMsg) isMessage()    {}

// Fail answers a request whose turn panicked.
func (m getMsg) Fail(err error)      { m.reply.Fail(err) }
func (m fulfilMsg) Fail(err error)   { m.reply.Fail(err) }
func (m removeMsg) Fail(err error)   { m.reply.Fail(err) }
func (m capacityMsg) Fail(err error) { m.failed <- err }
func (m closeMsg) Fail(err error)    { m.reply.Fail(err) }

// answer to a getMsg: one of lease, owner, bypass and aboard is set.
type answer struct {
	lease  *Lease
	owner  *Promise
	bypass Bypass
	aboard *pending // which the caller waits for
	waiter *waiter  // the caller, if it may become the owner
}

// shell runs the state's turns. Its fields belong to the actor.
type shell struct {
	e      *Engine
	state  *state
	drains []chan struct{}    // for each flush that has not ended
	closed atomic.Bool        // or stopped: nobody is admitted any more; read by anybody
	gone   lease.Bin[removal] // tells of removals
	idle   lease.Bin[*node]   // drops the pins of their residency
	let    func(*node)        // ends a flight's hold; a value that all have left is freed elsewhere: one of them may be a creator
}

func (s *shell) handle(m message) {
	switch m := m.(type) {
	case getMsg:
		s.get(m)
	case fulfilMsg:
		s.fulfil(m)
	case endMsg:
		s.end(m.owner, m.err)
	case leaveMsg:
		s.leave(m)
	case removeMsg:
		there := s.state.removeKey(m.key, m.hash)
		s.publish()
		m.reply.Send(there)
	case capacityMsg:
		s.state.setCapacity(m.bytes)
		s.publish()
		s.drains = append(s.drains, m.drained)
		s.drain()
	case interface{ handle(*shell) }:
		m.handle(s)
	case stopMsg:
		s.closed.Store(true)
		s.drain()
	case closeMsg:
		s.closed.Store(true)
		s.state.flush(Closed)
		s.publish()
		drained := make(chan struct{})
		s.drains = append(s.drains, drained)
		m.reply.Send(drained)
		s.drain()
	case forgetMsg:
		s.state.forget(m.node)
	case drainMsg:
		s.drain()
	}
	s.publish()
	s.letGoLater()
	s.state.touched.Turn()
}

// drain lets a piece of what was flushed go. Other messages have their turn before the
// next piece.
func (s *shell) drain() {
	all := (!s.closed.Load() || s.endAll()) && s.state.drain(touched.Most/2)
	s.letGoLater()
	if !all {
		s.e.tell(drainMsg{})
		return
	}
	for _, done := range s.drains {
		close(done)
	}
	s.drains = nil
}

// publish makes the counts right for readers. It comes before every answer that
// a caller may follow with a look at them.
func (s *shell) publish() {
	s.e.resident.Store(s.state.resident)
	s.e.reserved.Store(s.state.reserved)
	s.e.leased.Store(s.state.leased)
	s.e.entries.Store(int64(s.state.table.Len()))
}

func (s *shell) get(m getMsg) {
	key := m.pending.key
	if s.closed.Load() {
		s.unused(m.pending)
		m.reply.Fail(fault.ErrClosed)
		return
	}
	if n := s.state.found(key, m.pending.hash); n != nil && n.Value.cell.Pin() {
		if s.state.revive(n) { // C13
			n.Value.calls.renew()
			s.publish()
		}
		if n.Value.apart.Load() {
			s.e.cache.counters.hits.Add(1) // those beside the pins are added up when it goes, and it has gone
		} else {
			n.Value.hits.Add(1)
		}
		if !m.reply.Send(answer{lease: newLease(n)}) {
			s.idle.Throw(n) // it may have been the last to hold it
			s.unused(m.pending)
		}
		return
	}
	if s.join(m) {
		return
	}
	if why := s.state.admit(m.pending); why != "" {
		if !m.reply.Send(answer{bypass: why}) {
			s.unused(m.pending)
		}
		return
	}
	o := m.pending.owner
	s.publish()
	if !m.reply.Send(answer{owner: o}) && o.finish() {
		s.end(o, o.failure(fault.ErrAbandoned))
	}
}

// join takes a caller aboard the flight of its key, if there is one.
func (s *shell) join(m getMsg) bool {
	var w *waiter
	if m.compute {
		w = &waiter{asked: m.pending, called: make(chan struct{})}
	}
	p, first, found := s.state.join(m.pending.key, w)
	if !found {
		return false
	}
	f := p.owner.flight
	if w != nil {
		f = &w.line.flight
	}
	if first {
		f.Begin(context.Background(), s.e, p.key.ID)
		f.Follow(p.owner.flight, nil)
	}
	f.Board()
	if !m.reply.Send(answer{aboard: p, waiter: w}) {
		f.GetOff()
		s.leave(leaveMsg{m.pending, w, p})
	}
	return true
}

// unused is for what a caller has not come to own and never will: its promise takes
// back what the search for circles knows of it.
func (s *shell) unused(p *pending) { p.owner.flight.Finish(nil, fault.ErrAbandoned, nil) }

func (s *shell) fulfil(m fulfilMsg) {
	o := m.owner
	if s.closed.Load() {
		m.reply.Fail(fault.ErrClosed)
		return
	}
	resident := s.state.deliver(o.pending, m.node)
	s.publish()
	m.node.Value.cell.Pin() // the flight's, until every waiter has its own
	if l := o.pending.line.Load(); l != nil {
		m.node.Value.cell.Pin()
		l.flight.Finish(m.node, nil, s.let)
	}
	o.flight.Finish(m.node, nil, s.let)
	if !resident { // no residency, so no pin of it
		m.node.Value.cell.Drop()
	}
	m.reply.Send(struct{}{})
}

// end takes an ownership back. The first waiter that can compute gets it, with the
// reservation, or a bypass if there is no room for it: then the next one does, in
// another turn. The others that can compute wait on, so that it costs the same however
// many they are.
func (s *shell) end(o *Promise, err error) {
	p, l := o.pending, o.pending.line.Load()
	heir := s.state.heir(p)
	if s.closed.Load() { // and has not come to it yet
		heir, err = nil, fault.ErrClosed
	}
	switch {
	case heir != nil:
		if !s.state.inherit(p, heir.asked) {
			heir.bypass = Full
			close(heir.called)
			s.e.tell(endMsg{o, err})
			return
		}
		heir.owner = heir.asked.owner
		s.publish()
		l.flight.Follow(heir.owner.flight, o.flight)
		close(heir.called)
	default:
		how := failed
		if o.refused {
			how = refused
		}
		s.state.fail(p, how)
		s.publish()
		if l != nil {
			l.flight.Finish(nil, err, nil)
		}
	}
	o.flight.Finish(nil, err, nil)
}

// leave is for a caller that gave up, perhaps just when the ownership was handed over
// to it: then that is taken back.
func (s *shell) leave(m leaveMsg) {
	if m.aboard != nil {
		s.state.leave(m.aboard)
	}
	if w := m.waiter; w != nil {
		s.state.withdraw(w)
		if w.owner != nil && w.owner.finish() {
			s.end(w.owner, w.owner.failure(fault.ErrAbandoned))
		}
	}
	s.unused(m.asked)
}

// endAll ends what was being computed at a close, as far as a turn goes, and reports
// whether nothing is left.
func (s *shell) endAll() bool {
	for p := range s.state.flights.All() {
		if !s.state.touched.Left() {
			return false
		}
		s.state.touched.Add(1)
		s.state.drop(p)
		p.owner.cancel(fault.ErrClosed)
		p.owner.flight.Finish(nil, fault.ErrClosed, nil)
		if l := p.line.Load(); l != nil {
			l.flight.Finish(nil, fault.ErrClosed, nil)
		}
	}
	return true
}

// letGoLater has what has gone in this turn let go, with the callbacks that it has now:
// if it becomes resident again (SPEC C13) there may be others.
func (s *shell) letGoLater() {
	gone := s.state.take()
	for i := range gone {
		gone[i].calls = gone[i].node.Value.calls.take()
	}
	s.gone.Throw(gone...)
}

// letGo fires the callbacks of a tensor that has gone, and has the pin of its
// residency dropped, off the turn. Tensors come in the order of their removals, but a
// callback or a Free that is stuck holds up no other tensor.
func (s *shell) letGo(r removal) {
	defer s.idle.Throw(r.node)
	s.e.cache.counters.removed(r)
	s.e.event(time.Time{}, Event{Context: context.Background(), Key: keyOf(r.node), Removal: r.why, Cost: r.node.Value.cost}, Outcome{})
	fire(r.calls, r.why, s.e.failed)
}

// failed logs user code that panicked where nobody waits for it.
func (e *Engine) failed(err error) {
	e.log.Error("constants: callback", "engine", e.String(), "error", err)
}
