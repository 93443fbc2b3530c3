package gpuexec

import (
	"context"
	"errors"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
)

// reopen opens the device again, as often as it takes.
func (s *shell) reopen(gen uint64) {
	s.restarts.Add(1)
	old := s.device
	s.device = nil
	s.giveUp(fault.ErrDeviceLost)
	select {
	case <-s.running:
		s.running = make(chan struct{})
	default: // it was lost before it ran
	}
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
			err := s.open(gen, longer(pause))
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
// that of the next restart.
func (e *Executor) open(gen uint64, pause time.Duration) error {
	g, err := e.openGeneration(e.life, gen)
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
	if err := e.rebuild(g, live); err != nil {
		return errors.Join(err, g.retire())
	}
	e.ref.Tell(upMsg{g, pause})
	return nil
}

// blobPatience is how long a restart waits for the blobs that the lost device was
// asked for. Its driver may never answer; then kernels are compiled again.
const blobPatience = time.Second

// rebuild makes kernels, which the caller has pinned, anew on a device. One that the
// driver does not make stays lost alone. They are made one after the other, since two
// may have one key (SPEC F1). The error is that of a device that is lost again, or closed.
func (e *Executor) rebuild(g *generation, kernels []*Kernel) error {
	patience, stop := context.WithTimeout(e.life, blobPatience)
	defer stop()
	for _, k := range kernels {
		select {
		case <-k.asked:
		case <-patience.Done():
		}
		err := e.rebuildOne(g, k)
		switch {
		case errors.Is(err, fault.ErrDeviceLost):
			return err
		case e.life.Err() != nil:
			return fault.ErrClosed
		case err != nil:
			e.cfg.Logger.Error("executor: rebuild kernel", "error", err)
		}
	}
	return nil
}

// rebuildOne makes a kernel from its blob, or from its source where that fails.
func (e *Executor) rebuildOne(g *generation, k *Kernel) error {
	if blob := k.blob.Load(); blob != nil {
		if p, _, err := e.program(e.life, g, k.source, *blob); err == nil {
			k.built.Store(p)
			return nil
		}
	}
	p, _, err := e.program(e.life, g, k.source, nil)
	if err != nil {
		return err
	}
	k.built.Store(p)
	return nil
}
