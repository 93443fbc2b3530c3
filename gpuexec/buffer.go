package gpuexec

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
)

// Buffer is device memory. Release it; a launch in progress keeps it.
// Safe for concurrent use; a caller that writes while a launch reads gets mixed
// content.
type Buffer struct {
	exec   *Executor
	bytes  int64
	on     *generation
	memory Memory
	mapped []byte
	cell   lease.Cell
	gone   atomic.Bool // Release was called
}

// Bytes is the buffer's size.
func (b *Buffer) Bytes() int64 { return b.bytes }

// Mapped is the memory itself where host and device share it, else nil. It is
// valid until Release, or until the executor is closed or its device lost if that
// is sooner: to touch it then ends the process. It is not to be written while a
// launch uses it.
func (b *Buffer) Mapped() []byte { return b.mapped }

// Release gives the buffer back. A second Release does nothing.
func (b *Buffer) Release() {
	if b.gone.CompareAndSwap(false, true) {
		b.cell.Unpin()
	}
}

func (b *Buffer) free() { b.exec.release(b.on, b.memory.Release) }

// BytesOf is the memory of numbers as bytes, in this machine's order, for Write and
// Read: nothing is copied.
func BytesOf[T Number](numbers []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(numbers))), int(unsafe.Sizeof(one))*len(numbers))
}

// Alloc reserves n bytes of device memory, at least 1 (ErrInvalid), filled with
// zeros. Other errors are those of Submit, and ErrTooLarge where the device has
// not as much.
func (e *Executor) Alloc(ctx context.Context, n int64) (*Buffer, error) {
	if n < 1 {
		return nil, fault.Invalidf("executor: alloc", "%d bytes, want at least 1", n)
	}
	var made atomic.Pointer[Buffer]
	var left atomic.Bool // the caller has gone: whichever side takes the buffer out releases it
	given := false
	defer func() {
		if !given { // be it that ctx panicked
			left.Store(true)
			releaseFrom(&made)
		}
	}()
	err := e.do(ctx, func(_ context.Context, w *worker) error {
		m, err := w.on.device.Alloc(n)
		if w.note(err) != nil {
			return err
		}
		b := &Buffer{exec: e, bytes: n, on: w.on, memory: m}
		b.cell.Init(b.free)
		whole := false
		defer func() {
			if !whole { // the driver panicked
				m.Release()
			}
		}()
		b.mapped = m.Mapped()
		whole = true
		made.Store(b)
		if left.Load() {
			releaseFrom(&made)
		}
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	given = true
	return made.Load(), nil
}

func releaseFrom(made *atomic.Pointer[Buffer]) {
	if b := made.Swap(nil); b != nil {
		b.Release()
	}
}

// Write copies bytes into a buffer from an offset on. Errors are those of Submit.
func (e *Executor) Write(ctx context.Context, b *Buffer, offset int64, from []byte) error {
	return e.copy(ctx, "write", b, offset, from, Queue.Write)
}

// Read copies bytes out of a buffer from an offset on. Errors are those of Submit.
// After an error that is the context's, into may still be written to.
func (e *Executor) Read(ctx context.Context, b *Buffer, offset int64, into []byte) error {
	return e.copy(ctx, "read", b, offset, into, Queue.Read)
}

func (e *Executor) copy(ctx context.Context, verb string, b *Buffer, offset int64, host []byte, move func(Queue, Memory, int64, []byte) error) error {
	switch {
	case b == nil || b.exec != e:
		return fault.Invalidf("executor: "+verb, "the buffer is not of this executor")
	case offset < 0 || int64(len(host)) > b.bytes-offset:
		return fault.Invalidf("executor: "+verb, "%d bytes at %d, the buffer has %d", len(host), offset, b.bytes)
	case !b.cell.Pin():
		return fault.Invalidf("executor: "+verb, "the buffer was released")
	}
	return e.do(ctx, func(ctx context.Context, w *worker) error {
		if b.on != w.on {
			return fault.Wrap("executor: "+verb, "", "the buffer was lost with its device: allocate it again", errGone)
		}
		if err := w.note(move(w.queue, b.memory, offset, host)); err != nil {
			return err
		}
		return w.note(w.queue.Finish(ctx))
	}, b.cell.Unpin)
}
