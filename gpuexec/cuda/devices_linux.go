//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/nvrtc"
)

// found is a device of the driver.
type found struct {
	ordinal    int32
	capability int    // 90 is compute capability 9.0
	target     string // of compiles: sm_90
	pools      bool   // it has memory pools
	limits     gpuexec.Limits
	info       gpuexec.DeviceInfo
}

func (b backend) list() ([]gpuexec.DeviceInfo, error) {
	_, _, all, err := b.devices()
	if err != nil {
		return nil, err
	}
	infos := make([]gpuexec.DeviceInfo, len(all))
	for i, d := range all {
		infos[i] = d.info
	}
	return infos, nil
}

// devices asks the driver and the compiler.
func (b backend) devices() (*library, *nvrtc.Library, []found, error) {
	l, err := driver()
	compiler, missing := nvrtc.Open(b.cfg.NVRTC)
	switch {
	case errors.Is(err, fault.ErrUnavailable) && missing != nil:
		return nil, nil, nil, &fault.Error{Op: "cuda: open", Backend: Name, Err: fmt.Errorf("%w; %w", inner(err), inner(missing))}
	case err != nil || missing != nil:
		return nil, nil, nil, cmp.Or(err, missing)
	}
	count := new(int32)
	if err := l.idle(cuDeviceGetCount, l.call(cuDeviceGetCount, uintptr(unsafe.Pointer(count)))); err != nil {
		return nil, nil, nil, err
	}
	if *count < 1 {
		return nil, nil, nil, failure("open", fault.ErrUnavailable, hiddenAll)
	}
	all := make([]found, *count)
	var errs error
	for i := range all {
		all[i], err = l.describe(i, compiler)
		if by := b.cublas(); by != nil { // what is chosen holds for the whole device's kind
			info := &all[i].info
			info.Driver += ", cuBLAS " + by.version
			info.Identity.Library += ", cuBLAS " + by.version
			info.Identity.Device += ", " + info.Name
		}
		errs = cmp.Or(errs, err)
	}
	if !slices.ContainsFunc(all, func(f found) bool { return f.info.Available }) && errs != nil {
		return nil, nil, nil, errs
	}
	return l, compiler, all, nil
}

// describe asks for all that is said of a device. One whose query failed is not
// available: what it would do with a wrong limit is not known.
func (l *library) describe(index int, compiler *nvrtc.Library) (f found, err error) {
	asked := func(by function, code int32) { err = cmp.Or(err, l.idle(by, code)) }
	number := new(int32)
	asked(cuDeviceGet, l.call(cuDeviceGet, uintptr(unsafe.Pointer(number)), uintptr(index)))
	f.ordinal = *number
	attribute := func(what uintptr) int {
		*number = 0
		asked(cuDeviceGetAttribute, l.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(number)), what, uintptr(uint32(f.ordinal))))
		return int(*number)
	}
	name := make([]byte, 256)
	asked(cuDeviceGetName, l.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(uint32(f.ordinal))))
	text, _, _ := strings.Cut(string(name), "\x00")
	bytes := new(uintptr)
	asked(cuDeviceTotalMem, l.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(bytes)), uintptr(uint32(f.ordinal))))
	runtime.KeepAlive(bytes)
	f.limits = gpuexec.Limits{
		MaxItems: attribute(maxThreads), MaxLocal: int64(attribute(maxShared)), Alignment: 256,
		CompileWorkers: runtime.GOMAXPROCS(0), RunWorkers: 32,
	}
	for i := range f.limits.MaxGrid {
		f.limits.MaxBlock[i], f.limits.MaxGrid[i] = attribute(maxBlock+uintptr(i)), attribute(maxGrid+uintptr(i))
	}
	f.capability = 10*attribute(major) + attribute(minor)
	f.pools = l.version >= 11020 && attribute(memoryPools) == 1 // older drivers do not know the attribute
	target := targetOf(f.capability, compiler.Archs)
	f.target = target
	by := "NVRTC " + compiler.Version
	f.info = gpuexec.DeviceInfo{
		Backend: Name, Index: index, Name: text, Available: true, MemoryBytes: int64(*bytes), ComputeUnits: attribute(multiprocessors),
		Driver:   fmt.Sprintf("CUDA %d.%d, compute capability %d.%d, %s", l.version/1000, l.version%1000/10, f.capability/10, f.capability%10, by),
		Identity: identityOf(compiler, f.capability),
	}
	mode := attribute(computeMode)
	switch {
	case err != nil:
		f.info.Reason = inner(err).Error()
	case mode == modeProhibited:
		f.info.Reason = "its compute mode prohibits contexts: nvidia-smi -c DEFAULT"
	case target == "":
		f.info.Reason = fmt.Sprintf("%s does not compile for compute capability %d.%d: install another version of NVRTC", by, f.capability/10, f.capability%10)
	}
	f.info.Available = f.info.Reason == ""
	return f, err
}

// open opens the device of that index.
func (b backend) open(ctx context.Context, index int) (gpuexec.Device, error) {
	l, compiler, all, err := b.devices()
	switch {
	case err != nil:
		return nil, err
	case index < 0 || index >= len(all):
		return nil, failure("open", fault.ErrNotFound, "there is no device %d: they are numbered from 0 to %d", index, len(all)-1)
	case !all[index].info.Available:
		return nil, failure("open", fault.ErrUnavailable, "%s: %s", all[index].info.Name, all[index].info.Reason)
	}
	return l.openDevice(ctx, all[index], compiler, b.cublas(), b.cfg.InProcess)
}
