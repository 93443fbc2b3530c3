package gpuexec

import (
	"container/list"
	"context"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/touched"
)

// shell translates messages into events of the state and carries its effects
// out. Its fields belong to the actor's turns.
type shell struct {
	*Executor
	end       context.CancelFunc // of life
	state     *state[*job]
	device    *generation          // nil while the device is being opened
	desk      *desk                // of compiles on device
	unclaimed map[string]unclaimed // by the source's key; none of them is on the desk
	idle      list.List            // of the kernels there that wait for a caller, the longest first
	start     *start               // of the device, or that by which it came to run; another one after each loss
	out       []effect[*job]       // reused
	more      bool                 // an endedMsg is under way
	stopped   bool                 // nothing is compiled any more
	beside    []func()             // ends of jobs that are too much for the turn

	// Of the device: when it was opened, whether it has done anything for a caller,
	// and how long to wait before it is opened again if it has not.
	opened time.Time
	served bool
	pause  time.Duration
}

func (s *shell) handle(m message) {
	s.out = s.out[:0]
	switch m := m.(type) {
	case submitMsg:
		m.job.handled.Store(true)
		s.out = s.state.submit(m.job, m.job.own, m.job.after, s.out)
	case withdrawMsg:
		var waited bool
		if waited, s.out = s.state.withdraw(m.job, s.out); waited {
			s.finish(m.job, context.Canceled)
		}
	case doneMsg:
		var waited bool
		if waited, s.out = s.state.done(m.job, m.gen, s.out); waited {
			s.served = s.served || m.err == nil && !m.job.own
			m.job.answer(m.err)
		}
	case lostMsg:
		if m.on == s.device {
			if m.err != nil && !lost(m.err) {
				m.by.answer(m.err) // it says more than that the device is lost
			}
			s.out = s.state.lost(m.on.n, s.out)
			s.strandRest(strandMsg{})
		}
	case strandMsg:
		s.strandRest(m)
	case endedMsg:
		s.more = false
		if s.state.phase == phaseUp {
			s.out = s.state.ready(s.out)
		}
	case upMsg:
		if s.state.phase == phaseDown && s.state.stranded() {
			s.ref.Tell(m)
			break
		}
		s.device = m.fresh // if Close began meanwhile, it takes the device from here
		s.pause, s.opened, s.served = m.pause, time.Now(), false
		s.out = s.state.up(m.fresh.n, cap(m.fresh.jobs), m.fresh.isLost(), s.out)
	case readyMsg:
		s.await(m.reply)
	case compileMsg:
		s.compile(m.call)
	case leftMsg:
		s.left(m.flight)
	case expiredMsg:
		if s.desk.Expire(m.flight, time.Now()) {
			m.flight.Cancel()
		}
	case compiledMsg:
		s.compiled(m)
	case settledMsg:
		s.settled(m.kernel, m.over)
	case giveUpMsg:
		s.giveUp(m)
	case stopMsg:
		s.stopped = true
		s.giveUp(giveUpMsg{s.desk, fault.ErrClosed})
	case closeMsg:
		s.close(m)
	}
	s.carryOut()
	if s.state.more() && !s.more {
		s.more = true
		s.ref.Tell(endedMsg{})
	}
	s.finishBeside()
	s.touched.Turn()
	s.queued.Store(int64(s.state.waiting()))
}

func (s *shell) carryOut() {
	for _, x := range s.out {
		switch x.do {
		case run:
			x.job.started = true
			s.device.jobs <- x.job
		case fail:
			if x.job.started {
				x.job.answer(x.err)
				x.job.abort() // its worker ends it
			} else {
				s.finish(x.job, x.err)
			}
		case reopen:
			s.reopen(x.gen)
		case ready:
			s.start.Finish(struct{}{}, nil, nil)
		}
	}
}

// finish ends a job that no worker has. Its caller is answered when all is let go that the
// job pinned: from then on the launches may change. What is too much for the turn is left
// to finishBeside (SPEC F6).
func (s *shell) finish(j *job, err error) {
	end := j.end
	if j.decide(err) {
		end = func() { j.end(); j.tell() }
	}
	if j.things > touched.Most/2 || !s.touched.Left() {
		s.beside = append(s.beside, end)
		return
	}
	s.touched.Add(j.things)
	end()
}

func (s *shell) finishBeside() {
	if len(s.beside) == 0 {
		return
	}
	ends := s.beside
	s.beside = nil
	s.ends.Add(1)
	actors.Go(func() {
		defer s.ends.Done()
		for _, end := range ends {
			end()
		}
	})
}

