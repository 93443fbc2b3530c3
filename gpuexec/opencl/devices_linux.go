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
	"sync"
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
	miscounts bool  // see grids
	unified   bool  // its memory is the host's
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

// devices asks every driver, once a process if there is a device and no query fails.
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
	var firstErr error
	for _, p := range platforms {
		ids, code := l.devicesOf(p)
		if code != noDevice {
			firstErr = cmp.Or(firstErr, failed("open", clGetDeviceIDs, code, false))
		}
		for _, id := range ids {
			d, err := l.describe(p, id)
			all, firstErr = append(all, d), cmp.Or(firstErr, err)
		}
	}
	switch {
	case len(all) == 0 && firstErr != nil:
		return nil, nil, firstErr
	case len(all) == 0:
		return nil, nil, unavailable("no driver has a device")
	}
	order(all)
	if firstErr == nil {
		loaded.devices = all
	}
	return l, all, nil
}

// order numbers devices: processors behind the others, and those that cannot be used behind
// all, so that number 0 can be used if any can.
func order(all []found) {
	place := func(f found) uint64 {
		if !f.info.Available {
			return typeCPU + 1
		}
		return f.kind & typeCPU
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(place(a), place(b)) })
	for i := range all {
		all[i].info.Index = i
	}
}

// listed are the devices when they were first asked for; none on an error. An operation's
// source and its launches are for the same device then.
var listed = sync.OnceValue(func() []found {
	_, all, _ := devices()
	return all
})

// side is that of the tiles of products on the device that the operations are written for;
// 0: the products are those for processors.
func (b backend) side() int64 {
	if b.other != (gpuexec.Limits{}) {
		return side(b.other)
	}
	return b.target().side()
}

// target is the device that the operations are written for, zero where there is none.
func (b backend) target() (f found) {
	if all := listed(); b.cfg.Device >= 0 && b.cfg.Device < len(all) {
		f = all[b.cfg.Device]
	}
	return f
}

// side is that of the tiles of products on the device.
func (f found) side() int64 {
	if !f.info.Available || f.kind&typeCPU != 0 {
		return 0
	}
	return side(f.limits)
}

// units are the compute units of the device that the operations are written for.
func (b backend) units() int { return max(b.target().info.ComputeUnits, 1) }

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

// devicesOf lists the devices of a platform.
func (l *library) devicesOf(platform handle) (all []handle, code int32) {
	keepSignals(func() {
		var n uint32
		if code = l.call(clGetDeviceIDs, uintptr(platform), typeAll, 0, 0, uintptr(unsafe.Pointer(&n))); code != success || n == 0 {
			return
		}
		all = make([]handle, n)
		if code = l.call(clGetDeviceIDs, uintptr(platform), typeAll, uintptr(n), uintptr(unsafe.Pointer(&all[0])), 0); code != success {
			all = nil
		}
	})
	return all, code
}

// describe asks for all that is said of a device. One whose query failed is not
// available: what it would do with a wrong limit is not known.
func (l *library) describe(platform, id handle) (f found, err error) {
	asked := func(by function, code int32) { err = cmp.Or(err, failed("open", by, code, false)) }
	text := func(what uintptr) string {
		s, code := l.text(clGetDeviceInfo, id, what)
		asked(clGetDeviceInfo, code)
		return s
	}
	number := func(what uintptr) int64 {
		n, code := l.number(clGetDeviceInfo, id, what)
		asked(clGetDeviceInfo, code)
		return int64(min(n, math.MaxInt64))
	}
	of := func(what uintptr) string {
		s, code := l.text(clGetPlatformInfo, platform, what)
		asked(clGetPlatformInfo, code)
		return s
	}
	api := text(deviceVersion)
	if err == nil && old(api) {
		f = found{id: id, kind: uint64(number(deviceType))}
		f.info = gpuexec.DeviceInfo{Backend: Name, Name: text(deviceName), Reason: fmt.Sprintf("its driver has %q, want OpenCL 1.2 or later: install a newer one", api)}
		return f, err
	}
	sizes, code := l.bytes(clGetDeviceInfo, id, deviceMaxItemSizes)
	asked(clGetDeviceInfo, code)
	f = found{id: id, kind: uint64(number(deviceType)), mostBytes: number(deviceMaxAlloc)}
	f.unified = number(deviceUnified) != 0
	f.limits = gpuexec.Limits{
		MaxItems: int(number(deviceMaxItems)), MaxLocal: number(deviceLocalMemory),
		Alignment:      max(1, int(number(deviceBaseAlign)/8)),
		CompileWorkers: 2, // more do not help: compilers take turns
	}
	for i := range min(len(sizes)/8, len(f.limits.MaxBlock)) {
		f.limits.MaxBlock[i] = int(min(binary.LittleEndian.Uint64(sizes[8*i:]), math.MaxInt))
	}
	version := of(platformVersion)
	f.miscounts = miscounts(version)
	library := of(platformName) + ", " + version
	driver := text(driverVersion)
	build := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", library, driver, api))
	f.info = gpuexec.DeviceInfo{
		Backend: Name, Name: text(deviceName), Driver: driver + ", " + library,
		Available: true, MemoryBytes: number(deviceMemory), ComputeUnits: int(number(deviceComputeUnits)),
		Identity: gpuexec.Identity{
			Library: library, Build: hex.EncodeToString(build[:]), Compiler: text(deviceLanguage), Driver: driver,
			Device: text(deviceVendor) + ", " + text(deviceName) + ", " + api,
		},
	}
	available, compiler := number(deviceAvailable), number(deviceCompiler)
	switch {
	case err != nil:
		f.info.Available, f.info.Reason = false, err.Error()
	case available == 0:
		f.info.Available, f.info.Reason = false, "its driver says that it is not available"
	case compiler == 0:
		f.info.Available, f.info.Reason = false, "its driver has no compiler"
	}
	if driver == "" || f.info.Name == "" {
		f.info.Identity.Build = "" // not known: nothing is stored (SPEC P12)
	}
	return f, err
}

// old reports whether a device lacks functions that are used here: a loader would call what
// its driver does not have.
func old(api string) bool {
	var major, minor int
	_, err := fmt.Sscanf(api, "OpenCL %d.%d", &major, &minor)
	return err != nil || major < 1 || major == 1 && minor < 2
}

// open opens the device of that index.
func (b backend) open(index int) (gpuexec.Device, error) {
	k := known(b.cfg.KnownBlobs)
	if k != "" {
		if err := k.add(nil); err != nil {
			return nil, failure("open", fault.ErrInvalid, "KnownBlobs: %w", err)
		}
	}
	opened, err := open(index)
	if err == nil {
		d := opened.(*device)
		d.known, d.unified = k, d.unified && !b.staged
		if b.other != (gpuexec.Limits{}) {
			d.limits.MaxBlock, d.limits.MaxItems, d.limits.MaxLocal = b.other.MaxBlock, b.other.MaxItems, b.other.MaxLocal
		}
	}
	return opened, err
}

// open opens the device of that index, with no known blobs.
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
