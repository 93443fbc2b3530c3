//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// poolProperties is CUmemPoolProps of cuda.h, from CUDA 11.2 on.
type poolProperties struct {
	kind, handles int32
	location      [2]int32 // kind, ordinal
	_             uintptr  // of Windows
	most          uintptr  // bytes; 0 = the driver's
	_             [56]byte // later fields, and what is reserved
}

// keptPart is which part of a device's memory a pool keeps at most when nobody has it.
const keptPart = 16

// openPool makes the pool of an open device. Memory of a pool is freed in the order of a
// stream, and is there for the next one at once; cuMemFree waits for all streams of the
// context, and with it for what other workers run. A device without pools, or with a
// driver before CUDA 11.2, has memory of the driver.
func (d *device) openPool() {
	if !d.pools || d.at[cuMemPoolCreate] == 0 {
		return
	}
	props := &poolProperties{kind: pinnedMemory, location: [2]int32{onDevice, d.ordinal}}
	kept := new(uint64)
	*kept = uint64(d.info.MemoryBytes) / keptPart
	_ = d.within("open", func() (err error) {
		if d.pool, err = d.make("open", cuMemPoolCreate, uintptr(unsafe.Pointer(props))); err != nil {
			return err
		}
		return d.failed("open", cuMemPoolSetAttribute, d.call(cuMemPoolSetAttribute, uintptr(d.pool), releaseThreshold, uintptr(unsafe.Pointer(kept))))
	})
}

// Alloc implements gpuexec.Device.
func (d *device) Alloc(bytes int64) (gpuexec.Memory, error) {
	if bytes > d.info.MemoryBytes {
		return nil, failure("alloc", fault.ErrTooLarge, "%d bytes, the device has %d", bytes, d.info.MemoryBytes)
	}
	m := &memory{d: d}
	err := d.within("alloc", func() (err error) {
		if d.pool == 0 {
			m.at, err = d.make("alloc", cuMemAlloc, uintptr(bytes))
		} else {
			m.at, err = d.make("alloc", cuMemAllocFromPoolAsync, uintptr(bytes), uintptr(d.pool), uintptr(d.stream))
		}
		if err != nil {
			return err
		}
		if err := d.clear(m.at, bytes); err != nil {
			d.free(m.at)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.mu.memories[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// clear fills memory with zeros.
func (d *device) clear(at handle, bytes int64) error {
	d.zeros.Lock()
	defer d.zeros.Unlock()
	return cmp.Or(
		d.failed("alloc", cuMemsetD8Async, d.call(cuMemsetD8Async, uintptr(at), 0, uintptr(bytes), uintptr(d.stream))),
		d.failed("alloc", cuStreamSynchronize, d.call(cuStreamSynchronize, uintptr(d.stream))))
}

// free gives memory back that no launch uses any more, within the context.
func (d *device) free(at handle) {
	if d.pool == 0 {
		d.release(cuMemFree, at)
	} else {
		d.release(cuMemFreeAsync, at, uintptr(d.stream))
	}
}

type memory struct {
	d  *device
	at handle
}

// Mapped implements gpuexec.Memory.
func (m *memory) Mapped() []byte { return nil }

func (m *memory) Release() {
	m.d.mu.Lock()
	delete(m.d.mu.memories, m)
	m.d.mu.Unlock()
	m.d.dropBy(m.d.free, m.at)
}
