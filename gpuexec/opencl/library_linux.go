//go:build linux && (amd64 || arm64)

package opencl

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

// function is one of the library's.
type function int

const (
	clGetPlatformIDs function = iota
	clGetPlatformInfo
	clGetDeviceIDs
	clGetDeviceInfo
	clCreateContext
	clReleaseContext
	clCreateCommandQueue
	clReleaseCommandQueue
	clCreateProgramWithSource
	clCreateProgramWithBinary
	clBuildProgram
	clGetProgramInfo
	clGetProgramBuildInfo
	clReleaseProgram
	clCreateKernel
	clGetKernelInfo
	clGetKernelArgInfo
	clReleaseKernel
	clSetKernelArg
	clCreateBuffer
	clCreateSubBuffer
	clReleaseMemObject
	clEnqueueNDRangeKernel
	clEnqueueFillBuffer
	clEnqueueWriteBuffer
	clEnqueueReadBuffer
	clEnqueueMapBuffer
	clEnqueueUnmapMemObject
	clFinish
	clWaitForEvents
	clGetEventInfo
	clReleaseEvent
	functions
)

var names = [functions]string{
	"clGetPlatformIDs", "clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo", "clCreateContext", "clReleaseContext",
	"clCreateCommandQueue", "clReleaseCommandQueue", "clCreateProgramWithSource", "clCreateProgramWithBinary", "clBuildProgram",
	"clGetProgramInfo", "clGetProgramBuildInfo", "clReleaseProgram", "clCreateKernel", "clGetKernelInfo", "clGetKernelArgInfo", "clReleaseKernel",
	"clSetKernelArg", "clCreateBuffer", "clCreateSubBuffer", "clReleaseMemObject", "clEnqueueNDRangeKernel",
	"clEnqueueFillBuffer", "clEnqueueWriteBuffer", "clEnqueueReadBuffer", "clEnqueueMapBuffer", "clEnqueueUnmapMemObject",
	"clFinish", "clWaitForEvents", "clGetEventInfo", "clReleaseEvent",
}

func (f function) String() string { return names[f] }

// Values of the C headers that are used here.
const (
	platformVersion = 0x0901
	platformName    = 0x0902

	deviceType         = 0x1000
	deviceComputeUnits = 0x1002
	deviceMaxItems     = 0x1004 // of a block, in all
	deviceMaxItemSizes = 0x1005 // of a block, in each dimension
	deviceMaxAlloc     = 0x1010
	deviceBaseAlign    = 0x1019 // in bits
	deviceMemory       = 0x101f
	deviceLocalMemory  = 0x1023
	deviceAvailable    = 0x1027
	deviceCompiler     = 0x1028
	deviceName         = 0x102b
	deviceVendor       = 0x102c
	driverVersion      = 0x102d
	deviceVersion      = 0x102f
	deviceUnified      = 0x1035 // whether its memory is the host's
	deviceLanguage     = 0x103d

	typeCPU = 2
	typeAll = 0xffffffff

	memReadWrite = 1
	regionOrigin = 0x1220

	programBinarySizes = 0x1165
	programBinaries    = 0x1166
	programBuildLog    = 0x1183
	kernelArguments    = 0x1191
	eventStatus        = 0x11d3

	argumentSpace = 0x1196
	argumentType  = 0x1198
	spaceGlobal   = 0x119b
	spaceLocal    = 0x119c
	spaceConstant = 0x119d
)

// handle is an object of the library.
type handle uintptr

// library is the opened libOpenCL. Safe for concurrent use; it stays loaded for the
// life of the process.
type library struct{ at [functions]uintptr }

var loaded struct {
	sync.Mutex
	library *library
	devices []found // of it; nil = not asked, there were none, or a query failed
}

// soname is what the loader's package installs.
const soname = "libOpenCL.so.1"

// load opens a library of that name.
func load(soname string) (*library, error) {
	var lib uintptr
	var err error
	keepSignals(func() { lib, err = dl.Open(soname, dl.Local) })
	if err != nil {
		return nil, unavailable(err)
	}
	l := &library{}
	for f := range functions {
		if l.at[f], err = purego.Dlsym(lib, f.String()); err != nil {
			return nil, unavailable(err)
		}
	}
	return l, nil
}

// native counts the objects that were made and not released; inject, if it is set, may
// answer in the library's place: what a test of faults does.
var (
	native atomic.Int64
	inject atomic.Pointer[func(f function) int32]
)

// call calls the library. Pointers are converted in the call itself, so that what they
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

// errorCodes are numbers that never move, for functions that give an object.
var errorCodes = sync.Pool{New: func() any { return new(int32) }}

// create calls a function that gives an object, and takes where to put the error last.
//
//go:uintptrescapes
func (l *library) create(f function, args ...uintptr) (handle, int32) {
	if hook := inject.Load(); hook != nil {
		if code := (*hook)(f); code != success {
			return 0, code
		}
	}
	code := errorCodes.Get().(*int32)
	defer errorCodes.Put(code)
	*code = success
	made, _, _ := purego.SyscallN(l.at[f], append(args, uintptr(unsafe.Pointer(code)))...)
	if *code != success {
		return 0, *code
	}
	native.Add(1)
	return handle(made), success
}

