package artefacts

import (
	"context"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// shell is the actor around the core: it owns flights, jobs and waiters, and
// carries out what the core decided.
type shell struct {
	*Cache
	running map[*making]struct{}
	begun   *making // in this turn: its creator is to run

	let, letKernel func(*node) // end a flight's hold

	jobs  int // lent goroutines that have not reported their end
	saves map[*saving]struct{}
	freed []*node // last pin went in this turn
}

func (s *shell) init(c *Cache) {
	s.Cache = c
	s.running, s.saves = make(map[*making]struct{}), make(map[*saving]struct{})
	s.let, s.letKernel = s.unpin, s.unpinKernel
}

// turn handles one message: first the uses that came before it, then the
// message, then what fell out of the cache.
func (s *shell) turn(m message) {
	s.uses.Drain(s.state.use)
	m.handle(s)
	s.clean()
	s.checkJobs()
}

// clean takes the residency pins of what was dropped in this turn, which may be
// the last that made kernels idle, and has the unused of it freed off the turn.
func (s *shell) clean() {
	for i := 0; i < len(s.state.dropped); i++ { // it grows by kernels
		n := s.state.dropped[i]
		s.state.dropped[i] = nil
		s.state.gauges.apart.Add(n.Value.bytes)
		s.dropHere(n)
	}
	s.state.dropped = s.state.dropped[:0]
	if len(s.freed) == 0 {
		return
	}
	freed := s.freed
	s.freed = nil
	s.job(func() {
		defer s.ref.Tell(jobEnded{freed: freed}) // also after a Free that ends its goroutine
		guard.Each(freed, s.free)
	})
}

// dropHere drops a pin in a turn, where nothing may be freed. The kernels of what
// is to be freed are idle from now on, and held until it has been.
func (s *shell) dropHere(n *node) {
	if !s.drop(n) || n.Value.free == nil && n.Value.kernels == nil {
		return
	}
	s.freed = append(s.freed, n)
	for _, k := range n.Value.kernels {
		k.Value.ending++
		s.checkIdle(k)
	}
}

func (s *shell) job(fn func()) {
	s.jobs++
	actors.Go(fn)
}

func (drain) handle(*shell) {}

func (m credited) handle(s *shell) { s.state.credited(m.n, m.owner) }

func (k *call) handle(s *shell) {
	if s.state.closed {
		k.reply.Fail(fault.ErrClosed)
		return
	}
	if err := k.ctx.Err(); err != nil { // so that what is forsaken begins nothing more
		k.reply.Fail(err)
		return
	}
	t := s.find(k)
	seen := k.reply.Send(t)
	if m := s.begun; m != nil { // not before the caller can leave it
		s.begun = nil
		s.job(m.run)
	}
	if seen {
		return
	}
	switch t.role { // the caller has left: give back what it would have got
	case found:
		s.dropHere(t.n)
		if k.kind == kernel {
			s.checkIdle(t.n)
		}
	case started, joined:
		t.flight.Leave()
		s.desertion(t.n, t.flight)
	}
}

// find decides what becomes of a call.
func (s *shell) find(k *call) ticket {
	resident, flying := s.indexes(k)
	if resident != nil {
		resident.Value.cell.Pin()
		return ticket{role: found, n: resident}
	}
	if flying != nil {
		f := flying.Value.flight
		if !f.Join() {
			s.forsake(flying)
			return ticket{role: late, flight: f}
		}
		if k.kind != peek && k.kind != kernel {
			credit(&flying.Value.users, k.Owner)
			s.state.credited(flying, k.Owner)
		}
		s.state.use(flying)
		return ticket{role: joined, n: flying, flight: f}
	}
	if k.kind == peek {
		return ticket{role: missing, reason: s.absence()}
	}
	return s.start(k)
}

// indexes looks the key of a call up among residents and flights.
func (s *shell) indexes(k *call) (resident, flying *node) {
	switch k.kind {
	case lone:
		return nil, nil
	case kernel:
		if resident = s.state.kernels.resident[k.Key]; resident != nil {
			s.state.useKernel(resident)
		}
		return resident, s.state.kernels.pending[k.Key]
	}
	return s.table.Lookup(k.Key, 0), s.state.pending[k.Key]
}

func (s *shell) absence() fault.Reason {
	if s.state.disabled() {
		return fault.Disabled
	}
	return fault.Absent
}

// start begins a flight, which its caller has joined.
func (s *shell) start(k *call) ticket {
	n := s.table.NewNode(k.Key, 0)
	e := &n.Value
	e.users.Store(usersOf(k.Owner))
	e.given = k.given != nil
	m := &making{call: k, n: n, origin: Outcome{Event: Miss, Reason: s.absence()}}
	switch k.kind {
	case kernel:
		e.flight = flight.New[*node](k.ctx, &s.state.kernels, k.Key)
		s.state.beginKernel(n)
	case lone:
		e.flight = flight.New[*node](k.ctx, s.Cache, k.Key)
		if k.Unhashable != "" {
			m.origin.Reason, m.origin.Field = fault.KeyRefused, k.Unhashable
		}
	default:
		e.flight = flight.New[*node](k.ctx, s.Cache, k.Key)
		s.state.begin(n)
		m.stored = k.given == nil && k.Load != nil && s.cfg.Store != nil && !s.state.disabled()
	}
	e.flight.Start()
	m.Context = e.flight.Context()
	s.running[m] = struct{}{}
	s.begun = m
	return ticket{role: started, n: n, flight: e.flight}
}

// desertion gives up the place of a flight that nobody waits for.
func (s *shell) desertion(n *node, f *flight.Flight[*node]) {
	if !f.Deserted() || n.Value.flight != f {
		return
	}
	s.forsake(n)
	for again := true; again; { // creators leave their parts while this looks
		again = false
		for m := range s.running {
			if !m.forsaken && m.n.Value.flight.Deserted() {
				m.forsaken, again = true, true
				s.forsake(m.n)
			}
		}
	}
}

// forsake gives up the places of a deserted flight and of those that only its
// creator still waits for, which is about to leave them.
func (s *shell) forsake(n *node) {
	s.state.forsake(n)
	f := n.Value.flight
	for _, key := range f.Awaits(s.Cache) {
		if part := s.state.pending[key]; part != nil && part.Value.flight.Only(f) {
			s.forsake(part)
		}
	}
}

func (m *forsaken) handle(s *shell) {
	s.desertion(m.n, m.flight)
	m.reply.Send(struct{}{})
}

// handle lands a flight: what is to be resident is, before anybody wakes.
func (m *making) handle(s *shell) {
	delete(s.running, m)
	e := &m.n.Value
	f := e.flight
	s.jobs--
	if !f.Finished() { // else callers may be reading it
		e.origin = m.origin
	}
	if m.err != nil {
		if m.unfit != nil {
			s.freed = append(s.freed, &node{Key: m.n.Key, Value: entry{free: m.unfit}})
		}
		s.fail(m)
		f.Finish(nil, m.err, nil)
		return
	}
	e.cell.Init(nil) // this turn's own pin, so that the flight's is never the last in it
	s.cfg.memory.Add(e.bytes)
	kept := s.land(m)
	if kept {
		e.cell.Pin()
	} else {
		s.state.gauges.apart.Add(e.bytes)
	}
	if m.claim != nil {
		s.save(m)
	}
	e.flight = nil
	e.cell.Pin()
	release := s.let
	if m.call.kind == kernel {
		release = s.letKernel
	}
	if !f.Finish(m.n, nil, release) { // closed meanwhile: nobody waits
		s.dropHere(m.n)
	}
	s.dropHere(m.n)
}

func (s *shell) fail(m *making) {
	if m.call.kind == kernel {
		s.state.failKernel(m.n)
	} else {
		s.state.fail(m.n)
	}
	m.n.Value.flight = nil
}

func (s *shell) land(m *making) bool {
	switch {
	case m.call.kind == kernel:
		return s.state.landKernel(m.n)
	case m.call.kind == lone:
		return false
	case m.n.Value.flight.Deserted():
		s.state.fail(m.n)
		return false
	}
	return s.state.land(m.n)
}

func (m *resize) handle(s *shell) {
	if s.state.closed {
		m.reply.Fail(fault.ErrClosed)
		return
	}
	err := s.state.resize(m.entries, m.bytes)
	s.publishCapacity()
	s.clean() // so that leases alone hold what fell out, and the last of them frees it
	m.reply.Answer(struct{}{}, err)
}

func (c *Cache) publishCapacity() {
	c.capacity.Store(&capacity{c.state.entries, c.state.bytes})
}

func (m *dropOwner) handle(s *shell) {
	if s.state.closed {
		m.reply.Fail(fault.ErrClosed)
		return
	}
	s.state.release(m.owner)
	s.clean()
	m.reply.Send(struct{}{})
}

func (m *addFloor) handle(s *shell) {
	m.reply.Answer(struct{}{}, s.state.addFloor(m.owner, m.bytes))
}

func (m *offer) handle(s *shell) {
	_, items := s.state.unused()
	m.reply.Send(items)
}

func (m *shrink) handle(s *shell) {
	freed := s.state.give(m.bytes, m.tier)
	s.clean() // so that the bytes are no longer counted when the asker looks
	m.reply.Send(freed)
}

func (m *settle) handle(s *shell) {
	for w := range s.saves {
		w.awaited = append(w.awaited, m)
	}
	m.left = len(s.saves)
	m.passed()
}

func (m *settle) passed() {
	if m.left == 0 {
		m.reply.Send(struct{}{})
	}
}

// handle closes: waiters go at once, creators are told to end.
func (closing) handle(s *shell) {
	if !s.state.closed {
		s.state.close()
		for m := range s.running {
			m.n.Value.flight.Finish(nil, fault.ErrClosed, nil)
		}
	}
}

func (m jobEnded) handle(s *shell) {
	s.jobs--
	if m.saved != nil {
		delete(s.saves, m.saved)
		for _, at := range m.saved.awaited {
			at.left--
			at.passed()
		}
	}
	for _, n := range m.freed {
		for _, k := range n.Value.kernels {
			k.Value.ending--
			s.dropHere(k)
		}
	}
}

// checkJobs ends a closed cache with its last job.
func (s *shell) checkJobs() {
	if s.jobs == 0 && s.state.closed {
		s.ref.Stop(ended)
	}
}

// ended is a context to ask for something without waiting for it.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (m idle) handle(s *shell) { s.checkIdle(m.n) }

// checkIdle lets go of a kernel that nobody but the layer holds, and artefacts
// that are being freed.
func (s *shell) checkIdle(n *node) {
	if n.Value.resident.Load() && n.Value.cell.Pins() == 1+n.Value.ending {
		s.state.idleKernel(n)
	}
}
