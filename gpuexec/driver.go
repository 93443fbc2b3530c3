package gpuexec

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/progress"
)

// program has the driver compile a source, or load it from a blob, and announces
// a call that takes long (SPEC E6).
func (e *Executor) program(ctx context.Context, on *generation, src Source, blob []byte) (p *built, requires []string, err error) {
	told := e.announce(src.Key)
	err = apart(func() error {
		var program Program
		var err error
		if blob != nil {
			e.blobLoads.Add(1)
			program, err = on.device.Load(ctx, src, blob)
		} else {
			e.compiles.Add(1)
			program, err = on.device.Compile(ctx, src)
		}
		if err != nil {
			return err
		}
		p, requires = &built{on, program, program.Bytes()}, program.Requires()
		return nil
	})
	told(err)
	return p, requires, err
}

// announce tells the listener while a compile lasts; what it returns ends that.
func (e *Executor) announce(key string) func(error) {
	if e.cfg.Listen == nil {
		return func(error) {}
	}
	// A listener that ends its goroutine is called on another one.
	return progress.Announce(e.cfg.Slow, actors.GoOn, func(phase string, elapsed time.Duration, err error) {
		e.tell(CompileEvent{Key: key, Phase: phase, Elapsed: elapsed, Err: err})
	})
}

// tell calls the listener, which is user code.
func (e *Executor) tell(event CompileEvent) {
	guard.Call(func() { e.cfg.Listen(event) }, func(err error) {
		e.cfg.Logger.Error("executor: listener", "key", event.Key, "error", err)
	})
}
