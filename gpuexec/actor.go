package gpuexec

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// making is the flight of a key's compile, or of its load.
type making struct {
	*flight.Flight[*Kernel]
	blob bool // it loads the blob of who began it
	lost bool // its device has gone
}

// shell translates messages into events of the state and carries its effects
// out. Its fields belong to the actor's turns unless said otherwise.
type shell struct {
	e       *Executor
	state   *state
	device  *generation // nil before the first upMsg and while the device is down
	flights map[string]*making
	waiting []actors.Reply[struct{}] // of Ready
	out     []effect                 // reused
	work    sync.WaitGroup           // goroutines begun here; Wait from Close
	queued  atomic.Int64             // read by anybody
}

func newShell(e *Executor) *shell {
	s := &shell{e: e, state: newState(e.cfg.Queue, 0), flights: make(map[string]*making)}
	s.state.phase, s.state.gen = phaseDown, 1
	return s
}

func (s *shell) handle(m message) {
	s.out = s.out[:0]
	switch m := m.(type) {
	case submitMsg:
		m.job.handled.Store(true)
		s.out = s.state.submit(m.job, s.out)
	case withdrawMsg:
		if s.state.withdraw(m.job) {
			m.job.end()
		}
	case doneMsg:
		var waited bool
		if waited, s.out = s.state.done(m.job, m.gen, s.out); waited {
			m.job.reply.Answer(struct{}{}, m.err)
		}
	case lostMsg:
		s.out = s.state.lost(m.gen, s.out)
	case upMsg:
		s.up(m.fresh)
	case readyMsg:
		s.ready(m)
	case compileMsg:
		s.compile(m)
	case compiledMsg:
		s.compiled(m)
	case closeMsg:
		s.close(m)
	}
	s.carryOut()
	s.queued.Store(int64(len(s.state.queue)))
}

func (s *shell) carryOut() {
	for _, x := range s.out {
		switch {
		case x.run != nil:
			x.run.started = true
			s.device.jobs <- x.run
		case x.fail != nil:
			x.fail.reply.Fail(x.err)
			if x.fail.started {
				x.fail.abort() // its worker ends it
			} else {
				x.fail.end()
			}
		case x.restart != nil:
			s.restart(*x.restart)
		case x.up:
			for _, r := range s.waiting {
				r.Send(struct{}{})
			}
			s.waiting = nil
		}
	}
}

func (s *shell) up(g *generation) {
	s.device, s.state.workers = g, cap(g.jobs) // if Close began meanwhile, it takes the device from here
	s.out = s.state.up(g.n, s.out)
	select {
	case <-g.device.Lost(): // lost before it was up, when nobody would have heeded it
		s.out = s.state.lost(g.n, s.out)
	default:
	}
}

func (s *shell) ready(m readyMsg) {
	switch s.state.phase {
	case phaseUp:
		m.reply.Send(struct{}{})
	case phaseDown:
		s.waiting = append(s.waiting, m.reply)
	default:
		m.reply.Fail(ErrClosed)
	}
}

// compile joins the compile of that key or begins one.
func (s *shell) compile(m compileMsg) {
	switch s.state.phase {
	case phaseClosed:
		m.reply.Fail(ErrClosed)
		return
	case phaseDown:
		m.reply.Fail(ErrDeviceLost)
		return
	}
	f, begun := s.flights[m.source.Key]
	if !begun {
		f = &making{Flight: flight.New[*Kernel](m.ctx, s.e, m.source.Key), blob: m.blob != nil}
		s.flights[m.source.Key] = f
		g := s.device
		s.beginOn(g, func() {
			var k *Kernel
			guard.Guard(func() (err error) {
				k, err = s.e.build(g, f.Flight, m.source, m.blob)
				return err
			}, func(err error) { s.e.ref.Tell(compiledMsg{f, k, err}) })
		})
	}
	t := ticket{flight: f.Flight, joined: f.Join(), others: begun && f.blob}
	if !m.reply.Send(t) && t.joined {
		f.Leave()
	}
}

func (s *shell) compiled(m compiledMsg) {
	maps.DeleteFunc(s.flights, func(_ string, f *making) bool { return f == m.flight })
	if m.err != nil {
		if m.flight.lost && errors.Is(m.err, context.Canceled) {
			m.err = ErrDeviceLost // which is why it was told to end
		}
		m.flight.Finish(nil, m.err, nil)
		return
	}
	if b := m.kernel.built.Load(); b == nil || b.gen != s.state.gen {
		m.flight.Finish(nil, ErrDeviceLost, nil) // built for a device that has gone
		m.kernel.Release()
		return
	}
	m.kernel.cell.Pin()
	if !m.flight.Finish(m.kernel, nil, (*Kernel).Release) { // Close was first
		m.kernel.Release()
		m.kernel.Release()
		return
	}
	s.beginOn(s.device, func() { // for a restart, where the backend has blobs; nobody waits for it
		defer m.kernel.Release()
		_, _ = m.kernel.Blob(s.e.life)
	})
}

// begin runs fn on a goroutine that Close waits for. It is not called in a turn
// after the one of closeMsg.
func (s *shell) begin(fn func()) {
	s.work.Add(1)
	actors.Go(func() {
		defer s.work.Done()
		fn()
	})
}

// beginOn is begin for what calls the device: it is not closed before fn ends.
func (s *shell) beginOn(g *generation, fn func()) {
	g.users.Add(1)
	s.begin(func() {
		defer g.users.Done()
		fn()
	})
}

func (s *shell) retire(g *generation) {
	s.begin(func() {
		if err := g.retire(); err != nil {
			s.e.cfg.Logger.Warn("executor: retire lost device", "error", err)
		}
	})
}

// restart opens the device again, as often as it takes.
func (s *shell) restart(gen uint64) {
	s.e.cfg.Logger.Warn("executor: device lost, opening it again", "device", s.e.info.Name)
	s.e.restarts.Add(1)
	old := s.device
	s.device = nil
	for _, f := range s.flights {
		f.lost = true
		f.Cancel()
	}
	if old != nil {
		s.retire(old)
	}
	s.begin(func() {
		ctx := s.e.life
		for pause := time.Millisecond; ; pause = min(2*pause, time.Minute) {
			g, err := s.e.openGeneration(ctx, gen)
			if err == nil {
				var letGo func()
				if letGo, err = s.e.rebuild(ctx, g); err == nil {
					s.e.ref.Tell(upMsg{g})
					letGo()
					return
				}
				err = errors.Join(err, g.retire())
				letGo()
			}
			s.e.cfg.Logger.Error("executor: reopen device", "error", err, "retry_in", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	})
}

// close answers everybody and gives the device away. Close asks a second time,
// for a device that was being opened at the first.
func (s *shell) close(m closeMsg) {
	s.out = s.state.close(s.out)
	for _, f := range s.flights {
		f.Cancel()
		f.Finish(nil, ErrClosed, nil)
	}
	for _, r := range s.waiting {
		r.Fail(ErrClosed)
	}
	s.waiting = nil
	g := s.device
	s.device = nil
	m.reply.Send(g)
}
