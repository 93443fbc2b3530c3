package artefacts

import (
	"container/list"
	"context"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/zone"
)

// shell is the actor around the core. It boards, starts, cancels and ends flights,
// pins and frees, as the core decided.
type shell struct {
	*Cache
	let, letKernel func(*node) // end a flight's hold
	bin            lease.Bin[*node]
	telling        lease.Bin[func()] // what Config.Evicted is told of turns, and the log of evictions
	warning        lease.Bin[func()] // what else the log is told: a listener that blocks keeps it from nothing
	zone           zone.Zone         // creators, Frees and listeners that Close waits for
	lend           func(func())      // runs code of the zone on another goroutine
	writing        zone.Zone         // within it, what Settle waits for
	warnings       uint64            // of thrash, so far
	warned         time.Time         // the last one that was logged; of warning
	toldTooLarge   bool              // that an artefact is larger than all the bytes there are

	jobs     int       // creators, store writes and frees that have not reported their end
	saves    list.List // of *saving: the store writes under way, in the order in which they began
	settling list.List // of *settling, in the order in which they came
	began    uint64    // store writes, so far
	sweeps   []sweep   // the first is under way

	unlisting bool // one of the sweeps is that
}

func (s *shell) init(c *Cache) {
	s.Cache = c
	s.zone.Up = c.cfg.zone
	left := s.zone.Lend(c.cfg.lend)
	s.let = func(n *node) { // the last caller left: it may be a creator, for which a close that Free calls would wait
		if s.drop(n) {
			left(func() { s.discard(n) })
		}
	}
	s.letKernel = func(n *node) {
		s.let(n)
		s.ref.Tell(idle{n})
	}
	s.writing.Up = &s.zone
	s.lend = s.zone.Lend(actors.Go)
	s.bin.Init(s.lend, func(n *node) {
		defer s.ref.Do(freed{n.Value.kernels}, nil) // also after a Free that ends its goroutine
		s.free(n)
	}, func(error) {}) // free has told
	s.telling.InOrder = true
	s.warning.InOrder = true
	for _, bin := range []*lease.Bin[func()]{&s.telling, &s.warning} {
		bin.Init(s.lend, func(tell func()) {
			defer s.ref.Tell(told{})
			tell()
		}, s.listenerFailed)
	}
}

// tell has the log, which is user code, told off the turn, in the order of the calls.
func (s *shell) tell(fn func()) {
	s.jobs++
	s.warning.Throw(fn)
}

// evicted has a listener and the log told of an eviction likewise, unless too many wait for
// that.
func (s *shell) evicted(l lost) {
	if s.telling.Offer(func() {
		if s.debug {
			s.log.Debug("artefacts: evicted", "key", fault.Printable(l.key), "for", string(l.why))
		}
		if s.cfg.Evicted != nil {
			s.cfg.Evicted(l.key, l.why)
		}
	}, lease.MostUntold) {
		s.jobs++
	} else if s.state.gauges.untold.Add(1) == 1 {
		s.tell(func() {
			s.log.Warn("artefacts: Evicted does not return in time: it is not told of each eviction any more, see Stats", "waiting", lease.MostUntold)
		})
	}
}

func (told) handle(s *shell) { s.jobs-- }

// announce tells what lost its residency in this turn, that thrash began, and once
// that leases hold too much.
func (s *shell) announce() {
	for _, l := range s.state.lost {
		if s.debug || s.cfg.Evicted != nil {
			s.evicted(l)
		}
	}
	clear(s.state.lost)
	if s.state.lost = s.state.lost[:0]; cap(s.state.lost) > 1024 { // after a clear
		s.state.lost = nil
	}
	if n := s.state.gauges.thrash.Load(); n > s.warnings {
		s.warnings = n
		s.warn()
	}
	if !s.overleased.Load() && s.state.overleased() {
		s.overleased.Store(true)
		entries, size := len(s.state.apart), s.LeasedBytes()
		s.tell(func() {
			s.log.Warn("artefacts: overleased: what was evicted and is still in use is more than the capacity: close groups and leases sooner, or raise it", "entries", entries, "bytes", size)
		})
	}
}

// warn tells of thrash, at most once a minute.
func (s *shell) warn() {
	entries, size := s.state.size(), s.state.gauges.bytes.Load()
	s.tell(func() {
		if now := s.cfg.Now(); now.Sub(s.warned) >= time.Minute {
			s.warned = now
			s.log.Warn("artefacts: thrash: more artefacts are in use than fit, and are made again", "entries", entries, "bytes", size)
		}
	})
}

