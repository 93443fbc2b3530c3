package gpuexec

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// program has the driver compile a source, or load it from a blob, and announces
// a call that takes long (SPEC E6). done is called once with what came of it, also where
// the driver ends the goroutine, which is to be the zone's.
func (e *Executor) program(ctx context.Context, on *generation, src Source, blob []byte, done func(p *built, requires []string, err error)) {
	op := "executor: compile"
	if blob != nil {
		op = "executor: load"
	}
	told := e.announce(src)
	var p *built
	var requires []string
	guard.Guard(func() error {
		var program Program
		var err error
		if blob != nil {
			e.blobLoads.Add(1)
			program, err = on.device.Load(ctx, src, slices.Clone(blob)) // which is kept for restarts
		} else {
			e.compiles.Add(1)
			program, err = on.device.Compile(ctx, src)
		}
		if err != nil {
			return err
		}
		defer func() {
			if p == nil { // the driver panicked
				program.Release()
			}
		}()
		bytes := program.Bytes()
		requires = program.Requires()
		var block Size
		if own, has := program.(interface{ Block() Size }); has {
			block = own.Block()
		}
		p = &built{on, program, bytes, block}
		return nil
	}, func(err error) {
		err = e.named(op, src, err)
		told(err)
		done(p, requires, err)
	})
}

// named adds to a driver's error what it was at. What the driver must not do is
// logged with its stack, which the text of an error does not show.
func (e *Executor) named(op string, src Source, err error) error {
	if err == nil {
		return nil
	}
	panicked, _ := errors.AsType[*fault.PanicError](err)
	err = &fault.Error{Op: op, Key: src.name(), Backend: e.info.Backend, Err: err}
	switch {
	case panicked != nil:
		e.cfg.Logger.Error("executor: driver panicked", "error", err, "stack", string(panicked.Stack))
	case errors.Is(err, fault.ErrGoexit):
		e.cfg.Logger.Error("executor: driver ended its goroutine", "error", err)
	}
	return err
}

// announce tells the listener while a compile lasts; what it returns ends that.
func (e *Executor) announce(src Source) func(error) {
	if e.cfg.Listen == nil {
		return func(error) {}
	}
	return e.progress.Announce(func(phase string, elapsed time.Duration, err error) {
		e.tell(CompileEvent{Key: src.Key, Name: src.name(), Phase: phase, Elapsed: elapsed, Err: err})
	})
}

// tell calls the listener, which is user code.
func (e *Executor) tell(event CompileEvent) {
	guard.Call(func() { e.cfg.Listen(event) }, func(err error) {
		e.cfg.Logger.Error("executor: listener", "kernel", event.Name, "error", err)
	})
}