// release gives an object back. An error of it is of no use: the object is nobody's.
func (l *library) release(f function, h handle) {
	if h != 0 {
		purego.SyscallN(l.at[f], uintptr(h))
		native.Add(-1)
	}
}

// bytes asks for what a function tells of an object, of any length.
func (l *library) bytes(f function, of handle, what uintptr) ([]byte, int32) {
	var size uintptr
	if code := l.call(f, uintptr(of), what, 0, 0, uintptr(unsafe.Pointer(&size))); code != success || size == 0 {
		return nil, code
	}
	b := make([]byte, size)
	code := l.call(f, uintptr(of), what, size, uintptr(unsafe.Pointer(&b[0])), 0)
	return b, code
}

// text is what a function tells of an object as text.
func (l *library) text(f function, of handle, what uintptr) (string, int32) {
	b, code := l.bytes(f, of, what)
	if code != success || len(b) == 0 {
		return "", code
	}
	return string(b[:len(b)-1]), success // a zero ends it
}

// number is the same as a number of up to 8 bytes.
func (l *library) number(f function, of handle, what uintptr) (n uint64, code int32) {
	b, code := l.bytes(f, of, what)
	if code != success {
		return 0, code
	}
	for i := min(len(b), 8); i > 0; i-- {
		n = n<<8 | uint64(b[i-1])
	}
	return n, success
}

// The codes that mean more than that the call failed.
const (
	success          = 0
	noDevice         = -1
	notAvailable     = -2
	allocationFailed = -4
	outOfResources   = -5
	outOfHostMemory  = -6
	buildFailed      = -11
	invalidContext   = -34
	invalidQueue     = -36
	invalidBinary    = -42
	invalidOptions   = -43
	invalidName      = -46
	firstOfArguments = -49 // down to lastOfSizes: what a launch gives
	lastOfSizes      = -56
	invalidSize      = -61
	invalidGlobal    = -63
	noPlatform       = -1001
	illegalAccess    = -9999 // of NVIDIA's driver
)

var codes = map[int32]string{
	noDevice: "CL_DEVICE_NOT_FOUND", notAvailable: "CL_DEVICE_NOT_AVAILABLE", -3: "CL_COMPILER_NOT_AVAILABLE",
	allocationFailed: "CL_MEM_OBJECT_ALLOCATION_FAILURE", outOfResources: "CL_OUT_OF_RESOURCES", outOfHostMemory: "CL_OUT_OF_HOST_MEMORY",
	buildFailed: "CL_BUILD_PROGRAM_FAILURE", -13: "CL_MISALIGNED_SUB_BUFFER_OFFSET", -14: "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
	-30: "CL_INVALID_VALUE", invalidContext: "CL_INVALID_CONTEXT", invalidQueue: "CL_INVALID_COMMAND_QUEUE", -38: "CL_INVALID_MEM_OBJECT",
	invalidBinary: "CL_INVALID_BINARY", invalidOptions: "CL_INVALID_BUILD_OPTIONS", -45: "CL_INVALID_PROGRAM_EXECUTABLE",
	invalidName: "CL_INVALID_KERNEL_NAME", -49: "CL_INVALID_ARG_INDEX", -50: "CL_INVALID_ARG_VALUE", -51: "CL_INVALID_ARG_SIZE",
	-52: "CL_INVALID_KERNEL_ARGS", -54: "CL_INVALID_WORK_GROUP_SIZE", -55: "CL_INVALID_WORK_ITEM_SIZE", -56: "CL_INVALID_GLOBAL_OFFSET",
	invalidSize: "CL_INVALID_BUFFER_SIZE", invalidGlobal: "CL_INVALID_GLOBAL_WORK_SIZE", noPlatform: "CL_PLATFORM_NOT_FOUND_KHR",
}

// failed is what a code means at an operation; nil for success. done says that the call
// waits for kernels: what is short then is not what the call asked for.
func failed(op string, f function, code int32, done bool) error {
	if code >= success {
		return nil
	}
	var kind error
	switch {
	case code == notAvailable, code == invalidContext, code == invalidQueue, code == illegalAccess, done && code == outOfResources:
		kind = fault.ErrDeviceLost
	case code == allocationFailed, code == outOfResources, code == outOfHostMemory, code == invalidSize:
		kind = fault.ErrTooLarge
	case code == buildFailed, code == invalidOptions, code == invalidName, code == invalidGlobal, code <= firstOfArguments && code >= lastOfSizes:
		kind = fault.ErrInvalid
	case code == invalidBinary:
		kind = fault.ErrRefused
	case code == noPlatform:
		kind = fault.ErrUnavailable
	default:
		kind = errDriver
	}
	name := codes[code]
	if name == "" {
		name = fmt.Sprintf("code %d", code)
	}
	return failure(op, kind, "%s: %s", f, name)
}
