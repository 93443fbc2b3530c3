package gpuexec

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/zone"
)

// generation is the device from one opening to its loss, with the workers that
// call it.
type generation struct {
	n      uint64     // that of the state; an opening that failed and the next have one number
	zone   *zone.Zone // the executor's
	device Device
	info   DeviceInfo
	limits Limits
	lost   <-chan struct{} // nil: it never goes by itself
	queues []Queue         // one a worker
	jobs   chan *job       // capacity: one a worker, so that the actor never waits
	slots  *slots          // of compiles that may run at once
	over   chan struct{}   // closed when the workers are to end
	spoilt atomic.Bool     // a worker knows that it is lost, or that launches of it may run still

	mu struct {
		sync.Mutex
		over bool
	}
	users sync.WaitGroup // workers and driver calls under way; grows under mu, before over
}

// worker calls the driver with a queue of its own, on one goroutine at a time.
type worker struct {
	on    *generation
	queue Queue
	args  []DeviceArg // of the launch in hand
	at    *Kernel     // that the job in hand launched last
	lost  bool        // the driver said so
}

// note passes a driver's error on and remembers that the device is lost.
func (w *worker) note(err error) error {
	w.lost = w.lost || lost(err)
	return err
}

// apart calls the driver on a goroutine of its own, as code of the zone: a panic or
// runtime.Goexit of it is an error to the caller (SPEC F3).
func apart(z *zone.Zone, fn func() error) error {
	done := make(chan error, 1)
	z.Lend(actors.Go)(func() { guard.Guard(fn, func(err error) { done <- err }) })
	return <-done
}

