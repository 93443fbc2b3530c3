//go:build linux && (amd64 || arm64)

package vulkan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// physical lists the devices in the order of their numbers.
func physical() ([]*vk.Physical, error) {
	i, err := vk.Open()
	if err != nil {
		return nil, err
	}
	all, err := i.Devices()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the loader knows no device", fault.ErrUnavailable)
	}
	order(all)
	return all, nil
}

// order puts discrete devices first and processors last, and what cannot be used behind all,
// so that number 0 can be used if any can.
func order(all []*vk.Physical) {
	place := func(p *vk.Physical) int {
		if unusable(p) != "" {
			return 2 // 1: of no known kind
		}
		return slices.Index([]uint32{vk.TypeCPU, 0, vk.TypeVirtual, vk.TypeIntegrated, vk.TypeDiscrete}, p.Type) * -1
	}
	slices.SortStableFunc(all, func(a, b *vk.Physical) int { return cmp.Compare(place(a), place(b)) })
}

// unusable is why a device cannot be used; empty: it can.
func unusable(p *vk.Physical) string {
	switch {
	case p.Old():
		return fmt.Sprintf("its driver has Vulkan %s, want 1.2 or later: install a newer one", version(p.API))
	case family(p) < 0:
		return "it computes nothing: it has no compute queue"
	}
	return ""
}

// preferred reports whether a device is one of those that come first by their name.
func (b *Backend) preferred(p *vk.Physical) bool {
	return strings.Contains(strings.ToLower(vk.Text(p.Name[:])), strings.ToLower(b.cfg.Prefer))
}

// ordered are devices with the preferred ones first.
func (b *Backend) ordered(all []*vk.Physical) []*vk.Physical {
	if b.cfg.Prefer == "" { // each choice of a shader asks
		return all
	}
	first := func(p *vk.Physical) int {
		if b.preferred(p) {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(all), func(x, y *vk.Physical) int { return cmp.Compare(first(x), first(y)) })
}

// listed are the devices when they were first asked for; none on an error.
var listed = sync.OnceValue(func() []*vk.Physical {
	all, _ := physical()
	return all
})

// processor reports whether the device is a processor: for these there are other shaders.
func (b *Backend) processor() bool {
	all, index := b.ordered(listed()), b.cfg.Device
	return index >= 0 && index < len(all) && all[index].Type == vk.TypeCPU
}

func (b *Backend) devices() []gpuexec.DeviceInfo {
	all, err := physical()
	if err != nil {
		return absent(err)
	}
	all = b.ordered(all)
	list := make([]gpuexec.DeviceInfo, len(all))
	for i, p := range all {
		list[i] = describe(i, p)
	}
	return list
}

func describe(index int, p *vk.Physical) gpuexec.DeviceInfo {
	d := gpuexec.DeviceInfo{Backend: Name, Index: index, Name: vk.Text(p.Name[:]), Reason: unusable(p)}
	if d.Available = d.Reason == ""; !d.Available {
		return d
	}
	d.Driver = vk.Text(p.Driver.Name[:]) + " " + vk.Text(p.Driver.Info[:])
	for _, h := range p.Heaps {
		if h.Flags&vk.MemoryDeviceLocal != 0 {
			d.MemoryBytes = max(d.MemoryBytes, int64(h.Bytes))
		}
	}
	build := sha256.New()
	fmt.Fprintf(build, "%v %v %q %q %q %x %x %x", p.API, p.Properties.Driver, p.Driver.Name, p.Driver.Info, p.Name, p.CacheUUID, p.IDs.DeviceUUID, p.IDs.DriverUUID)
	d.Identity = gpuexec.Identity{
		Library: library(), Build: hex.EncodeToString(build.Sum(nil)[:16]), Compiler: vk.Text(p.Driver.Info[:]), Driver: d.Driver,
		Device: fmt.Sprintf("%s %04x:%04x", d.Name, p.Vendor, p.Device),
	}
	return d
}

func version(v uint32) string { return fmt.Sprintf("%d.%d.%d", v>>22, v>>12&0x3ff, v&0xfff) }

// family is the family of queues that compute and, if there is one, do nothing else;
// -1: none.
func family(p *vk.Physical) int {
	computes := func(f vk.QueueFamily) bool { return f.Flags&vk.QueueCompute != 0 && f.Count > 0 }
	if i := slices.IndexFunc(p.Families, func(f vk.QueueFamily) bool { return computes(f) && f.Flags&vk.QueueGraphics == 0 }); i >= 0 {
		return i
	}
	return slices.IndexFunc(p.Families, computes)
}

// identity is what a file of pipelines must fit.
func identity(p *vk.Physical) pipelinefile.Identity {
	return pipelinefile.Identity{
		Library: "kiln 1", Vendor: p.Vendor, Device: p.Device, API: p.API, Driver: p.Properties.Driver, DriverID: p.Driver.ID,
		DriverName: vk.Text(p.Driver.Name[:]), DriverInfo: vk.Text(p.Driver.Info[:]), DeviceName: vk.Text(p.Name[:]),
		UUID: p.CacheUUID, DeviceUUID: p.IDs.DeviceUUID, DriverUUID: p.IDs.DriverUUID,
	}
}

func (b *Backend) open(ctx context.Context, index int) (gpuexec.Device, error) {
	all, err := physical()
	if err != nil {
		return nil, unavailable(err)
	}
	if index < 0 || index >= len(all) {
		return nil, failure("open", fault.ErrNotFound, "device %d: there are %d, from 0", index, len(all))
	}
	if all = b.ordered(all); !b.preferred(all[0]) {
		return nil, failure("open", fault.ErrNotFound, "no device is called %q (KILN_VULKAN_DEVICE, Config.Prefer): the first is %s", b.cfg.Prefer, vk.Text(all[0].Name[:]))
	}
	info := describe(index, all[index])
	if !info.Available {
		return nil, failure("open "+info.Name, fault.ErrUnavailable, "%s", info.Reason)
	}
	return openDevice(ctx, b, info, all[index])
}
