//go:build linux && (amd64 || arm64)

package vk

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Device is an open device with one family of queues.
type Device struct {
	handle  uintptr
	objects atomic.Int64

	destroy, getQueue, waitIdle                                          proc
	allocate, free, mapMemory                                            proc
	createBuffer, destroyBuffer, requirements, bind                      proc
	createView, destroyView                                              proc
	createModule, destroyModule                                          proc
	createSetLayout, destroySetLayout                                    proc
	createLayout, destroyLayout                                          proc
	createPipelines, destroyPipeline                                     proc
	createCache, destroyCache, cacheData, mergeCaches                    proc
	createPool, destroyPool, resetPool, allocateSets, updateSets         proc
	createCommands, destroyCommands, resetCommands, allocateCommands     proc
	begin, end                                                           proc
	bindPipeline, bindSets, pushConstants, dispatch, barrier, copy, fill proc
	submit                                                               proc
	createFence, destroyFence, waitFences, resetFences                   proc
}

// Open opens the device with so many queues of a family, and with every feature of
// the core that it has.
func (p *Physical) Open(family, queues int) (*Device, error) {
	features := &features2{head: head{Type: typeFeatures2}}
	v11 := &features11{head{Type: typeFeatures11}, [48]byte{}}
	v12 := &features12{head{Type: typeFeatures12}, [192]byte{}}
	v13 := &features13{head{Type: typeFeatures13}, [64]byte{}}
	features.Next, v11.Next = unsafe.Pointer(v11), unsafe.Pointer(v12)
	if p.API >= Version(1, 3) {
		v12.Next = unsafe.Pointer(v13)
	}
	p.instance.features.call(p.handle, uintptr(unsafe.Pointer(features)))
	priorities := make([]float32, queues)
	for i := range priorities {
		priorities[i] = 1
	}
	info := &deviceCreate{head: head{Type: typeDeviceCreate, Next: unsafe.Pointer(features)}, queues: 1, queueInfos: &queueCreate{
		head: head{Type: typeDeviceQueueCreate}, family: uint32(family), count: uint32(queues), priority: &priorities[0],
	}}
	d := &Device{}
	if err := p.instance.createDevice.do(p.handle, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&d.handle))); err != nil {
		return nil, err
	}
	err := table{
		"vkDestroyDevice": &d.destroy, "vkGetDeviceQueue": &d.getQueue, "vkDeviceWaitIdle": &d.waitIdle,
		"vkAllocateMemory": &d.allocate, "vkFreeMemory": &d.free, "vkMapMemory": &d.mapMemory,
		"vkCreateBuffer": &d.createBuffer, "vkDestroyBuffer": &d.destroyBuffer,
		"vkGetBufferMemoryRequirements": &d.requirements, "vkBindBufferMemory": &d.bind,
		"vkCreateBufferView": &d.createView, "vkDestroyBufferView": &d.destroyView,
		"vkCreateShaderModule": &d.createModule, "vkDestroyShaderModule": &d.destroyModule,
		"vkCreateDescriptorSetLayout": &d.createSetLayout, "vkDestroyDescriptorSetLayout": &d.destroySetLayout,
		"vkCreatePipelineLayout": &d.createLayout, "vkDestroyPipelineLayout": &d.destroyLayout,
		"vkCreateComputePipelines": &d.createPipelines, "vkDestroyPipeline": &d.destroyPipeline,
		"vkCreatePipelineCache": &d.createCache, "vkDestroyPipelineCache": &d.destroyCache,
		"vkGetPipelineCacheData": &d.cacheData, "vkMergePipelineCaches": &d.mergeCaches,
		"vkCreateDescriptorPool": &d.createPool, "vkDestroyDescriptorPool": &d.destroyPool, "vkResetDescriptorPool": &d.resetPool,
		"vkAllocateDescriptorSets": &d.allocateSets, "vkUpdateDescriptorSets": &d.updateSets,
		"vkCreateCommandPool": &d.createCommands, "vkDestroyCommandPool": &d.destroyCommands, "vkResetCommandPool": &d.resetCommands,
		"vkAllocateCommandBuffers": &d.allocateCommands, "vkBeginCommandBuffer": &d.begin, "vkEndCommandBuffer": &d.end,
		"vkCmdBindPipeline": &d.bindPipeline, "vkCmdBindDescriptorSets": &d.bindSets, "vkCmdPushConstants": &d.pushConstants,
		"vkCmdDispatch": &d.dispatch, "vkCmdPipelineBarrier": &d.barrier, "vkCmdCopyBuffer": &d.copy, "vkCmdFillBuffer": &d.fill,
		"vkQueueSubmit": &d.submit,
		"vkCreateFence": &d.createFence, "vkDestroyFence": &d.destroyFence, "vkWaitForFences": &d.waitFences, "vkResetFences": &d.resetFences,
	}.find(&p.instance.deviceProc, d.handle)
	if err != nil {
		if d.destroy.at != 0 {
			d.Close()
		}
		return nil, err
	}
	return d, nil
}

