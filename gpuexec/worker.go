package gpuexec

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// generation is the device from one opening to its loss, with the workers that
// call it.
type generation struct {
	n      uint64
	device Device
	jobs   chan *job      // capacity: one a worker, so that the actor never waits
	users  sync.WaitGroup // workers, and compiles under way
	over   chan struct{}  // closed when the workers are to end
	end    sync.Once
}

// worker is one goroutine with a queue of its own.
type worker struct {
	gen    uint64
	device Device
	queue  Queue
	args   []DeviceArg // of the launch in hand
	lost   bool        // the driver said so
}

// note passes a driver's error on and remembers that the device is lost.
func (w *worker) note(err error) error {
	w.lost = w.lost || errors.Is(err, ErrDeviceLost)
	return err
}

// openGeneration opens the device and starts its workers.
func (e *Executor) openGeneration(ctx context.Context, n uint64) (*generation, error) {
	g := &generation{n: n, over: make(chan struct{})}
	var queues []Queue
	var lost <-chan struct{}
	err := guard.Guarded(func() error {
		device, err := e.cfg.Backend.Open(ctx, e.cfg.Index)
		if err != nil {
			return err
		}
		g.device = device
		workers := e.cfg.Workers
		if most := g.device.Limits().RunWorkers; most > 0 {
			workers = min(workers, most)
		}
		for len(queues) < workers {
			q, err := g.device.OpenQueue()
			if err != nil {
				return err
			}
			queues = append(queues, q)
		}
		lost = g.device.Lost()
		return nil
	})
	if err != nil {
		for _, q := range queues {
			_ = guard.Guarded(q.Close)
		}
		if g.device != nil {
			err = errors.Join(err, guard.Guarded(g.device.Close))
		}
		return nil, err
	}
	g.jobs = make(chan *job, len(queues))
	for _, q := range queues {
		g.users.Add(1)
		go g.work(e, &worker{gen: n, device: g.device, queue: q})
	}
	if lost != nil {
		g.users.Add(1)
		go g.watch(e, lost)
	}
	return g, nil
}

func (g *generation) watch(e *Executor, lost <-chan struct{}) {
	defer g.users.Done()
	select {
	case <-lost:
		e.ref.Tell(lostMsg{g.n})
	case <-g.over:
	}
}

func (g *generation) work(e *Executor, w *worker) {
	defer g.users.Done()
	defer guard.Guarded(w.queue.Close)
	for {
		select {
		case j := <-g.jobs:
			err := w.do(j)
			j.end()
			if w.lost {
				e.ref.Tell(lostMsg{g.n})
			}
			e.ref.Tell(doneMsg{j, g.n, err})
		case <-g.over:
			return
		}
	}
}

// do runs a job; a backend that panics fails the job, not the process.
func (w *worker) do(j *job) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &fault.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if err := j.ctx.Err(); err != nil {
		return err
	}
	return j.run(j.ctx, w)
}

// retire lets the workers and compiles end after what they have in hand, then
// closes the device. It waits for that: a driver that never returns keeps it.
func (g *generation) retire() error {
	g.end.Do(func() { close(g.over) })
	g.users.Wait()
	for {
		select {
		case j := <-g.jobs: // given out, but no worker took it any more
			j.end()
		default:
			return guard.Guarded(g.device.Close)
		}
	}
}

// launch hands one kernel run to the driver.
func (w *worker) launch(ctx context.Context, l *Launch) error {
	b := l.Kernel.built.Load()
	if b == nil || b.gen != w.gen {
		return ErrDeviceLost
	}
	w.args = w.args[:0]
	for i := range l.Args {
		a := &l.Args[i]
		if a.kind != ParamBuffer {
			w.args = append(w.args, DeviceArg{Value: a.value})
			continue
		}
		if a.buffer.gen != w.gen {
			return fault.Wrap("executor: launch", l.Kernel.source.Key, "a buffer was lost with its device: allocate it again", ErrDeviceLost)
		}
		w.args = append(w.args, DeviceArg{Memory: a.buffer.memory, Offset: a.offset, Bytes: a.bytes})
	}
	return w.note(w.queue.Launch(ctx, b.program, w.args, l.Grid))
}
