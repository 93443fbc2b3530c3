package gpuexec

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// Backend is one way to drive devices. A package that has one registers it from its
// init function, like a database driver. Safe for concurrent use.
//
// A panic or runtime.Goexit in what a backend does fails the call that led to it and
// nothing else (SPEC F3). A backend whose driver can end the process when it is given a
// bad blob has a method Aborts() bool that says so: its loads are marked (SPEC P11).
type Backend interface {
	// Name is what users write: "cpu", for instance.
	Name() string
	// Devices lists what is here. A driver that is not installed is one
	// DeviceInfo that is not available, with what to install as its Reason.
	Devices(ctx context.Context) []DeviceInfo
	// Open opens the device of that index, for one executor. ErrUnavailable
	// says what to install, ErrNotFound that there is no such index.
	Open(ctx context.Context, index int) (Device, error)
}

// Device is an open device. Info, Limits, Lost and OpenQueue are called while it is
// opened; then Compile and Load by several compile workers at once, and Alloc by
// several run workers at once. Close is called once, when no call is under way and
// every queue is closed. Programs and memory that were not released by then go with
// the device: none of their methods is called later.
type Device interface {
	Info() DeviceInfo
	Limits() Limits
	// Compile builds the program of a source. A context that ends should end it.
	Compile(ctx context.Context, src Source) (Program, error)
	// Load makes the program of a source from a blob that a device of the same
	// identity delivered. The blob was verified by the caller, and is the driver's to
	// keep or to change; ErrRefused if the driver does not take it, ErrUnsupported if
	// the backend has no blobs.
	Load(ctx context.Context, src Source, blob []byte) (Program, error)
	// Alloc reserves n bytes of device memory, at least 1, filled with zeros.
	Alloc(n int64) (Memory, error)
	// OpenQueue makes what one run worker needs to launch.
	OpenQueue() (Queue, error)
	// Lost is closed when the device has gone by itself; nil if it never does.
	Lost() <-chan struct{}
	Close() error
}

// Program is compiled code. Its methods may be called by several goroutines at once,
// Bytes and Requires once, when it was made. One whose blocks have a size of their own
// has a method Block() Size as well: for launches, and a Code, that give none.
type Program interface {
	// Bytes is the memory it occupies, host and device.
	Bytes() int64
	// Blob is the compiled form, to be loaded by another process; ErrUnsupported
	// if the backend has none. The slice is the caller's.
	Blob(ctx context.Context) ([]byte, error)
	// Requires lists what of Identity.ISA the compiled form must not run without
	// (SPEC K7); nil = not known, so all of it.
	Requires() []string
	// Release frees it, with every object that queues made from it. No launch
	// of it runs then or comes later.
	Release()
}

// Memory is device memory.
type Memory interface {
	// Mapped is the memory itself where the host shares it, else nil. It is called
	// once, when the memory was reserved.
	Mapped() []byte
	Release()
}

// Queue launches on behalf of one worker: one of its methods is called at a time, not
// always on the same goroutine.
type Queue interface {
	// Launch runs a grid of blocks of a program, each of block work items. The
	// arguments were checked against its source's Params, both sizes against Limits;
	// no dimension is 0. It may return before they have run; args are then the
	// executor's again, Struct until Finish the queue's.
	Launch(ctx context.Context, p Program, args []DeviceArg, grid, block Size) error
	// Write and Read copy between host and device memory, in launch order; Read
	// returns when the bytes are there.
	Write(m Memory, offset int64, from []byte) error
	Read(m Memory, offset int64, into []byte) error
	// Finish waits until everything launched has run.
	Finish(ctx context.Context) error
	Close() error
}

// DeviceArg is one checked argument as a driver gets it.
type DeviceArg struct {
	Kind   ParamKind
	Memory Memory // of a buffer; else nil
	Offset int64  // in bytes, from the start of Memory
	Bytes  int64  // of the part that the kernel may touch, of local memory, a number or a struct
	Value  uint64 // the bits of a number, in the lowest Bytes
	Struct []byte // of a struct; else nil
}

// DeviceInfo describes a device, or the absence of one.
type DeviceInfo struct {
	Backend      string
	Index        int
	Name         string
	Driver       string // version, as the driver says it
	Available    bool
	Reason       string // why not, and what to install
	MemoryBytes  int64  // 0 = unknown
	ComputeUnits int
	Identity     Identity
}

// Identity is what stored code must fit (SPEC K7, P3, P8). An empty Build means
// unknown: then nothing is stored or loaded (P12).
type Identity struct {
	Library  string   // version of what emits the code
	Build    string   // digest or id of that build
	Compiler string   // what turns it into machine code, with its version
	Driver   string   // driver build
	Device   string   // device model
	ISA      []string // features present, sorted
}

// IdentityOf is the identity of a backend's first device, before it is opened:
// Executor.Identity is that of an open one. A backend that has no device, or is nil,
// has the zero Identity, under which nothing is stored.
func IdentityOf(ctx context.Context, b Backend) Identity {
	if b == nil {
		return Identity{}
	}
	devices := b.Devices(ctx)
	if len(devices) == 0 {
		return Identity{}
	}
	return devices[0].Identity
}

// Size counts the blocks of a grid, or the work items of a block, in three
// dimensions. A second or third dimension of 0 is 1.
type Size [3]int

// Limits of a device. Zero means that the device has no such limit.
type Limits struct {
	MaxGrid        Size  // blocks of one launch, in each dimension
	MaxBlock       Size  // work items of a block, in each dimension
	MaxItems       int   // work items of a block, in all
	MaxLocal       int64 // bytes of local memory that one launch may ask for
	Alignment      int   // of buffer arguments, bytes; at least 1
	CompileWorkers int   // most compiles at once that are of use
	RunWorkers     int   // most queues at once that are of use
}

var registry struct {
	sync.Mutex
	byName map[string]Backend
}

// Register makes a backend known by its name. Two of one name are a programming
// error and panic.
func Register(b Backend) {
	registry.Lock()
	defer registry.Unlock()
	if registry.byName == nil {
		registry.byName = make(map[string]Backend)
	}
	if _, twice := registry.byName[b.Name()]; twice {
		panic("gpuexec: backend " + b.Name() + " registered twice")
	}
	registry.byName[b.Name()] = b
}

// Backends gives the registered backends, in the order of their names.
func Backends() []Backend {
	registry.Lock()
	defer registry.Unlock()
	all := make([]Backend, 0, len(registry.byName))
	for _, b := range registry.byName {
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b Backend) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// Find gives the backend of that name, or nil.
func Find(name string) Backend {
	registry.Lock()
	defer registry.Unlock()
	return registry.byName[name]
}