// Objects is how many objects of the device were made and not destroyed yet.
func (d *Device) Objects() int64 { return d.objects.Load() }

// Close destroys the device.
func (d *Device) Close() { d.destroy.call(d.handle, 0) }

// Idle waits until nothing runs any more.
func (d *Device) Idle() error { return d.waitIdle.do(d.handle) }

// Queue is a queue of a device, one user at a time.
type Queue uintptr

// Queue gives the queue of a number.
func (d *Device) Queue(family, number int) (q Queue) {
	d.getQueue.call(d.handle, uintptr(family), uintptr(number), uintptr(unsafe.Pointer(&q)))
	return q
}

// create makes one object and counts it.
func (d *Device) create(p *proc, info unsafe.Pointer) (h uint64, err error) {
	if err = p.do(d.handle, uintptr(info), 0, uintptr(unsafe.Pointer(&h))); err == nil {
		d.objects.Add(1)
	}
	return h, err
}

// drop destroys one, unless it is none.
func (d *Device) drop(p *proc, h uint64) {
	if h != 0 {
		p.call(d.handle, uintptr(h), 0)
		d.objects.Add(-1)
	}
}

// Allocate reserves memory of a type.
func (d *Device) Allocate(bytes int64, kind int) (uint64, error) {
	return d.create(&d.allocate, unsafe.Pointer(&memoryAllocate{head{Type: typeMemoryAllocate}, uint64(bytes), uint32(kind), 0}))
}

// Free gives it back, mapped or not.
func (d *Device) Free(memory uint64) { d.drop(&d.free, memory) }

// Map gives the host's view of memory that the host can see.
func (d *Device) Map(memory uint64, bytes int64) ([]byte, error) {
	var at *byte
	if err := d.mapMemory.do(d.handle, uintptr(memory), 0, uintptr(bytes), 0, uintptr(unsafe.Pointer(&at))); err != nil {
		return nil, err
	}
	return unsafe.Slice(at, bytes), nil
}

// Usages of a buffer: for copies from and to it, and in kernels as texel buffer, as
// uniform or as storage buffer.
const bufferUsage = 1 | 2 | 4 | 0x10 | 0x20

// Buffer makes a buffer of so many bytes, and tells what memory it wants.
func (d *Device) Buffer(bytes int64) (h uint64, want Requirements, err error) {
	h, err = d.create(&d.createBuffer, unsafe.Pointer(&bufferCreate{head: head{Type: typeBufferCreate}, bytes: uint64(bytes), usage: bufferUsage}))
	if err == nil {
		d.requirements.call(d.handle, uintptr(h), uintptr(unsafe.Pointer(&want)))
	}
	return h, want, err
}

// Bind puts a buffer at the start of memory.
func (d *Device) Bind(buffer, memory uint64) error {
	return d.bind.do(d.handle, uintptr(buffer), uintptr(memory), 0)
}

// DropBuffer destroys a buffer.
func (d *Device) DropBuffer(h uint64) { d.drop(&d.destroyBuffer, h) }

// view makes the view of a texel buffer, whose texels are vectors of 4 float32.
func (d *Device) view(p *BufferPart) (uint64, error) {
	const rgba32f = 109
	return d.create(&d.createView, unsafe.Pointer(&viewCreate{head: head{Type: typeViewCreate}, buffer: p.Buffer, format: rgba32f, offset: p.Offset, bytes: p.Bytes}))
}

// Kinds of descriptors.
const (
	TexelBuffer   = 4
	UniformBuffer = 6
	StorageBuffer = 7
)

// stageCompute is the one stage.
const stageCompute = 0x20

// Binding is one of a kernel's buffers.
type Binding struct{ Number, Kind uint32 }

// Layout is what a pipeline takes.
type Layout struct{ Set, Whole uint64 }

