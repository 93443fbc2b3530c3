package gpuexec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
)

// errGone is the ErrDeviceLost of an executor, which knows already. A driver passes it on
// where a compile asks for another kernel, of this device or another (SPEC F5).
var errGone = fmt.Errorf("%w", fault.ErrDeviceLost)

// lost reports whether a driver says by err that its device is lost.
func lost(err error) bool { return errors.Is(err, fault.ErrDeviceLost) && !errors.Is(err, errGone) }

// start is a start of the device. Nobody computes it for its callers alone: it goes on
// when they have left. What it compiles again runs under its context, so that a compile
// that waits for it, through whatever room, is told that it closes a circle (SPEC F5).
type start = flight.Flight[struct{}]

func (s *shell) starting() *start {
	return flight.New[struct{}](s.life, s.Executor, "the start of "+s.info.Name)
}

// await takes a call of Ready aboard the start of the device, if it does not run.
func (s *shell) await(reply actors.Reply[flight.Ticket[struct{}]]) {
	switch {
	case s.state.phase == phaseClosed:
		reply.Fail(fault.ErrClosed)
	case s.start.Finished():
		reply.Send(flight.Ticket[struct{}]{})
	default:
		s.start.Board()
		if !reply.Send(flight.Ticket[struct{}]{Flight: s.start}) {
			s.start.GetOff()
		}
	}
}

// reopen opens the device again, as often as it takes.
func (s *shell) reopen(gen uint64) {
	s.restarts.Add(1)
	old := s.device
	s.device = nil
	s.strand()
	if s.start.Finished() { // else it was lost before it ran
		s.start = s.starting()
	}
	ctx := s.start.Context()
	pause := s.pause
	if s.served || time.Since(s.opened) >= longest {
		pause = 0
	}
	s.work.Add(2)
	actors.Go(func() {
		defer s.work.Done()
		s.cfg.Logger.Warn("executor: device lost, opening it again", "device", s.info.Name)
		if err := old.retire(); err != nil {
			s.cfg.Logger.Warn("executor: retire lost device", "error", err)
		}
	})
	actors.Go(func() {
		defer s.work.Done()
		for ; ; pause = longer(pause) {
			select {
			case <-time.After(pause):
			case <-s.life.Done():
				return
			}
			err := s.open(ctx, gen, longer(pause))
			if err == nil {
				return
			}
			s.cfg.Logger.Error("executor: reopen device", "error", err, "retry_in", longer(pause))
		}
	})
}

// longest is the longest pause between two openings of a device.
const longest = time.Minute

// longer is the pause that follows one in vain.
func longer(pause time.Duration) time.Duration {
	return max(time.Millisecond, min(2*pause, longest))
}

// open opens the device as that generation, with every live kernel on it. pause is
// that of the next restart. ctx is that of its start.
func (e *Executor) open(ctx context.Context, gen uint64, pause time.Duration) error {
	g, err := e.openGeneration(ctx, gen)
	if err != nil {
		return err
	}
	g.start(e)
	// A kernel whose last user leaves is released on a device that is up or was given up.
	live := e.live()
	defer func() {
		for _, k := range live {
			k.cell.Unpin()
		}
	}()
	again, err := e.rebuild(ctx, g, live)
	if err != nil {
		return errors.Join(err, g.retire())
	}
	e.ref.Tell(upMsg{g, pause})
	if g.enter() { // what asks for other kernels is answered now
		defer g.leave()
		if _, err := e.rebuild(e.life, g, again); lost(err) {
			e.ref.Tell(lostMsg{on: g})
		}
	}
	return nil
}

// blobPatience is how long a restart waits for the blobs that the lost device was
// asked for. Its driver may never answer; then kernels are compiled again.
const blobPatience = time.Second

// rebuild makes kernels, which the caller has pinned, anew on a device. One that the
// driver does not make stays lost alone. They are made one after the other, since two
// may have one key (SPEC F1). again are those whose compile asked for what was gone, or for
// what waits for them. The error is that of a device that is lost again, or closed.
func (e *Executor) rebuild(ctx context.Context, g *generation, kernels []*Kernel) (again []*Kernel, err error) {
	patience, stop := context.WithTimeout(ctx, blobPatience)
	defer stop()
	for _, k := range kernels {
		select {
		case <-k.asked:
		case <-patience.Done():
		}
		err := e.rebuildOne(ctx, g, k)
		switch {
		case lost(err):
			return nil, err
		case e.life.Err() != nil:
			return nil, fault.ErrClosed
		case errors.Is(err, errGone), errors.Is(err, fault.ErrCycle): // the other waits for the device, perhaps
			again = append(again, k)
		}
		if err != nil {
			e.cfg.Logger.Error("executor: rebuild kernel", "error", err)
		}
	}
	return again, nil
}

// rebuildOne makes a kernel from its blob, or from its source where that fails.
func (e *Executor) rebuildOne(ctx context.Context, g *generation, k *Kernel) error {
	var unloaded error
	if blob := k.blob.Load(); blob != nil {
		if unloaded = e.remake(ctx, g, k, *blob); unloaded == nil {
			return nil
		}
	}
	err := e.remake(ctx, g, k, nil)
	if err != nil && !lost(err) {
		return errors.Join(err, unloaded) // the blob may be loaded later
	}
	return err
}

// remake has the driver make a kernel anew, on a goroutine that it may end.
func (e *Executor) remake(ctx context.Context, g *generation, k *Kernel, blob []byte) error {
	made := make(chan error, 1)
	e.zone.Lend(actors.Go)(func() {
		e.program(ctx, g, k.source, blob, func(p *built, _ []string, err error) {
			if err == nil {
				k.rebuilt(p)
			}
			made <- err
		})
	})
	return <-made
}

// rebuilt has the kernel be p, unless it was made for a later device meanwhile: then p
// goes with its own.
func (k *Kernel) rebuilt(p *built) {
	for was := k.built.Load(); was == nil || was.on.n <= p.on.n; was = k.built.Load() {
		if k.built.CompareAndSwap(was, p) {
			return
		}
	}
}
