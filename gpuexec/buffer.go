package gpuexec

import (
	"context"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/lease"
	"github.com/kiln-cache/kiln/internal/sums"
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
// not as much. Before a runtime's executor answers that, constants on the device that nobody
// uses go, the cheapest to make again first.
func (e *Executor) Alloc(ctx context.Context, n int64) (*Buffer, error) {
	if n < 1 {
		return nil, fault.Invalidf("executor: alloc", "%d bytes, want at least 1", n)
	}
	b, err := e.alloc(ctx, n)
	if most := e.info.MemoryBytes; most > 0 && n > most {
		return b, err
	}
	// Where what is free lies apart, more has to go than is asked for.
	for less := n; errors.Is(err, fault.ErrTooLarge) && e.spare(ctx, less); less = sums.Add(less, less) {
		b, err = e.alloc(ctx, n)
	}
	return b, err
}

// spare has constants that nobody uses leave the device, that many bytes if there are, and
// reports whether any have.
func (e *Executor) spare(ctx context.Context, bytes int64) bool {
	if e.cfg.spare == nil {
		return false
	}
	freed := e.cfg.spare(ctx, func(value any) bool {
		b, is := value.(*Buffer)
		return is && b.exec == e
	}, bytes)
	return freed > 0 && e.released(ctx) == nil
}

func (e *Executor) alloc(ctx context.Context, n int64) (*Buffer, error) {
	return e.reserve(ctx, n, func(d Device) (Memory, error) { return d.Alloc(n) })
}

// reserve makes a buffer of n bytes that the device gives.
func (e *Executor) reserve(ctx context.Context, n int64, give func(Device) (Memory, error)) (*Buffer, error) {
	var made atomic.Pointer[Buffer]
	var left atomic.Bool // the caller has gone: whichever side takes the buffer out releases it
	given := false
	defer func() {
		if !given { // be it that ctx panicked
			left.Store(true)
			releaseFrom(&made)
		}
	}()
	err := e.do(ctx, newJob(ctx, func(_ context.Context, w *worker) error {
		m, err := give(w.on.device)
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
	}, nil))
	if err != nil {
		return nil, e.ended("alloc", "", err)
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
	return e.Submit(ctx, CopyTo(b, offset, from))
}

// Read copies bytes out of a buffer from an offset on, as CopyFrom. Errors are those of
// Submit.
func (e *Executor) Read(ctx context.Context, b *Buffer, offset int64, into []byte) error {
	return e.Submit(ctx, CopyFrom(b, offset, into))
}
