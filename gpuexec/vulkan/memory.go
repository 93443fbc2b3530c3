//go:build linux && (amd64 || arm64)

package vulkan

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
	"github.com/kiln-cache/kiln/internal/heap"
)

// blockBytes is what the driver is asked for at a time. Drivers bound the number of
// allocations, some at 4,096.
const blockBytes = 64 << 20

// memory is the device's, in blocks of the driver from which parts are handed out.
type memory struct {
	d      *device
	align  int64
	kind   int   // of memory, an index of the driver's
	heap   int64 // bytes of the heap that it comes from
	mapped bool  // the host sees it
	host   int   // kind of memory that the host sees, for copies

	mu struct {
		sync.Mutex
		blocks []*block
	}
	zero struct { // fills what the host does not see
		sync.Mutex
		commands *vk.Commands
	}
}

// block is one allocation of the driver, with one buffer over all of it.
type block struct {
	memory, buffer uint64
	bytes          int64
	mapped         []byte
	heap           *heap.Heap
	parts          int
}

// init chooses the kinds of memory, among those that the driver takes buffers in.
func (m *memory) init(d *device) error {
	m.d = d
	m.align = max(int64(d.of.Limits.MinStorageAlignment), int64(d.of.Limits.MinUniformAlignment), int64(d.of.Limits.MinTexelAlignment), texelBytes) // of a vec4, too
	probe, want, err := d.vk.Buffer(blockBytes)
	d.vk.DropBuffer(probe)
	if err != nil {
		return err
	}
	m.kind, m.host, m.mapped = kinds(d.of.Types, d.of.Heaps, want.Types)
	if m.kind < 0 || m.host < 0 {
		return unavailable(fmt.Errorf("%w: %s has no memory for kernels or for copies", fault.ErrUnavailable, d.info.Name))
	}
	m.heap, m.mapped = int64(d.of.Heaps[d.of.Types[m.kind].Heap].Bytes), m.mapped && !d.b.staged
	return nil
}

// kinds are the kinds of memory for kernels and for copies, of those whose bits taken has; -1:
// there is none. For kernels it is device memory that the host sees and caches, where there is as
// much of it as of any device memory: that is mapped. Else it is device memory that is copied
// to and from. The host reads what it does not cache, as all that it may see of a card, a word at a time.
func kinds(types []vk.MemoryType, heaps []vk.MemoryHeap, taken uint32) (kernels, copies int, mapped bool) {
	const seen, cached = vk.MemoryHostVisible | vk.MemoryHostCoherent, vk.MemoryHostCached
	best := func(flags uint32) (kind int, bytes uint64) {
		kind = -1
		for i, t := range types {
			if n := heaps[t.Heap].Bytes; taken&(1<<i) != 0 && t.Flags&flags == flags && n > bytes {
				kind, bytes = i, n
			}
		}
		return kind, bytes
	}
	kernels, most := best(vk.MemoryDeviceLocal)
	if copies, _ = best(seen | cached); copies < 0 {
		copies, _ = best(seen)
	}
	if shared, bytes := best(vk.MemoryDeviceLocal | seen | cached); shared >= 0 && bytes >= most {
		kernels, mapped = shared, true
	}
	return kernels, copies, mapped
}

// Alloc implements gpuexec.Device.
func (d *device) Alloc(bytes int64) (gpuexec.Memory, error) {
	m := &d.memory
	if bytes > m.heap {
		return nil, failure("alloc", fault.ErrTooLarge, "%d bytes, the device has %d in all", bytes, m.heap)
	}
	p, err := m.take(bytes)
	if err != nil {
		return nil, err
	}
	if p.of.mapped != nil {
		clear(p.Mapped())
		return p, nil
	}
	if err := m.clear(p); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// take gives a part of a block, of a new one where none has room. The driver is asked
// without the lock: two that find no room may both get a block.
func (m *memory) take(bytes int64) (*part, error) {
	if p := m.there(bytes); p != nil {
		return p, nil
	}
	b, err := m.d.block(max(blockBytes, (bytes+m.align-1)/m.align*m.align+m.align), m.kind, m.mapped)
	if err != nil {
		return nil, err
	}
	b.heap = heap.New(b.bytes, m.align)
	at, _, _ := b.heap.Take(bytes)
	b.parts = 1
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.blocks = append(m.mu.blocks, b)
	return &part{m, b, at, bytes}, nil
}

// there gives a part of a block that is there, or nil.
func (m *memory) there(bytes int64) *part {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.mu.blocks {
		if at, _, ok := b.heap.Take(bytes); ok {
			b.parts++
			return &part{m, b, at, bytes}
		}
	}
	return nil
}

// block asks the driver for memory of a kind, with a buffer over it.
func (d *device) block(bytes int64, kind int, mapped bool) (b *block, err error) {
	b = &block{bytes: bytes}
	defer func() {
		if err != nil {
			d.drop(b)
		}
	}()
	var want vk.Requirements
	if b.buffer, want, err = d.vk.Buffer(bytes); err != nil {
		return b, err
	}
	if want.Types&(1<<kind) == 0 {
		return b, fmt.Errorf("vulkan: alloc: the driver takes no buffers in memory of kind %d", kind)
	}
	if b.memory, err = d.vk.Allocate(int64(want.Bytes), kind); err != nil {
		return b, err
	}
	if err = d.vk.Bind(b.buffer, b.memory); err == nil && mapped {
		b.mapped, err = d.vk.Map(b.memory, bytes)
	}
	return b, err
}

func (d *device) drop(b *block) {
	d.vk.DropBuffer(b.buffer)
	d.vk.Free(b.memory)
}

// clear fills a part that the host does not see with zeros.
func (m *memory) clear(p *part) (err error) {
	m.zero.Lock()
	defer m.zero.Unlock()
	if m.zero.commands == nil {
		if m.zero.commands, err = m.d.vk.Commands(m.d.family); err != nil {
			return err
		}
	}
	c := m.zero.commands
	if err := c.Begin(); err != nil {
		return err
	}
	c.Zero(p.of.buffer, p.offset, (p.bytes+3)/4*4) // within the part: it is aligned to more
	c.Barrier()
	return m.d.queues[0].run(c)
}

func (m *memory) close() {
	if m.zero.commands != nil {
		m.zero.commands.Close()
	}
	for _, b := range m.mu.blocks {
		m.d.drop(b)
	}
}

// part is memory that was handed out.
type part struct {
	m             *memory
	of            *block
	offset, bytes int64
}

// Mapped implements gpuexec.Memory.
func (p *part) Mapped() []byte {
	if p.of.mapped == nil {
		return nil
	}
	return p.of.mapped[p.offset : p.offset+p.bytes : p.offset+p.bytes]
}

// Release implements gpuexec.Memory. The last part of a block gives the block back,
// unless it is the only one and no larger than others.
func (p *part) Release() {
	m := p.m
	m.mu.Lock()
	p.of.heap.Give(p.offset, p.bytes)
	p.of.parts--
	empty := p.of.parts == 0 && (len(m.mu.blocks) > 1 || p.of.bytes > blockBytes)
	if empty {
		m.mu.blocks = slices.DeleteFunc(m.mu.blocks, func(b *block) bool { return b == p.of })
	}
	m.mu.Unlock()
	if empty {
		m.d.drop(p.of)
	}
}