// Layout makes the layout of a pipeline that takes these bindings in set 0 and so
// many bytes of push constants.
func (d *Device) Layout(bindings []Binding, pushBytes uint32) (l Layout, err error) {
	list := make([]setLayoutBinding, len(bindings))
	for i, b := range bindings {
		list[i] = setLayoutBinding{binding: b.Number, kind: b.Kind, count: 1, stages: stageCompute}
	}
	l.Set, err = d.create(&d.createSetLayout, unsafe.Pointer(&setLayoutCreate{head: head{Type: typeSetLayoutCreate}, count: uint32(len(list)), bindings: unsafe.SliceData(list)}))
	if err != nil {
		return l, err
	}
	info := &pipelineLayoutCreate{head: head{Type: typePipelineLayoutCreate}, sets: 1, layout: &l.Set}
	if pushBytes > 0 {
		info.ranges, info.push = 1, &pushRange{stageCompute, 0, pushBytes}
	}
	if l.Whole, err = d.create(&d.createLayout, unsafe.Pointer(info)); err != nil {
		d.DropLayout(l)
	}
	return l, err
}

// DropLayout destroys a layout.
func (d *Device) DropLayout(l Layout) {
	d.drop(&d.destroyLayout, l.Whole)
	d.drop(&d.destroySetLayout, l.Set)
}

// PipelineInfo is what a compute pipeline is made of.
type PipelineInfo struct {
	Words     []uint32
	Entry     string
	Constants []Constant // places in Data
	Data      []byte
	Subgroup  uint32 // lanes; 0: the driver's choice
	Layout    uint64
	Cache     uint64 // 0: none
}

// Pipeline makes a compute pipeline, and says what the driver tells of it.
func (d *Device) Pipeline(p *PipelineInfo) (h uint64, told Feedback, err error) {
	module, err := d.create(&d.createModule, unsafe.Pointer(&shaderModuleCreate{head: head{Type: typeShaderModuleCreate}, bytes: 4 * uint64(len(p.Words)), words: unsafe.SliceData(p.Words)}))
	if err != nil {
		return 0, told, err
	}
	defer d.drop(&d.destroyModule, module)
	feedback := &feedbackCreate{head: head{Type: typeFeedbackCreate}, whole: &told, stages: 1, stage: &Feedback{}}
	info := &computePipelineCreate{head: head{Type: typeComputePipelineCreate, Next: unsafe.Pointer(feedback)}, layout: p.Layout, base: -1,
		stage: shaderStage{head: head{Type: typeShaderStage}, stage: stageCompute, module: module, entry: cString(p.Entry)}}
	if len(p.Constants) > 0 {
		info.stage.special = &specialization{count: uint32(len(p.Constants)), constants: &p.Constants[0], bytes: uint64(len(p.Data)), data: unsafe.SliceData(p.Data)}
	}
	if p.Subgroup > 0 {
		info.stage.Next = unsafe.Pointer(&requiredSubgroup{head{Type: typeRequiredSubgroup}, p.Subgroup, 0})
	}
	err = d.createPipelines.do(d.handle, uintptr(p.Cache), 1, uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&h)))
	if err == nil && h == 0 {
		err = errors.New("vkCreateComputePipelines: the driver gave no pipeline")
	}
	if err == nil {
		d.objects.Add(1)
	}
	return h, told, err
}

// DropPipeline destroys a pipeline.
func (d *Device) DropPipeline(h uint64) { d.drop(&d.destroyPipeline, h) }

// Cache makes a pipeline cache of what CacheData gave, or an empty one.
func (d *Device) Cache(data []byte) (uint64, error) {
	return d.create(&d.createCache, unsafe.Pointer(&pipelineCacheCreate{head: head{Type: typePipelineCacheCreate}, bytes: uint64(len(data)), data: unsafe.SliceData(data)}))
}

// DropCache destroys a pipeline cache.
func (d *Device) DropCache(h uint64) { d.drop(&d.destroyCache, h) }

// CacheData is the content of a pipeline cache, its header first.
func (d *Device) CacheData(h uint64) ([]byte, error) {
	const incomplete = 5
	for range 8 { // it may grow between the two calls
		n := uintptr(0)
		if err := d.cacheData.do(d.handle, uintptr(h), uintptr(unsafe.Pointer(&n)), 0); err != nil {
			return nil, err
		}
		data := make([]byte, n)
		r := d.cacheData.call(d.handle, uintptr(h), uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(unsafe.SliceData(data))))
		if r != incomplete {
			return data[:n], failed(d.cacheData.name, r)
		}
	}
	return nil, fmt.Errorf("%s: the cache grew faster than it could be read", d.cacheData.name)
}

// Merge adds what is in from to into.
func (d *Device) Merge(into, from uint64) error {
	return d.mergeCaches.do(d.handle, uintptr(into), 1, uintptr(unsafe.Pointer(&from)))
}