// compile takes a call aboard the compile of its key, or begins one.
func (s *shell) compile(c *compiling) {
	if s.stopped || s.state.phase != phaseUp {
		c.reply.Fail(s.gone())
		return
	}
	if s.claim(c) {
		return
	}
	f, late, joined := s.desk.Join(c.source.Key, s.linger(c.source))
	if joined {
		f.Board()
	} else {
		f, c.desk = c, s.desk
		s.desk.Begin(f.source.Key, f, s.linger(f.source))
		f.Start()
		g := s.device
		s.begin(g, func() {
			s.build(f, g, func(k *Kernel, err error) {
				f.Settle()
				s.ref.Do(compiledMsg{f, k, err}, nil)
			})
		})
	}
	if c.inside == s.device && !f.passed {
		f.passed = true
		close(f.pass)
	}
	c.aboard = f
	if !c.reply.Send(flight.Ticket[*Kernel]{Flight: &f.Flight, Late: late, Others: joined && f.blob != nil}) {
		f.GetOff()
		s.left(f)
	}
}

// left takes a caller off a compile, which lingers when nobody is left.
func (s *shell) left(f *compiling) {
	if alone, linger := s.desk.Leave(f, time.Now()); alone {
		f.Linger(linger, func() { s.ref.Tell(expiredMsg{f}) })
	}
}

// compiled takes the result of a compile in, unless its device was lost or Close
// began: then its callers have been answered.
func (s *shell) compiled(m compiledMsg) {
	f, k := m.flight, m.kernel
	first, _ := f.desk.End(f.source.Key, f)
	if !first || f.desk != s.desk {
		if k != nil {
			k.Release()
		}
		f.Finish(nil, s.gone(), nil) // if giveUp has not come to it yet
		return
	}
	if m.err != nil {
		f.Finish(nil, m.err, nil)
		return
	}
	s.served = true
	s.keep(k)
	k.cell.Pin() // the flight's
	k.cell.Pin()
	s.unclaimed[k.source.Key] = unclaimed{kernel: k, linger: f.Longest()}
	f.Finish(k, nil, func(k *Kernel) {
		s.ref.Tell(settledMsg{kernel: k})
		k.Release()
	})
	g := s.device
	s.begin(g, func() { // for the loss of the device; nobody waits for it
		defer k.Release()
		defer close(k.asked)
		if b := k.built.Load(); k.blob.Load() == nil && b != nil && b.on == g { // it may have been made again by now
			k.ask(s.life, b, func([]byte, error) {})
		}
	})
}

// begin runs fn, which calls the device, on a goroutine that Close waits for. The
// device is not closed before fn ends: the actor gives it away before it retires.
func (s *shell) begin(g *generation, fn func()) {
	g.enter()
	s.work.Add(1)
	s.zone.Lend(actors.Go)(func() {
		defer s.work.Done()
		defer g.leave()
		fn()
	})
}

// desk has the compiles on one device, by the source's key.
type desk = flight.Desk[string, *compiling]

// giveUp answers the callers of compiles, whose results are then nobody's, as far as a
// turn goes: the rest in further turns (SPEC F6).
func (s *shell) giveUp(m giveUpMsg) {
	for f := range m.desk.All() {
		if !s.touched.Left() {
			s.ref.Tell(m)
			return
		}
		s.touched.Add(1)
		m.desk.End(f.source.Key, f)
		f.Finish(nil, m.err, nil)
		f.Cancel()
	}
}

// strandRest answers the jobs that wait for a device that is gone, as far as a turn goes.
// If that is not all, m is told again.
func (s *shell) strandRest(m message) (done bool) {
	s.out = s.state.strand(s.out)
	if s.state.stranded() {
		s.ref.Tell(m)
		return false
	}
	return true
}

// strand gives up the compiles under way: those to come are on another desk.
func (s *shell) strand() {
	s.giveUp(giveUpMsg{s.desk, s.gone()})
	s.desk = new(desk)
}

// gone is why what was under way has ended.
func (s *shell) gone() error {
	if s.stopped || s.state.phase == phaseClosed {
		return fault.ErrClosed
	}
	return errGone
}

// close answers everybody and gives the device away. Close asks a second time,
// for a device that was being opened at the first.
func (s *shell) close(m closeMsg) {
	s.end()
	s.start.Finish(struct{}{}, fault.ErrClosed, nil)
	s.out = s.state.close(s.out)
	if !s.strandRest(m) {
		return
	}
	s.strand()
	for _, u := range s.unclaimed {
		if !s.touched.Left() {
			s.ref.Tell(m)
			return
		}
		s.touched.Add(1)
		s.forgo(u.kernel)
	}
	g := s.device
	s.device = nil
	m.reply.Send(g)
}
