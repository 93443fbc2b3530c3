//go:build linux && (amd64 || arm64)

package vk

import (
	"time"
	"unsafe"
)

// Commands is one command buffer with the pools and the fence that it needs, for one
// user at a time.
type Commands struct {
	d       *Device
	pool    uint64 // of commands
	sets    uint64 // of descriptor sets
	buffer  uintptr
	fence   uint64
	targets []writeSet
	views   []uint64 // of the texel buffers of this recording
}

// MostSets is how many launches one recording takes; MostBuffers how many buffers
// all of them together.
const (
	MostSets    = 64
	MostBuffers = 1024
)

// Commands makes one for the queues of a family.
func (d *Device) Commands(family int) (c *Commands, err error) {
	c = &Commands{d: d}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	if c.pool, err = d.create(&d.createCommands, unsafe.Pointer(&commandPoolCreate{head{Type: typeCommandPoolCreate}, 0, uint32(family)})); err != nil {
		return c, err
	}
	sizes := []poolSize{{StorageBuffer, MostBuffers}, {UniformBuffer, MostBuffers}, {TexelBuffer, MostBuffers}}
	if c.sets, err = d.create(&d.createPool, unsafe.Pointer(&descriptorPoolCreate{head: head{Type: typeDescriptorPoolCreate}, sets: MostSets, sizes: uint32(len(sizes)), size: &sizes[0]})); err != nil {
		return c, err
	}
	if c.fence, err = d.create(&d.createFence, unsafe.Pointer(&fenceCreate{head: head{Type: typeFenceCreate}})); err != nil {
		return c, err
	}
	info := &commandBufferAllocate{head{Type: typeCommandBufferAllocate}, c.pool, 0, 1}
	return c, d.allocateCommands.do(d.handle, uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&c.buffer)))
}

// Close destroys it; nothing that was recorded may run any more.
func (c *Commands) Close() {
	c.dropViews()
	c.d.drop(&c.d.destroyFence, c.fence)
	c.d.drop(&c.d.destroyPool, c.sets)
	c.d.drop(&c.d.destroyCommands, c.pool) // with its buffer
}

// Begin starts a recording, in place of the last one, which has run.
func (c *Commands) Begin() error {
	c.dropViews()
	if err := c.d.resetCommands.do(c.d.handle, uintptr(c.pool), 0); err != nil {
		return err
	}
	if err := c.d.resetPool.do(c.d.handle, uintptr(c.sets), 0); err != nil {
		return err
	}
	const once = 1
	return c.d.begin.do(c.buffer, uintptr(unsafe.Pointer(&commandBufferBegin{head: head{Type: typeCommandBufferBegin}, flags: once})))
}

func (c *Commands) dropViews() {
	for _, v := range c.views {
		c.d.drop(&c.d.destroyView, v)
	}
	c.views = c.views[:0]
}

// Launch records a kernel over groups in three dimensions. parts are its buffers in
// the order of bindings.
func (c *Commands) Launch(pipeline uint64, l Layout, bindings []Binding, parts []BufferPart, push []byte, groups [3]uint32) error {
	d := c.d
	if len(bindings) > 0 {
		set := uint64(0)
		info := &setAllocate{head{Type: typeSetAllocate}, c.sets, 1, 0, &l.Set}
		if err := d.allocateSets.do(d.handle, uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&set))); err != nil {
			return err
		}
		c.targets = c.targets[:0]
		for i, b := range bindings {
			w := writeSet{head: head{Type: typeWriteSet}, set: set, binding: b.Number, count: 1, kind: b.Kind, buffer: &parts[i]}
			if b.Kind == TexelBuffer {
				v, err := d.view(&parts[i])
				if err != nil {
					return err
				}
				c.views = append(c.views, v)
				w.view = &v
			}
			c.targets = append(c.targets, w)
		}
		d.updateSets.call(d.handle, uintptr(len(c.targets)), uintptr(unsafe.Pointer(&c.targets[0])), 0, 0)
		const compute = 1
		d.bindSets.call(c.buffer, compute, uintptr(l.Whole), 0, 1, uintptr(unsafe.Pointer(&set)), 0, 0)
	}
	if len(push) > 0 {
		d.pushConstants.call(c.buffer, uintptr(l.Whole), stageCompute, 0, uintptr(len(push)), uintptr(unsafe.Pointer(&push[0])))
	}
	d.bindPipeline.call(c.buffer, 1, uintptr(pipeline))
	d.dispatch.call(c.buffer, uintptr(groups[0]), uintptr(groups[1]), uintptr(groups[2]))
	return nil
}

// Barrier makes what was written before visible to what is recorded after it, by
// kernels, copies and the host.
func (c *Commands) Barrier() {
	const (
		stages = 0x800 | 0x1000 | 0x4000                     // compute, transfer, host
		write  = 0x40 | 0x1000 | 0x4000                      // by shaders, transfers, the host
		read   = 0x8 | 0x20 | 0x800 | 0x2000 | 0x40 | 0x1000 // as uniforms, by shaders, transfers, the host; and writing again
	)
	b := &memoryBarrier{head{Type: typeMemoryBarrier}, write, read}
	c.d.barrier.call(c.buffer, stages, stages, 0, 1, uintptr(unsafe.Pointer(b)), 0, 0, 0, 0)
}

// Copy records a copy between buffers.
func (c *Commands) Copy(from, to uint64, part Copy) {
	c.d.copy.call(c.buffer, uintptr(from), uintptr(to), 1, uintptr(unsafe.Pointer(&part)))
}

// Zero records the filling of a part of a buffer, both numbers multiples of four.
func (c *Commands) Zero(buffer uint64, offset, bytes int64) {
	c.d.fill.call(c.buffer, uintptr(buffer), uintptr(offset), uintptr(bytes), 0)
}

// Submit ends the recording and has a queue run it.
func (c *Commands) Submit(q Queue) error {
	if err := c.d.end.do(c.buffer); err != nil {
		return err
	}
	if err := c.d.resetFences.do(c.d.handle, 1, uintptr(unsafe.Pointer(&c.fence))); err != nil {
		return err
	}
	info := &submit{head: head{Type: typeSubmit}, buffers: 1, commandBuffers: &c.buffer}
	return c.d.submit.do(uintptr(q), 1, uintptr(unsafe.Pointer(info)), uintptr(c.fence))
}

// Wait waits until what was submitted has run, at most so long; done says whether it has.
func (c *Commands) Wait(most time.Duration) (done bool, err error) {
	r := c.d.waitFences.call(c.d.handle, 1, uintptr(unsafe.Pointer(&c.fence)), 1, uintptr(most))
	if r == 0 {
		return true, c.d.waitFences.fault()
	}
	return false, failed(c.d.waitFences.name, r)
}
