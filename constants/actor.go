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
	leaveMsg struct {
		waiter *waiter // nil = one that cannot compute
		at     *turn   // the last one that the caller knows of
		aboard bool    // it left that flight before its end
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

// answer to a getMsg: one of lease, owner, bypass and turn is set.
type answer struct {
	lease  *Lease
	owner  *Promise
	bypass Bypass
	turn   *turn   // of the flight that the caller is aboard of
	waiter *waiter // the caller, if it may become the owner
}

// shell runs the state's turns. Its fields belong to the actor.
type shell struct {
	e      *Engine
	state  *state
	closed atomic.Bool // read by anybody
	gone   lease.Bin[removal]
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
	case offerMsg:
		m.reply.Send(s.state.offer())
	case shrinkMsg:
		freed := s.state.shrink(m.bytes)
		s.publish()
		m.reply.Send(freed)
	case closeMsg:
		s.close()
	}
	s.publish()
	s.gone.Throw(s.state.take()...)
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
		m.reply.Fail(fault.ErrClosed)
		return
	}
	if n := s.state.table.Lookup(key.ID, key.Backend); n != nil && n.Value.cell.Pin() {
		n.Value.hits.Add(1)
		if l := newLease(n); !m.reply.Send(answer{lease: l}) {
			l.End()
		}
		return
	}
	if s.join(m) {
		return
	}
	if why := s.state.admit(m.pending); why != "" {
		m.reply.Send(answer{bypass: why})
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
	var a answer
	if m.compute {
		a.waiter = &waiter{asked: m.pending}
	}
	p, found := s.state.join(m.pending.key, a.waiter)
	if !found {
		return false
	}
	p.owner.flight.Board()
	a.turn = &turn{aboard: p}
	if a.waiter != nil {
		a.waiter.last = a.turn
	}
	if !m.reply.Send(a) {
		p.owner.flight.GetOff()
		s.leave(leaveMsg{a.waiter, a.turn, true})
	}
	return true
}

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

// end takes an ownership back. The first waiter that can compute gets it, with
// the reservation; without one the key is free again.
func (s *shell) end(o *Promise, err error) {
	p := o.pending
	for !s.closed.Load() {
		heir := s.state.heir(p)
		if heir == nil {
			break
		}
		if !s.state.inherit(p, heir.asked) {
			heir.pass(&turn{bypass: Full})
			continue
		}
		next := heir.asked
		for e := next.volunteers.Front(); e != nil; e = e.Next() {
			next.owner.flight.Board()
			e.Value.(*waiter).pass(&turn{aboard: next})
		}
		s.publish()
		heir.pass(&turn{owner: next.owner})
		o.flight.Finish(nil, err, nil)
		return
	}
	s.state.drop(p)
	s.publish()
	o.flight.Finish(nil, err, nil)
}

// leave is for a caller that gave up at a turn, perhaps just when it was moved on:
// what it was taken aboard of since, or was handed over to it, is taken back.
func (s *shell) leave(m leaveMsg) {
	if m.aboard {
		s.state.leave(m.at.aboard)
	}
	if m.waiter == nil {
		return
	}
	s.state.withdraw(m.waiter)
	for t := m.at.next; t != nil; t = t.next {
		switch {
		case t.aboard != nil:
			t.aboard.owner.flight.GetOff()
			s.state.leave(t.aboard)
		case t.owner != nil && t.owner.finish():
			s.end(t.owner, t.owner.failure(fault.ErrAbandoned))
		}
	}
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

// letGo fires the callbacks of a tensor that has gone, and drops the pin of its
// residency: in the order of the removals, off the turn.
func (s *shell) letGo(r removal) {
	defer r.node.Value.cell.Unpin()
	s.e.cache.counters.removed(r)
	r.node.Value.calls.fire(r.why, s.e.failed)
}

// failed logs user code that panicked where nobody waits for it.
func (e *Engine) failed(err error) {
	e.cache.cfg.Logger.Error("constants: callback", "engine", e.String(), "error", err)
}
