//go:build linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

// function is one of the driver's.
type function int

const (
	cuInit function = iota
	cuDriverGetVersion
	cuGetErrorName
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuDevicePrimaryCtxReset
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuStreamCreate
	cuStreamSynchronize
	cuStreamDestroy
	cuEventCreate
	cuEventRecord
	cuEventSynchronize
	cuEventElapsedTime
	cuEventDestroy
	cuMemAlloc
	cuMemFree
	cuMemAllocHost
	cuMemFreeHost
	cuMemsetD8Async
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuModuleLoadData
	cuModuleGetFunction
	cuModuleUnload
	cuFuncGetAttribute
	cuFuncSetAttribute
	cuLaunchKernel
	cuMemPoolCreate // from here on a driver may be without, see device.openPool
	cuMemPoolSetAttribute
	cuMemPoolDestroy
	cuMemAllocFromPoolAsync
	cuMemFreeAsync
	functions
)

// names are the symbols: with _v2 where the one without is of an older interface.
var names = [functions]string{
	"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
	"cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2",
	"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamCreate", "cuStreamSynchronize", "cuStreamDestroy_v2",
	"cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", "cuEventDestroy_v2", "cuMemAlloc_v2", "cuMemFree_v2",
	"cuMemAllocHost_v2", "cuMemFreeHost", "cuMemsetD8Async", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
	"cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload", "cuFuncGetAttribute", "cuFuncSetAttribute", "cuLaunchKernel",
	"cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemPoolDestroy", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
}

func (f function) String() string { return names[f] }

// Values of cuda.h that are used here.
const (
	maxThreads      = 1 // of a block; attributes of a device
	maxBlock        = 2 // three of them
	maxGrid         = 5 // three
	multiprocessors = 16
	computeMode     = 20
	major           = 75
	minor           = 76
	maxShared       = 97 // bytes of a block that asks for it
	memoryPools     = 115

	modeProhibited = 2

	sharedBytes        = 1 // attributes of a function
	maxDynamicShared   = 8
	plainShared        = 48 << 10 // what a block may have that does not ask
	streamNonBlocking  = 1
	eventDisableTiming = 2

	pinnedMemory     = 1 // of a pool
	onDevice         = 1 // where it is
	releaseThreshold = 4 // attribute of a pool: bytes
)

// handle is an object of the driver.
type handle uintptr

// library is the opened driver. Safe for concurrent use; it stays loaded for the life of
// the process.
type library struct {
	at      [functions]uintptr
	version int // 13000 is 13.0
}

var loaded struct {
	sync.Mutex
	library *library
}

// soname is what the driver's package installs.
const soname = "libcuda.so.1"

// driver opens the driver, once a process.
func driver() (*library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.library == nil {
		l, err := load(soname)
		if err != nil {
			return nil, err
		}
		loaded.library = l
	}
	return loaded.library, nil
}

// load opens a driver of that name.
func load(soname string) (*library, error) {
	lib, err := dl.Open(soname, dl.Local)
	if err != nil {
		return nil, unavailable(err)
	}
	return bind(func(name string) (uintptr, error) { return purego.Dlsym(lib, name) })
}

// bind takes the driver's functions from where they are, and wakes it.
func bind(resolve func(name string) (uintptr, error)) (*library, error) {
	l := &library{}
	for f := range functions {
		var err error
		if l.at[f], err = resolve(f.String()); err != nil && f < cuMemPoolCreate {
			return nil, unavailable(err)
		}
	}
	if err := l.idle(cuInit, l.call(cuInit, 0)); err != nil {
		return nil, err
	}
	version := new(int32)
	if err := l.idle(cuDriverGetVersion, l.call(cuDriverGetVersion, uintptr(unsafe.Pointer(version)))); err != nil {
		return nil, err
	}
	l.version = int(*version)
	return l, nil
}

// native counts the objects that were made and not released; inject, if it is set, may
// answer in the driver's place: what a test of faults does.
var (
	native atomic.Int64
	inject atomic.Pointer[func(f function) int32]
)

// call calls the driver. Pointers are converted in the call itself, so that what they
// point to stays where it is.
//
//go:uintptrescapes
func (l *library) call(f function, args ...uintptr) int32 {
	if hook := inject.Load(); hook != nil {
		if code := (*hook)(f); code != success {
			return code
		}
	}
	code, _, _ := purego.SyscallN(l.at[f], args...)
	return int32(code)
}

// create calls a function that puts a new object at the address that comes first.
//
//go:uintptrescapes
func (l *library) create(f function, args ...uintptr) (handle, int32) {
	made := new(handle)
	var pinner runtime.Pinner // the conversion below is in no argument of the call: made would move with the stack
	pinner.Pin(made)
	defer pinner.Unpin()
	code := l.call(f, append([]uintptr{uintptr(unsafe.Pointer(made))}, args...)...)
	if code != success {
		return 0, code
	}
	native.Add(1)
	return *made, success
}

// quietly calls a function whose error is of no use.
//
//go:uintptrescapes
func (l *library) quietly(f function, args ...uintptr) { purego.SyscallN(l.at[f], args...) }

// release gives an object back. more follows it in the call. An error is of no use: the
// object is nobody's.
func (l *library) release(f function, h handle, more ...uintptr) {
	if h != 0 {
		l.quietly(f, append([]uintptr{uintptr(h)}, more...)...)
		native.Add(-1)
	}
}