// tooLarge tells, once, of an artefact that no room could be made for: it is made
// again whenever nobody has a lease on it (SPEC C1).
func (s *shell) tooLarge(key string, size int64) {
	if s.toldTooLarge || s.state.disabled() || s.state.bytes.Allows(size) {
		return
	}
	s.toldTooLarge = true
	capacity := s.state.bytes.String()
	s.tell(func() {
		s.log.Warn("artefacts: an artefact is larger than the capacity in bytes: it is not kept, and is made again for the next caller; raise the capacity",
			"key", fault.Printable(key), "bytes", size, "capacity", capacity)
	})
}

// turn handles one message: first the uses that came before it, then the
// message, then what fell out of the cache.
func (s *shell) turn(m message) {
	s.uses.DrainFor(s.ref.Queued, s.state.drained)
	m.handle(s)
	s.clean()
	s.unlist()
	s.state.touched.Turn()
	s.checkJobs()
}

// clean drops the residency pin of each entry that lost its residency in this turn.
// What nobody leases is freed off the turn, and its kernels may become idle.
func (s *shell) clean() {
	for i := 0; i < len(s.state.dropped); i++ { // it grows by kernels
		n := s.state.dropped[i]
		s.state.dropped[i] = nil
		s.state.gauges.apart.Add(n.Value.bytes)
		s.dropHere(n)
	}
	s.state.dropped = s.state.dropped[:0]
	s.announce()
}

// dropHere drops a pin in a turn, where nothing may be freed. The kernels of what
// is to be freed are idle before that, and held until it has been.
func (s *shell) dropHere(n *node) {
	if !s.drop(n) {
		return
	}
	s.state.gone(n)
	if n.Value.free == nil && n.Value.kernels == nil {
		return
	}
	s.jobs++
	ending{n, n.Value.kernels}.handle(s)
}

// handle goes on with the kernels of what is to be freed, as far as a turn goes.
func (m ending) handle(s *shell) {
	for ; len(m.kernels) > 0; m.kernels = m.kernels[1:] {
		if !s.state.touched.Left() {
			s.ref.Tell(m)
			return
		}
		s.state.touched.Add(1)
		k := m.kernels[0]
		k.Value.ending++
		s.checkIdle(k)
	}
	s.bin.Throw(m.n)
}

// discardLater frees n off the turn.
func (s *shell) discardLater(n *node) {
	s.jobs++
	s.bin.Throw(n)
}

// job has fn, which calls code of users, run off the turn. It tells of its end.
func (s *shell) job(fn func()) {
	s.jobs++
	s.lend(fn)
}

func (drain) handle(*shell) {}

func (m credited) handle(s *shell) { s.state.credited(m.n, m.owner) }

// handle answers a call, and has its creator run if it is to fly.
func (m asked) handle(s *shell) {
	if s.state.stopped {
		m.reply.Fail(fault.ErrClosed)
		return
	}
	if !s.state.askable(m.making) {
		s.ref.Tell(m)
		return
	}
	a := s.state.ask(m.making)
	switch a.role {
	case found:
		if !a.pinned {
			a.n.Value.cell.Pin()
		}
	case started:
		m.flight.Start()
	case joined:
		a.aboard.flight.Board()
	}
	seen := m.reply.Send(a)
	switch { // the caller has left: give back what it would have got
	case a.role == started && seen:
		s.job(m.run)
	case seen:
	case a.role == found:
		s.dropHere(a.n)
		if m.call.kind == kernel {
			s.checkIdle(a.n)
		}
	case a.role == started: // nobody knows of it yet
		m.flight.GetOff()
		s.state.fail(m.making)
		m.flight.Finish(nil, context.Canceled, nil)
	case a.role == joined:
		a.aboard.flight.GetOff()
		left{a.aboard}.handle(s)
	}
}

func (m left) handle(s *shell) {
	if alone, linger := s.state.left(m.making, time.Now()); alone {
		m.flight.Linger(linger, func() { s.ref.Tell(expired(m)) })
	}
}

func (m expired) handle(s *shell) {
	if s.state.expired(m.making, time.Now()) {
		m.flight.Cancel()
	}
}

