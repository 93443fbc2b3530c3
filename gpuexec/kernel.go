package gpuexec

import (
	"context"
	"sync/atomic"

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
	requires []string
	built    atomic.Pointer[built]
	blob     atomic.Pointer[[]byte]
	cell     lease.Cell
}

// built is the program on the device of one generation.
type built struct {
	gen     uint64
	program Program
}

func (k *Kernel) String() string { return fault.Printable(k.source.Key) }

// Key is the key of the kernel's source.
func (k *Kernel) Key() string { return k.source.Key }

// Params are what a launch must give.
func (k *Kernel) Params() []Param { return k.source.Params }

// Bytes is the memory the program occupies, host and device.
func (k *Kernel) Bytes() int64 {
	if b := k.built.Load(); b != nil {
		return b.program.Bytes()
	}
	return 0
}

// Blob is the compiled form (SPEC B2): what Executor.Load takes, in this process
// or another with a device of the same identity. ErrUnsupported if the backend
// has none.
func (k *Kernel) Blob(ctx context.Context) ([]byte, error) {
	if kept := k.blob.Load(); kept != nil {
		return append([]byte(nil), *kept...), nil
	}
	b := k.built.Load()
	if b == nil {
		return nil, ErrDeviceLost
	}
	var blob []byte
	err := guard.Guarded(func() (err error) {
		blob, err = b.program.Blob(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	k.blob.CompareAndSwap(nil, &blob)
	return append([]byte(nil), blob...), nil
}

// Requires lists the instruction sets, out of the device's Identity.ISA, without
// which Blob must not be loaded (SPEC K7); nil = not known, so all of them.
func (k *Kernel) Requires() []string { return k.requires }

// Release gives the caller's hold on the kernel up. Every Compile and Load that
// returned it wants one.
func (k *Kernel) Release() { k.cell.Unpin() }

// free runs after the last hold: the program is released on a worker.
func (k *Kernel) free() {
	k.exec.forgetKernel(k)
	if b := k.built.Swap(nil); b != nil {
		k.exec.releaseOnWorker(b.gen, b.program.Release)
	}
}

// Buffer is device memory. Release it once; a launch in progress keeps it.
// Safe for concurrent use; who writes while a launch reads gets mixed content.
type Buffer struct {
	exec   *Executor
	bytes  int64
	gen    uint64
	memory Memory
	cell   lease.Cell
}

// Bytes is the buffer's size.
func (b *Buffer) Bytes() int64 { return b.bytes }

// Mapped is the memory itself where host and device share it, else nil. It is
// valid until Release, or until the executor is closed or its device lost if that
// is sooner: to touch it then ends the process. It is not to be written while a
// launch uses it.
func (b *Buffer) Mapped() []byte { return b.memory.Mapped() }

// Release gives the buffer back.
func (b *Buffer) Release() { b.cell.Unpin() }

func (b *Buffer) free() { b.exec.releaseOnWorker(b.gen, b.memory.Release) }
