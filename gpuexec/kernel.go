package gpuexec

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/lease"
)

// Kernel is a compiled program on its executor's device. It outlives the loss
// of the device. Release it once; a launch in progress keeps it.
// Safe for concurrent use.
type Kernel struct {
	exec     *Executor
	source   Source
	block0   Size // of a launch that says none
	requires []string
	built    atomic.Pointer[built]
	blob     atomic.Pointer[[]byte] // as the driver gave it; nil = not yet, or there is none
	asked    chan struct{}          // closed when the driver was asked for the blob
	cell     lease.Cell
	taken    atomic.Bool // by a caller of Compile or Load
}

// built is the program on the device of one generation.
type built struct {
	on      *generation
	program Program
	bytes   int64
	block   Size // of its own; zero = it has none
}

func (k *Kernel) name() string { return k.source.name() }

// Executor is the executor that made the kernel, and that it may be launched on.
func (k *Kernel) Executor() *Executor { return k.exec }

// Key is the key of the kernel's source.
func (k *Kernel) Key() string { return k.source.Key }

// Params are what a launch must give; to be read only.
func (k *Kernel) Params() []Param { return k.source.Params }

// Bytes is the memory that the program occupies, host and device.
func (k *Kernel) Bytes() int64 {
	if b := k.built.Load(); b != nil {
		return b.bytes
	}
	return 0
}

// Blob is the compiled form (SPEC B2): what Executor.Load takes, in this process
// or another with a device of the same identity. The slice is the caller's.
//
// Errors: ErrUnsupported if the backend has none, ErrDeviceLost or ErrClosed if the
// driver has not given it before, ErrInvalid for a kernel that was released, the
// context's, and the driver's.
func (k *Kernel) Blob(ctx context.Context) ([]byte, error) {
	if kept := k.blob.Load(); kept != nil && k.cell.Pin() {
		defer k.cell.Unpin()
		return slices.Clone(*kept), nil
	}
	own, stop := context.WithCancel(context.WithoutCancel(ctx)) // ctx may be user code: asked on this goroutine alone
	defer stop()
	done := ctx.Done()
	b, err := k.enter()
	if err != nil {
		return nil, err
	}
	type answer struct {
		blob []byte
		err  error
	}
	answered := make(chan answer, 1)
	k.exec.zone.Lend(actors.Go)(func() {
		defer k.leave(b)
		defer context.AfterFunc(k.exec.life, stop)()
		k.ask(own, b, func(blob []byte, err error) { answered <- answer{blob, err} })
	})
	select {
	case a := <-answered:
		return a.blob, a.err
	case <-done:
		return nil, guard.Ended(ctx)
	case <-k.exec.life.Done():
		return nil, k.exec.ended("blob", k.name(), fault.ErrClosed)
	}
}

// ask asks the driver for the blob, keeps it, and calls done with the caller's own
// copy. The caller has entered b's device and holds the kernel.
func (k *Kernel) ask(ctx context.Context, b *built, done func([]byte, error)) {
	var blob []byte
	guard.Guard(func() (err error) {
		blob, err = b.program.Blob(ctx)
		return err
	}, func(err error) {
		if lost(err) {
			k.exec.ref.Tell(lostMsg{on: b.on})
			err = errGone // the caller may be a compile on another device
		}
		err = k.exec.named("executor: blob", k.source, err)
		if err == nil {
			kept := slices.Clone(blob)
			k.blob.CompareAndSwap(nil, &kept)
		}
		done(blob, err)
	})
}

// enter gives the program, which the driver keeps until leave.
func (k *Kernel) enter() (*built, error) {
	if !k.cell.Pin() {
		return nil, fault.Invalidf("executor: blob", "kernel %s was released", k.name())
	}
	if b := k.built.Load(); b != nil && b.on.enter() {
		return b, nil
	}
	k.cell.Unpin()
	if k.exec.life.Err() != nil {
		return nil, k.exec.ended("blob", k.name(), fault.ErrClosed)
	}
	return nil, errGone
}

func (k *Kernel) leave(b *built) {
	k.cell.Unpin() // its program may go now, while the device is still open
	b.on.leave()
}

// Requires lists the instruction sets, out of the device's Identity.ISA, without
// which Blob must not be loaded (SPEC K7); nil = not known, so all of them.
func (k *Kernel) Requires() []string { return k.requires }

// Release gives the caller's hold on the kernel up. Every Compile and Load that
// returned it wants one.
func (k *Kernel) Release() { k.cell.Unpin() }

// free runs after the last hold: the program is released on a worker.
func (k *Kernel) free() {
	k.exec.forget(k)
	if b := k.built.Swap(nil); b != nil {
		k.exec.release(b.on, b.program.Release)
	}
}

// keep has a kernel rebuilt when the device comes back, until forget.
func (e *Executor) keep(k *Kernel) {
	e.mu.Lock()
	e.mu.kernels[k] = struct{}{}
	e.mu.Unlock()
}

func (e *Executor) forget(k *Kernel) {
	e.mu.Lock()
	delete(e.mu.kernels, k)
	e.mu.Unlock()
}

// live gives the kernels that are kept, each pinned.
func (e *Executor) live() []*Kernel {
	e.mu.Lock()
	defer e.mu.Unlock()
	live := make([]*Kernel, 0, len(e.mu.kernels))
	for k := range e.mu.kernels {
		if k.cell.Pin() {
			live = append(live, k)
		}
	}
	return live
}
