//go:build linux && (amd64 || arm64)

package opencl

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// errDriver is an error of the driver that means nothing more.
var errDriver = errors.New("the driver failed")

// found is a device of a driver.
type found struct {
	id        handle
	kind      uint64
	mostBytes int64 // bytes of one buffer
	limits    gpuexec.Limits
	info      gpuexec.DeviceInfo
}

// list describes the devices there are, at least one.
func list() ([]gpuexec.DeviceInfo, error) {
	_, all, err := devices()
	if err != nil {
		return nil, err
	}
	infos := make([]gpuexec.DeviceInfo, len(all))
	for i, d := range all {
		infos[i] = d.info
	}
	return infos, nil
}

// devices asks every driver, once a process if there is a device.
func devices() (*library, []found, error) {
	loaded.Lock()
	defer loaded.Unlock()
	l := loaded.library
	if l == nil {
		var err error
		if l, err = load(soname); err != nil {
			return nil, nil, err
		}
		loaded.library = l
	}
	if loaded.devices != nil {
		return l, loaded.devices, nil
	}
	platforms, code := l.platforms()
	if code != success && code != noPlatform {
		return nil, nil, failed("open", clGetPlatformIDs, code, false)
	}
	var all []found
	for _, p := range platforms {
		for _, id := range l.devicesOf(p) {
			all = append(all, l.describe(p, id))
		}
	}
	if len(all) == 0 {
		return nil, nil, unavailable("no driver has a device")
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.kind&typeCPU, b.kind&typeCPU) })
	for i := range all {
		all[i].info.Index = i
	}
	loaded.devices = all
	return l, all, nil
}

func (l *library) platforms() (all []handle, code int32) {
	keepSignals(func() {
		var n uint32
		if code = l.call(clGetPlatformIDs, 0, 0, uintptr(unsafe.Pointer(&n))); code == success && n > 0 {
			all = make([]handle, n)
			code = l.call(clGetPlatformIDs, uintptr(n), uintptr(unsafe.Pointer(&all[0])), 0)
		}
	})
	return all, code
}

// devicesOf lists the devices of a platform; none where it does not tell.
func (l *library) devicesOf(platform handle) (all []handle) {
	keepSignals(func() {
		var n uint32
		if code := l.call(clGetDeviceIDs, uintptr(platform), typeAll, 0, 0, uintptr(unsafe.Pointer(&n))); code != success || n == 0 {
			return
		}
		all = make([]handle, n)
		if code := l.call(clGetDeviceIDs, uintptr(platform), typeAll, uintptr(n), uintptr(unsafe.Pointer(&all[0])), 0); code != success {
			all = nil
		}
	})
	return all
}

func (l *library) describe(platform, id handle) found {
	text := func(what uintptr) string { return l.text(clGetDeviceInfo, id, what) }
	number := func(what uintptr) int64 {
		return int64(min(l.number(clGetDeviceInfo, id, what), math.MaxInt64))
	}
	sizes, _ := l.bytes(clGetDeviceInfo, id, deviceMaxItemSizes)
	f := found{id: id, kind: uint64(number(deviceType)), mostBytes: number(deviceMaxAlloc)}
	f.limits = gpuexec.Limits{
		MaxItems: int(number(deviceMaxItems)), MaxLocal: number(deviceLocalMemory),
		Alignment:      max(1, int(number(deviceBaseAlign)/8)),
		CompileWorkers: 2, // more do not help: compilers take turns
	}
	for i := range min(len(sizes)/8, len(f.limits.MaxBlock)) {
		f.limits.MaxBlock[i] = int(binary.LittleEndian.Uint64(sizes[8*i:]))
	}
	library := l.text(clGetPlatformInfo, platform, platformName) + ", " + l.text(clGetPlatformInfo, platform, platformVersion)
	driver := text(driverVersion)
	build := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", library, driver, text(deviceVersion)))
	f.info = gpuexec.DeviceInfo{
		Backend: Name, Name: text(deviceName), Driver: driver + ", " + library,
		Available: true, MemoryBytes: number(deviceMemory), ComputeUnits: int(number(deviceComputeUnits)),
		Identity: gpuexec.Identity{
			Library: library, Build: hex.EncodeToString(build[:]), Compiler: text(deviceLanguage), Driver: driver,
			Device: text(deviceVendor) + ", " + text(deviceName) + ", " + text(deviceVersion),
		},
	}
	switch {
	case number(deviceAvailable) == 0:
		f.info.Available, f.info.Reason = false, "its driver says that it is not available"
	case number(deviceCompiler) == 0:
		f.info.Available, f.info.Reason = false, "its driver has no compiler"
	}
	if driver == "" || f.info.Name == "" {
		f.info.Identity.Build = "" // not known: nothing is stored (SPEC P12)
	}
	return f
}

// open opens the device of that index.
func open(index int) (gpuexec.Device, error) {
	l, all, err := devices()
	switch {
	case err != nil:
		return nil, err
	case index < 0 || index >= len(all):
		return nil, failure("open", fault.ErrNotFound, "there is no device %d: they are numbered from 0 to %d", index, len(all)-1)
	case !all[index].info.Available:
		return nil, failure("open", fault.ErrUnavailable, "%s: %s", all[index].info.Name, all[index].info.Reason)
	}
	return l.openDevice(all[index])
}
