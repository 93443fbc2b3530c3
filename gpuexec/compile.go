package gpuexec

import (
	"context"
	"errors"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Compile builds the kernel of a source. Callers with one key at one time get
// the same kernel from one compile; each must Release it.
func (e *Executor) Compile(ctx context.Context, src Source) (*Kernel, error) {
	return e.obtain(ctx, src, nil)
}

// Load makes the kernel of a source from a blob that Kernel.Blob gave on a
// device of the same identity and that was verified since. ErrRefused if the
// driver does not take it, ErrInvalid if the blob is empty.
func (e *Executor) Load(ctx context.Context, src Source, blob []byte) (*Kernel, error) {
	if len(blob) == 0 {
		return nil, fault.Invalidf("executor: load", "the blob is empty")
	}
	return e.obtain(ctx, src, blob)
}

// obtain gives the kernel of a source, loaded from the blob if there is one.
func (e *Executor) obtain(ctx context.Context, src Source, blob []byte) (*Kernel, error) {
	if src.Key == "" {
		return nil, fault.Invalidf("executor: compile", "the source has no key")
	}
	for {
		t, err := actors.Ask(ctx, e.ref, func(r actors.Reply[ticket]) message {
			return compileMsg{ctx: ctx, source: src, blob: blob, reply: r}
		})
		if err != nil {
			return nil, err
		}
		if !t.joined { // everybody left that compile: wait for its end and begin another
			if err := t.flight.WaitEnd(ctx); err != nil {
				return nil, err
			}
			continue
		}
		var kernel *Kernel
		err = t.flight.Wait(ctx, func(k *Kernel) {
			k.cell.Pin() // cannot fail: the flight holds it until all have
			kernel = k
		})
		if t.others && (errors.Is(err, ErrRefused) || errors.Is(err, ErrUnsupported)) {
			continue // the blob was another's, which is nothing to this caller
		}
		return kernel, err
	}
}

// build compiles or loads on a compile worker's slot, for the actor.
func (e *Executor) build(g *generation, f *flight.Flight[*Kernel], src Source, blob []byte) (*Kernel, error) {
	ctx := f.Context()
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-e.slots }()
	program, err := e.program(ctx, g.device, src, blob)
	if err != nil {
		if errors.Is(err, ErrDeviceLost) {
			e.ref.Tell(lostMsg{g.n})
		}
		return nil, err
	}
	k := &Kernel{exec: e, source: src, requires: program.Requires()}
	k.cell.Init(k.free)
	k.built.Store(&built{g.n, program})
	if blob != nil {
		kept := append([]byte(nil), blob...)
		k.blob.Store(&kept)
	}
	e.mu.Lock()
	e.mu.kernels[k] = struct{}{}
	e.mu.Unlock()
	return k, nil
}

// program calls the driver and announces a call that takes long (SPEC E6).
func (e *Executor) program(ctx context.Context, d Device, src Source, blob []byte) (Program, error) {
	began := time.Now()
	stop := e.announce(src.Key, began)
	var p Program
	var err error
	guard.Guard(func() (err error) {
		if blob != nil {
			e.blobLoads.Add(1)
			p, err = d.Load(ctx, src, blob)
		} else {
			e.compiles.Add(1)
			p, err = d.Compile(ctx, src)
		}
		return err
	}, func(failed error) {
		err = failed
		stop(err) // also when the driver panicked
	})
	return p, err
}

// announce tells the listener while something lasts; what it returns ends that.
func (e *Executor) announce(key string, began time.Time) func(error) {
	if e.cfg.Listen == nil {
		return func(error) {}
	}
	quit, quitted := make(chan struct{}), make(chan bool)
	go func() {
		tick := time.NewTicker(e.cfg.Slow)
		defer tick.Stop()
		phase := PhaseStart
		for {
			select {
			case <-tick.C:
				e.tell(CompileEvent{Key: key, Phase: phase, Elapsed: time.Since(began)})
				phase = PhaseRunning
			case <-quit:
				quitted <- phase != PhaseStart
				return
			}
		}
	}()
	return func(err error) {
		close(quit)
		if <-quitted {
			e.tell(CompileEvent{Key: key, Phase: PhaseEnd, Elapsed: time.Since(began), Err: err})
		}
	}
}

// tell calls the listener, which is user code.
func (e *Executor) tell(event CompileEvent) {
	guard.Call(func() { e.cfg.Listen(event) }, func(err error) {
		e.cfg.Logger.Error("executor: listener", "key", event.Key, "error", err)
	})
}

// rebuild makes every live kernel anew on a fresh device: from its blob, or from
// its source where the backend gives none. What it returns lets go of them: to be
// called when the device is up or has been given up, since a kernel whose last
// user leaves meanwhile is released on it.
func (e *Executor) rebuild(ctx context.Context, g *generation) (letGo func(), err error) {
	e.mu.Lock()
	live := make([]*Kernel, 0, len(e.mu.kernels))
	for k := range e.mu.kernels {
		if k.cell.Pin() {
			live = append(live, k)
		}
	}
	e.mu.Unlock()
	for _, k := range live {
		if err = e.rebuildOne(ctx, g, k); err != nil {
			break
		}
	}
	return func() {
		for _, k := range live {
			k.cell.Unpin()
		}
	}, err
}

func (e *Executor) rebuildOne(ctx context.Context, g *generation, k *Kernel) error {
	if blob, err := k.Blob(ctx); err == nil {
		if p, err := e.program(ctx, g.device, k.source, blob); err == nil {
			k.built.Store(&built{g.n, p})
			return nil
		}
	}
	p, err := e.program(ctx, g.device, k.source, nil)
	if err != nil {
		return err
	}
	k.built.Store(&built{g.n, p})
	return nil
}

func (e *Executor) forgetKernel(k *Kernel) {
	e.mu.Lock()
	delete(e.mu.kernels, k)
	e.mu.Unlock()
}
