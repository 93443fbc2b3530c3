//go:build linux && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/spirv"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// driver makes the device's pipelines for package pipelinefile.
type driver struct{ *device }

// driverCache is a VkPipelineCache.
type driverCache struct {
	d      *device
	handle uint64
}

// OpenCache implements pipelinefile.Driver.
func (d driver) OpenCache(_ context.Context, blob []byte) (pipelinefile.DriverCache, error) {
	h, err := d.vk.Cache(blob)
	if err != nil {
		return nil, err
	}
	return &driverCache{d.device, h}, nil
}

// Merge implements pipelinefile.DriverCache.
func (c *driverCache) Merge(_ context.Context, from pipelinefile.DriverCache) error {
	return c.d.vk.Merge(c.handle, from.(*driverCache).handle)
}

// Blob implements pipelinefile.DriverCache.
func (c *driverCache) Blob(context.Context) ([]byte, error) { return c.d.vk.CacheData(c.handle) }

// Destroy implements pipelinefile.DriverCache.
func (c *driverCache) Destroy() { c.d.vk.DropCache(c.handle) }

// pipeline is a VkPipeline with what a launch of it has to know.
type pipeline struct {
	d        *device
	handle   uint64
	layout   vk.Layout
	module   *spirv.Module
	bindings []vk.Binding
	bytes    int64
	size     gpuexec.Size // of a group
}

// Build implements pipelinefile.Driver.
func (d driver) Build(_ context.Context, m pipelinefile.Module, cache pipelinefile.DriverCache) (_ pipelinefile.Pipeline, err error) {
	given := make(map[uint32]uint64)
	for _, c := range m.Constants {
		given[c.ID] = c.Value
	}
	module, err := spirv.Read(m.Words, m.Entry, given)
	if err != nil {
		return nil, err
	}
	p := &pipeline{d: d.device, module: module, bytes: int64(4 * len(m.Words))} // the driver does not say what it takes
	l := &d.of.Limits
	var uniforms, texels uint32
	for _, b := range module.Bindings {
		kind := uint32(vk.StorageBuffer)
		if b.Uniform {
			kind = vk.UniformBuffer
			uniforms++
		}
		if b.Texels {
			kind = vk.TexelBuffer
			texels++
		}
		p.bindings = append(p.bindings, vk.Binding{Number: b.Number, Kind: kind})
	}
	switch storage := uint32(len(module.Bindings)) - uniforms - texels; {
	case uniforms > l.MaxUniformBuffers, storage > l.MaxStorageBuffers, texels > l.MaxImages, len(module.Bindings) > vk.MostBuffers:
		return nil, fault.Invalidf("vulkan: module", "%d uniform, %d storage and %d texel buffers, the device takes %d, %d and %d",
			uniforms, storage, texels, l.MaxUniformBuffers, l.MaxStorageBuffers, l.MaxImages)
	case module.PushBytes > l.MaxPushBytes:
		return nil, fault.Invalidf("vulkan: module", "%d bytes of push constants, the device takes %d: pass a buffer", module.PushBytes, l.MaxPushBytes)
	case module.SharedBytes > uint64(l.MaxShared):
		return nil, fault.Invalidf("vulkan: module", "groups share %d bytes, the device has %d", module.SharedBytes, l.MaxShared)
	}
	info := &vk.PipelineInfo{Words: m.Words, Entry: m.Entry, Subgroup: m.Subgroup}
	if err := constants(info, module, m); err != nil {
		return nil, err
	}
	if err := p.sized(m.LocalSize); err != nil {
		return nil, err
	}
	if n := d.of.Subgroups; m.Subgroup > 0 && (m.Subgroup < n.Min || m.Subgroup > n.Max) {
		return nil, failure("compile", fault.ErrUnsupported, "subgroups of %d, the device has %d to %d", m.Subgroup, n.Min, n.Max)
	}
	if p.layout, err = d.vk.Layout(p.bindings, (module.PushBytes+3)/4*4); err != nil {
		return nil, err
	}
	info.Layout = p.layout.Whole
	if cache != nil {
		info.Cache = cache.(*driverCache).handle
	}
	told := vk.Feedback{}
	if p.handle, told, err = d.vk.Pipeline(info); err != nil {
		p.Destroy()
		return nil, err
	}
	if told.Flags&vk.FeedbackValid != 0 {
		d.b.counts.told.Add(1)
	}
	if told.Flags&vk.FeedbackCacheHit != 0 {
		d.b.counts.cacheHits.Add(1)
	}
	d.made()
	return p, nil
}

// constants lays out the specialisation constants of a module, those of the size of
// its groups among them.
func constants(info *vk.PipelineInfo, module *spirv.Module, m pipelinefile.Module) error {
	add := func(id uint32, bytes uint8, value uint64) {
		info.Constants = append(info.Constants, vk.Constant{ID: id, Offset: uint32(len(info.Data)), Bytes: uint64(bytes)})
		info.Data = append(info.Data, binary.LittleEndian.AppendUint64(nil, value)[:bytes]...)
	}
	for _, c := range m.Constants {
		has, there := module.Constants[c.ID]
		bytes := c.Bytes
		if bytes == 0 {
			bytes = 4
		}
		if !there || has != bytes {
			return fault.Invalidf("vulkan: module", "specialisation constant %d of %d bytes: the module has %v, by id and bytes", c.ID, bytes, module.Constants)
		}
		add(c.ID, bytes, c.Value)
	}
	for i, n := range m.LocalSize {
		switch {
		case n == 0, n == module.LocalSize[i] && (module.LocalIDs[i] == spirv.NoID || slices.ContainsFunc(m.Constants, isOf(module.LocalIDs[i]))):
		case module.LocalIDs[i] == spirv.NoID:
			return fault.Invalidf("vulkan: module", "its groups have the fixed size %v, not %v: leave it to specialisation constants (local_size_x_id), or ask for that", module.LocalSize, m.LocalSize)
		case slices.ContainsFunc(m.Constants, isOf(module.LocalIDs[i])):
			return fault.Invalidf("vulkan: module", "blocks of %v, and a specialisation constant that makes them %v: give one of them", m.LocalSize, module.LocalSize)
		default:
			add(module.LocalIDs[i], 4, uint64(n))
		}
	}
	return nil
}

func isOf(id uint32) func(pipelinefile.Constant) bool {
	return func(c pipelinefile.Constant) bool { return c.ID == id }
}

// sized notes the size of the groups, and refuses what the device cannot run.
func (p *pipeline) sized(given [3]uint32) error {
	l, items := &p.d.of.Limits, uint64(1)
	for i, n := range p.module.LocalSize {
		if given[i] > 0 {
			n = given[i]
		}
		p.size[i] = int(n)
		items = min(items*uint64(n), 1<<32)
		if n == 0 || n > l.MaxGroupSize[i] || items > uint64(l.MaxInvocations) {
			return fault.Invalidf("vulkan: module", "groups of %d items in %c: the device takes %v, and %d in all", n, "xyz"[i], l.MaxGroupSize, l.MaxInvocations)
		}
	}
	return nil
}

// Destroy implements pipelinefile.Pipeline.
func (p *pipeline) Destroy() {
	p.d.vk.DropPipeline(p.handle)
	p.d.vk.DropLayout(p.layout)
}
