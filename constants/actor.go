package constants

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
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
		waiter *waiter
		at     *turn // the last one it knows of
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

// answer to a getMsg: exactly one of its fields is set.
type answer struct {
	lease  *Lease
	owner  *Promise
	bypass Bypass
	flight *flight.Flight[*node] // joined
	waiter *waiter               // of flight, if it may become the owner
	turn   *turn                 // of waiter
}

// shell runs the state's turns. Its fields belong to the actor, but for work.
type shell struct {
	e      *Engine
	state  *state
	closed atomic.Bool    // read by anybody
	work   sync.WaitGroup // callbacks and frees under way; Wait from Close
	gone   struct {       // removals whose callbacks have not begun
		sync.Mutex
		list    []removal
		running bool // somebody lets them go
	}
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
		s.leave(m.waiter, m.at)
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
	s.letGo(s.state.take())
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
		m.reply.Fail(ErrClosed)
		return
	}
	if n := s.state.table.Lookup(key.ID, key.Backend); n != nil && n.Value.cell.Pin() {
		n.Value.hits.Add(1)
		if l := (&Lease{node: n}); !m.reply.Send(answer{lease: l}) {
			l.End()
		}
		return
	}
	if p := s.state.pending[key]; p != nil {
		s.join(m, p)
		return
	}
	if why := s.state.admit(m.pending); why != "" {
		m.reply.Send(answer{bypass: why})
		return
	}
	o := m.pending.owner
	s.publish()
	if !m.reply.Send(answer{owner: o}) && o.finish() {
		s.end(o, o.failure(ErrAbandoned))
	}
}

func (s *shell) join(m getMsg, p *pending) {
	f := p.owner.flight
	f.Join() // never deserted: its owner has joined
	a := answer{flight: f}
	if m.compute {
		a.turn = &turn{flight: f}
		a.waiter = &waiter{asked: m.pending, pending: p, last: a.turn}
		p.volunteers = append(p.volunteers, a.waiter)
	}
	if m.reply.Send(a) {
		return
	}
	f.Leave()
	if a.waiter != nil {
		p.volunteers = p.volunteers[:len(p.volunteers)-1]
	}
}

func (s *shell) fulfil(m fulfilMsg) {
	o := m.owner
	if s.closed.Load() {
		m.reply.Fail(ErrClosed)
		return
	}
	s.state.deliver(o.pending, m.node)
	s.publish()
	m.node.Value.cell.Pin() // the flight's, until every waiter has its own
	o.flight.Finish(m.node, nil, func(n *node) { n.Value.cell.Unpin() })
	o.flight.Leave()
	if !o.pending.resident { // no residency, so no pin of it
		m.node.Value.cell.Drop()
	}
	m.reply.Send(struct{}{})
}

// end takes an ownership back. The first waiter that can compute gets it, with
// the reservation; without one the key is free again.
func (s *shell) end(o *Promise, err error) {
	defer o.flight.Leave()
	p := o.pending
	for len(p.volunteers) > 0 && !s.closed.Load() {
		heir := p.volunteers[0]
		p.volunteers = p.volunteers[1:]
		if !s.state.inherit(p, heir.asked) {
			heir.pass(&turn{bypass: Full})
			continue
		}
		next := heir.asked.owner
		for _, w := range heir.asked.volunteers {
			next.flight.Join()
			w.pending = heir.asked
			w.pass(&turn{flight: next.flight})
		}
		s.publish()
		heir.pass(&turn{owner: next})
		o.flight.Finish(nil, err, nil)
		return
	}
	s.state.drop(p)
	s.publish()
	o.flight.Finish(nil, err, nil)
}

// leave is for a waiter that gave up at a turn, perhaps just when it was moved
// on: what was joined or handed over on its behalf since is taken back.
func (s *shell) leave(w *waiter, at *turn) {
	if i := slices.Index(w.pending.volunteers, w); i >= 0 {
		w.pending.volunteers = slices.Delete(w.pending.volunteers, i, i+1)
	}
	for t := at.next; t != nil; t = t.next {
		switch {
		case t.flight != nil:
			t.flight.Leave()
		case t.owner != nil && t.owner.finish():
			s.end(t.owner, t.owner.failure(ErrAbandoned))
		}
	}
}

func (s *shell) close() {
	if s.closed.Swap(true) {
		return
	}
	s.state.flush(Closed)
	s.publish()
	for _, p := range s.state.pending {
		p.owner.cancel(ErrClosed)
		p.owner.flight.Finish(nil, ErrClosed, nil)
	}
	clear(s.state.pending)
}

// letGo fires the callbacks of what has gone and drops the residency's pins, off
// the turn and in the order of the removals.
func (s *shell) letGo(gone []removal) {
	if len(gone) == 0 {
		return
	}
	s.gone.Lock()
	defer s.gone.Unlock()
	s.gone.list = append(s.gone.list, gone...)
	if s.gone.running {
		return
	}
	s.gone.running = true
	s.work.Add(1)
	actors.GoOn(s.sweep)
}

// sweep ends when nothing is left to let go.
func (s *shell) sweep() {
	for {
		s.gone.Lock()
		list := s.gone.list
		s.gone.list = nil
		s.gone.running = len(list) > 0
		s.gone.Unlock()
		if len(list) == 0 {
			s.work.Done()
			return
		}
		guard.Each(list, s.sweepOut)
	}
}

func (s *shell) sweepOut(r removal) {
	defer func() {
		if r.node.Value.cell.Drop() {
			guard.Call(r.node.Value.cell.Free, s.e.failed)
		}
	}()
	s.e.cache.counters.removed(r)
	r.node.Value.calls.fire(r.why, s.e.failed)
}

// failed logs user code that panicked where nobody waits for it.
func (e *Engine) failed(err error) {
	e.cache.cfg.Logger.Error("constants: callback", "engine", e.String(), "error", err)
}