// within calls fn on a thread that has a context, and leaves the thread as it was.
func (l *library) within(op string, context handle, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.failed(op, cuCtxPushCurrent, l.call(cuCtxPushCurrent, uintptr(context))); err != nil {
		return err
	}
	defer func() {
		popped := new(handle)
		l.quietly(cuCtxPopCurrent, uintptr(unsafe.Pointer(popped)))
	}()
	return fn()
}

// The codes that mean more than that the call failed.
const (
	success         = 0
	invalidValue    = 1
	outOfMemory     = 2
	stubLibrary     = 34
	inUse           = 46
	noDevice        = 100
	invalidImage    = 200
	noBinary        = 209
	eccError        = 214
	invalidPTX      = 218
	unsupportedPTX  = 222
	invalidSource   = 300
	notFound        = 500
	illegalAddress  = 700
	outOfResources  = 701
	launchFailed    = 719
	noPermission    = 800
	mismatch        = 803
	noCompatibility = 804
)

// meanings has the errors that codes stand for; another one is errDriver.
var meanings = map[int32]error{
	invalidValue: fault.ErrInvalid, notFound: fault.ErrInvalid, outOfMemory: fault.ErrTooLarge, outOfResources: fault.ErrTooLarge,
	3: fault.ErrUnavailable, stubLibrary: fault.ErrUnavailable, 36: fault.ErrUnavailable, noDevice: fault.ErrUnavailable, 102: fault.ErrUnavailable,
	inUse: fault.ErrUnavailable, 221: fault.ErrUnavailable, 223: fault.ErrUnavailable, 304: fault.ErrUnavailable, noPermission: fault.ErrUnavailable,
	802: fault.ErrUnavailable, mismatch: fault.ErrUnavailable, noCompatibility: fault.ErrUnavailable,
	805: fault.ErrUnavailable, 807: fault.ErrUnavailable, 808: fault.ErrUnavailable, 809: fault.ErrUnavailable, // the server that processes share a device by
	invalidImage: fault.ErrRefused, noBinary: fault.ErrRefused, invalidPTX: fault.ErrRefused, unsupportedPTX: fault.ErrRefused, invalidSource: fault.ErrRefused,
	// What a context does not recover from.
	4: fault.ErrDeviceLost, 101: fault.ErrDeviceLost, 201: fault.ErrDeviceLost, eccError: fault.ErrDeviceLost, 220: fault.ErrDeviceLost, 226: fault.ErrDeviceLost,
	illegalAddress: fault.ErrDeviceLost, 702: fault.ErrDeviceLost, 709: fault.ErrDeviceLost, 710: fault.ErrDeviceLost, 714: fault.ErrDeviceLost, 715: fault.ErrDeviceLost,
	716: fault.ErrDeviceLost, 717: fault.ErrDeviceLost, 718: fault.ErrDeviceLost, launchFailed: fault.ErrDeviceLost, 721: fault.ErrDeviceLost,
	806: fault.ErrDeviceLost, 810: fault.ErrDeviceLost, 999: fault.ErrDeviceLost,
}

// errDriver is an error of the driver that means nothing more.
var errDriver = errors.New("the driver failed")

// failed is what a code means at an operation; nil for success.
func (l *library) failed(op string, f function, code int32) error {
	if code == success {
		return nil
	}
	kind := meanings[code]
	if kind == nil {
		kind = errDriver
	}
	err := failure(op, kind, "%s: %s", f, l.nameOf(code))
	switch code {
	case stubLibrary, mismatch, noCompatibility:
		err = failure(op, kind, "%s: %s: %s", f, l.nameOf(code), install)
	case noDevice:
		err = failure(op, kind, "%s: %s: %s", f, l.nameOf(code), hiddenAll)
	case inUse:
		err = failure(op, kind, "%s: %s: another process may have the device for itself: see nvidia-smi", f, l.nameOf(code))
	case unsupportedPTX:
		err.Reason, err.Field = fault.Outdated, "driver"
	case noBinary:
		err.Reason, err.Field = fault.DeviceMismatch, "device"
	case invalidImage, invalidPTX, invalidSource:
		err.Reason = fault.DriverRefused
	}
	return err
}

// hiddenAll is what to look at where the driver shows no device.
const hiddenAll = "the driver shows no device: nvidia-smi -L lists those there are, and CUDA_VISIBLE_DEVICES may hide them"

// idle is failed for calls that need no device: whatever fails then, nothing can be lost.
func (l *library) idle(f function, code int32) error {
	err := l.failed("open", f, code)
	if err == nil || errors.Is(err, fault.ErrUnavailable) {
		return err
	}
	return failure("open", fault.ErrUnavailable, "%s: %s: see whether nvidia-smi finds the driver in order", f, l.nameOf(code))
}

// nameOf is the driver's name for a code.
func (l *library) nameOf(code int32) string {
	name := new(*byte)
	result, _, _ := purego.SyscallN(l.at[cuGetErrorName], uintptr(uint32(code)), uintptr(unsafe.Pointer(name)))
	if result != success || *name == nil {
		return fmt.Sprintf("code %d", code)
	}
	return fmt.Sprintf("%s (%d)", textAt(*name), code)
}