// openGeneration opens the device; start starts its workers.
func (e *Executor) openGeneration(ctx context.Context, n uint64) (*generation, error) {
	g := &generation{n: n, zone: &e.zone, over: make(chan struct{})}
	err := apart(g.zone, func() error {
		device, err := e.cfg.Backend.Open(ctx, e.cfg.Index)
		if err != nil {
			return err
		}
		g.device = device
		g.info, g.limits, g.lost = device.Info(), device.Limits(), device.Lost()
		if n > 1 && !same(g.info.Identity, e.info.Identity) {
			return fault.Wrap("executor: reopen", "", "another device came back: its identity differs", fault.ErrUnavailable)
		}
		for len(g.queues) < most(e.cfg.Workers, g.limits.RunWorkers) {
			q, err := device.OpenQueue()
			if err != nil {
				return err
			}
			g.queues = append(g.queues, q)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.jobs = make(chan *job, len(g.queues))
	g.slots = newSlots(most(e.cfg.Compiles, g.limits.CompileWorkers))
	return g, nil
}

// same reports whether code stored for a fits b, too. No instruction sets are none,
// listed or not.
func same(a, b Identity) bool {
	isa := slices.Equal(a.ISA, b.ISA)
	a.ISA, b.ISA = nil, nil
	return isa && reflect.DeepEqual(a, b)
}

// most is what was asked for, as far as the device can use it; 0 = no limit.
func most(asked, limit int) int {
	if limit > 0 {
		return min(asked, limit)
	}
	return asked
}

// start starts the workers; from here on retire ends the generation.
func (g *generation) start(e *Executor) {
	for _, q := range g.queues {
		g.users.Add(1)
		g.work(e, &worker{on: g, queue: q})
	}
	g.queues = nil // the workers close them
	if g.lost != nil {
		g.users.Add(1)
		actors.Go(func() {
			defer g.users.Done()
			select {
			case <-g.lost:
				e.ref.Tell(lostMsg{on: g})
			case <-g.over:
			}
		})
	}
}

// enter keeps the device open until leave. It reports false if the device is
// closed or about to be.
func (g *generation) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.over {
		return false
	}
	g.users.Add(1)
	return true
}

func (g *generation) leave() { g.users.Done() }

// isLost reports whether the device has gone by itself.
func (g *generation) isLost() bool {
	select {
	case <-g.lost:
		return true
	default:
		return false
	}
}

// work has the worker run jobs until the generation is over. A driver that ends
// the goroutine fails its job: the worker goes on with the next on another one.
func (g *generation) work(e *Executor, w *worker) {
	g.zone.Lend(actors.GoOn)(func() {
		for {
			select {
			case j := <-g.jobs:
				w.do(j, func(err error) {
					if w.lost {
						g.spoilt.Store(true) // before what it used can be released
					}
					j.end()
					if w.lost {
						e.ref.Tell(lostMsg{g, j, err})
					}
					e.ref.Do(doneMsg{j, g.n, err}, nil)
				})
			case <-g.over:
				_ = apart(g.zone, w.queue.Close)
				g.users.Done()
				return
			}
		}
	})
}

// do runs a job and calls done with its error, be it a panic of the driver.
func (w *worker) do(j *job, done func(error)) {
	guard.Guard(func() error {
		if err := cmp.Or(j.ctx.Err(), j.allowed()); err != nil {
			return err
		}
		return j.run(j.ctx, w)
	}, func(err error) {
		if w.at != nil {
			err = w.at.exec.named("executor: launch", w.at.source, err)
		}
		w.at = nil
		done(err)
	})
}

// retire lets the workers and compiles end after what they have in hand, then
// closes the device. It waits for that: a driver that never returns keeps it.
// It is called once.
func (g *generation) retire() error {
	g.mu.Lock()
	g.mu.over = true
	g.mu.Unlock()
	close(g.over)
	g.users.Wait()
	for {
		select {
		case j := <-g.jobs: // given out, but no worker took it any more
			j.end()
		default:
			return g.close()
		}
	}
}

// close closes what was opened and no worker has.
func (g *generation) close() error {
	for _, q := range g.queues {
		_ = apart(g.zone, q.Close)
	}
	if g.device == nil {
		return nil
	}
	return apart(g.zone, g.device.Close)
}

// launch hands one kernel run, or a copy, to the driver.
func (w *worker) launch(ctx context.Context, l *Launch) error {
	if l.Kernel == nil {
		return w.copy(&l.Args[0])
	}
	b := l.Kernel.built.Load()
	if b == nil || b.on != w.on {
		return fault.Wrap("executor: launch", l.Kernel.name(), "the kernel was lost with its device, and the driver did not make it again: it is tried again when the device restarts", errGone)
	}
	w.args = w.args[:0]
	for i := range l.Args {
		a := &l.Args[i]
		if a.kind != ParamBuffer {
			w.args = append(w.args, DeviceArg{Kind: a.kind, Bytes: a.bytes, Value: a.value, Struct: a.data})
			continue
		}
		if a.buffer.on != w.on {
			return fault.Wrap("executor: launch", l.Kernel.name(), "a buffer was lost with its device: allocate it again", errGone)
		}
		w.args = append(w.args, DeviceArg{Kind: ParamBuffer, Memory: a.buffer.memory, Offset: a.offset, Bytes: a.bytes})
	}
	w.at = l.Kernel
	if t, ok := b.program.(tiered); ok && t.Exact(ctx, l.Wait) {
		l.Kernel.exec.exact.Add(1)
	}
	return w.note(w.queue.Launch(ctx, b.program, w.args, whole(l.Grid), l.Kernel.block(l)))
}

// gone is the error of a copy whose buffer went with its device.
func (a *Arg) gone() error {
	return fault.Wrap("executor: "+a.verb(), "", "the buffer was lost with its device: allocate it again", errGone)
}

// copy has the driver copy between a buffer and the host.
func (w *worker) copy(a *Arg) error {
	w.at = nil
	switch {
	case a.buffer.on != w.on:
		return a.gone()
	case a.kind == copyTo:
		return w.note(w.queue.Write(a.buffer.memory, a.offset, a.data))
	}
	return w.note(w.queue.Read(a.buffer.memory, a.offset, a.data))
}
