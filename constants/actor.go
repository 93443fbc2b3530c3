package constants

import (
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
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
		aboard *pending // the flight that it left before its end, or nil
	}
	removeMsg struct {
		key   Key
		reply actors.Reply[bool]
	}
	capacityMsg struct {
		bytes int64
		reply actors.Reply[struct{}]
	}
	closeMsg struct{ reply actors.Reply[struct{}] }
)

func (getMsg) isMessage()      {}
func (fulfilMsg) isMessage()   {}
func (endMsg) isMessage()      {}
func (leaveMsg) isMessage()    {}
func (removeMsg) isMessage()   {}
func (capacityMsg) isMessage() {}
func (closeMsg) isMessage()    {}

// Fail answers a request whose turn panicked.
func (m getMsg) Fail(err error)      { m.reply.Fail(err) }
func (m fulfilMsg) Fail(err error)   { m.reply.Fail(err) }
func (m removeMsg) Fail(err error)   { m.reply.Fail(err) }
func (m capacityMsg) Fail(err error) { m.reply.Fail(err) }
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
	closed atomic.Bool        // read by anybody
	gone   lease.Bin[removal] // tells of removals
	idle   lease.Bin[*node]   // drops the pins of their residency
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
		there := s.state.removeKey(m.key)
		s.publish()
		m.reply.Send(there)
	case capacityMsg:
		s.state.setCapacity(m.bytes)
	case shrinkMsg:
		freed := s.state.shrink(m.nodes, m.bytes)
		s.publish()
		m.reply.Send(freed)
	case closeMsg:
		s.close()
	}
	s.publish()
	s.gone.Throw(s.state.take()...)
	s.state.touched.Turn()
	switch m := m.(type) { // answered after everything that they caused has begun
	case capacityMsg:
		m.reply.Send(struct{}{})
	case closeMsg:
		m.reply.Send(struct{}{})
	}
}

// publish makes the counts right for readers. It comes before every answer that
// a caller may follow with a look at them.
func (s *shell) publish() {
	s.e.cache.cfg.memory.Add(s.state.resident - s.e.resident.Load())
	s.e.resident.Store(s.state.resident)
	s.e.reserved.Store(s.state.reserved)
	s.e.entries.Store(int64(s.state.table.Len()))
}

func (s *shell) get(m getMsg) {
	key := m.pending.key
	if s.closed.Load() {
		s.unused(m.pending)
		m.reply.Fail(fault.ErrClosed)
		return
	}
	if n := s.state.table.Lookup(key.ID, key.Backend); n != nil && n.Value.cell.Pin() {
		n.Value.hits.Add(1)
		if l := newLease(n); !m.reply.Send(answer{lease: l}) {
			l.End()
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
		w = &waiter{asked: m.pending}
	}
	p, found := s.state.join(m.pending.key, w)
	if !found {
		return false
	}
	p.owner.flight.Board()
	if !m.reply.Send(answer{aboard: p, waiter: w}) {
		p.owner.flight.GetOff()
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
	o.flight.Finish(m.node, nil, unpin)
	if !resident { // no residency, so no pin of it
		m.node.Value.cell.Drop()
	}
	m.reply.Send(struct{}{})
}

// end takes an ownership back. The first waiter that can compute gets it, with the
// reservation, or a bypass if that is too small for it; all the others that can
// compute ask again. So it costs the same however many wait.
func (s *shell) end(o *Promise, err error) {
	p := o.pending
	heir := s.state.heir(p)
	switch {
	case heir == nil || s.closed.Load():
		s.state.drop(p)
	case s.state.inherit(p, heir.asked):
		heir.owner = heir.asked.owner
	default:
		heir.bypass = Full
		s.state.drop(p)
	}
	s.publish()
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

func (s *shell) close() {
	if s.closed.Swap(true) {
		return
	}
	s.state.flush(Closed)
	s.publish()
	for _, p := range s.state.flights.Close() {
		p.owner.cancel(fault.ErrClosed)
		p.owner.flight.Finish(nil, fault.ErrClosed, nil)
	}
}

// letGo fires the callbacks of a tensor that has gone, and has the pin of its
// residency dropped: in the order of the removals, off the turn. A Free that is stuck
// holds up neither.
func (s *shell) letGo(r removal) {
	defer s.idle.Throw(r.node)
	s.e.cache.counters.removed(r)
	r.node.Value.calls.fire(r.why, s.e.failed)
}

// failed logs user code that panicked where nobody waits for it.
func (e *Engine) failed(err error) {
	e.cache.cfg.Logger.Error("constants: callback", "engine", e.String(), "error", err)
}