// handle lands a flight: what is to be resident is, before anybody wakes.
func (m landed) handle(s *shell) {
	if m.err == nil && !s.state.landable(m.making) {
		s.ref.Tell(m)
		return
	}
	e := &m.n.Value
	s.jobs--
	s.state.hits = s.hits()
	if !m.flight.Finished() { // else callers may be reading it
		e.origin = m.origin
	}
	if m.err != nil {
		if m.unfit != nil {
			s.discardLater(&node{Key: m.n.Key, Value: entry{free: m.unfit}})
		}
		s.state.fail(m.making)
		m.flight.Finish(nil, m.err, nil)
		return
	}
	e.cell.Init(nil) // this turn's own pin, so that the flight's is never the last in it
	s.cfg.memory.Add(e.bytes)
	if s.state.land(m.making) {
		e.cell.Pin()
	} else {
		s.state.gauges.apart.Add(e.bytes)
		s.tooLarge(m.n.Key, e.bytes)
	}
	if m.claim != nil {
		s.save(m.making)
	}
	e.cell.Pin()
	release := s.let
	if m.call.kind == kernel {
		release = s.letKernel
	}
	if !m.flight.Finish(m.n, nil, release) { // closed meanwhile: nobody waits
		s.dropHere(m.n)
	}
	s.dropHere(m.n)
}

func (m *resize) handle(s *shell) {
	if s.state.closed {
		m.reply.Fail(fault.ErrClosed)
		return
	}
	s.sweep(m)
}

func (c *Cache) publishCapacity() {
	goal := c.state.goal
	c.capacity.Store(&goal)
}

func (m *dropOwner) handle(s *shell) {
	if s.state.closed {
		m.reply.Fail(fault.ErrClosed)
		return
	}
	m.uses = s.state.owned.take(m.owner)
	s.sweep(m)
}

func (m *addFloor) handle(s *shell) {
	if !s.state.closed && s.state.addFloor(m.owner, m.bytes) {
		s.sweep(m)
	}
}

func (m *offer) handle(s *shell) {
	m.reply.Send(s.state.unused(m.nodes))
}

func (m *shrink) handle(s *shell) {
	freed := s.state.give(m.list, m.bytes)
	s.clean() // so that the bytes are no longer counted when the asker looks
	m.reply.Send(freed)
}

// handle has whoever asks wait for the writes that are under way. One channel serves all
// that ask between two of those.
func (m *settle) handle(s *shell) {
	last := s.settling.Back()
	if last == nil || last.Value.(*settling).last != s.began {
		last = s.settling.PushBack(&settling{s.began, make(chan struct{})})
	}
	m.reply.Send(last.Value.(*settling).over)
	s.wake()
}

// wake tells those that have waited long enough, as far as a turn goes.
func (s *shell) wake() {
	under := s.began + 1 // the number of the oldest write under way
	if oldest := s.saves.Front(); oldest != nil {
		under = oldest.Value.(*saving).number
	}
	for e := s.settling.Front(); e != nil && e.Value.(*settling).last < under; e = s.settling.Front() {
		if !s.state.touched.Left() {
			s.ref.Tell(waking{})
			return
		}
		s.state.touched.Add(1)
		close(s.settling.Remove(e).(*settling).over)
	}
}

func (waking) handle(s *shell) { s.wake() }

// handle stops: waiters go, creators are told to end.
func (m stopping) handle(s *shell) {
	if !s.endFlights() {
		s.ref.Tell(m)
	}
}

// handle closes: nothing stays.
func (closing) handle(s *shell) {
	if s.state.closed {
		return
	}
	s.endFlights()
	s.state.closed = true
	s.sweep(emptying{})
}

func (s *shell) endFlights() (over bool) {
	return s.state.stop(func(m *making) { m.flight.Finish(nil, fault.ErrClosed, nil) })
}

func (m saved) handle(s *shell) {
	s.jobs--
	s.saves.Remove(m.at)
	s.counters.saves.Store(int64(s.saves.Len()))
	s.wake()
}

func (m freed) handle(s *shell) {
	for ; len(m.kernels) > 0; m.kernels = m.kernels[1:] {
		if !s.state.touched.Left() {
			s.ref.Tell(m)
			return
		}
		s.state.touched.Add(1)
		k := m.kernels[0]
		k.Value.ending--
		s.dropHere(k)
	}
	s.jobs--
}

// checkJobs ends a closed cache with its last job.
func (s *shell) checkJobs() {
	if s.jobs == 0 && len(s.sweeps) == 0 && s.state.closed {
		s.ref.Stop(ended)
	}
}

// ended is a context to ask for something without waiting for it.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (m unleased) handle(s *shell) { s.state.gone(m.n) }

func (m idle) handle(s *shell) { s.checkIdle(m.n) }

// checkIdle lets go of a kernel that nobody but the layer holds, and artefacts
// that are being freed.
func (s *shell) checkIdle(n *node) {
	if n.Value.resident.Load() && n.Value.cell.Pins() == 1+n.Value.ending {
		s.state.idleKernel(n)
	}
}
