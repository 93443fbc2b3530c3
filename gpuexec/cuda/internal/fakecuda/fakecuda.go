//go:build linux && (amd64 || arm64)

// Package fakecuda is a CUDA driver made of Go, for tests: functions at addresses that C
// could call, with memory in Go behind them. A launch runs PTX (package ptx), which it finds
// behind a module's cubin: a real driver takes a cubin by its address alone, and so does not
// see what follows it.
//
// A stream's work is done when somebody waits for it, and no sooner: who gives memory back
// or writes into it too early gets wrong results. A kernel that faults leaves its context
// with an error for ever, as a GPU does. What is not right is an error, as far as CUDA's
// manual has one for it.
package fakecuda

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/ptx"
)

// Device is what a device says of itself.
type Device struct {
	Name       string
	Capability int // 90 is 9.0
	Memory     int // bytes
	Mode       int // 2: it has no contexts
}

// Driver is a driver with its devices. Safe for concurrent use.
type Driver struct {
	Version int32  // 13050 is 13.5
	ISA     string // the latest version of PTX that it takes

	symbols map[string]any // Go functions; addresses once they were asked for
	mu      struct {
		sync.Mutex
		contexts []*primary // of each device
		current  map[int][]*primary
		objects  map[uintptr]any // *primary, *stream, *event, *pool, *module, *kernel, *graph, *plan, *blas
		pinned   map[*byte]pinned
		next     uintptr
		loads    int
	}
	names map[int32]*byte
}

// primary is the context of a device.
type primary struct {
	Device
	handle uintptr
	users  int
	sticky int32 // what all calls answer from then on
	blocks []block
	next   uintptr
	used   int
	engine sync.Mutex // streams take turns: memory that two of them write at once is no race of Go
}

// block is device memory.
type block struct {
	at    uintptr
	bytes []byte
}

// pinned is memory of the host.
type pinned struct {
	of    *primary
	bytes []byte
}

type stream struct {
	of    *primary
	busy  sync.Mutex // held while it works
	mu    sync.Mutex
	work  []func() int32 // under mu
	graph *graph         // that captures it, under mu
	clock float32        // how long it has worked: see elapsed
}

// pool is one of memory, which is the context's here.
type pool struct {
	of    *primary
	keeps uint64 // at most, of what nobody has; under Driver.mu
}

type event struct {
	of     *primary
	stream *stream
	timed  bool
	at     float32 // the stream's clock then
}

type module struct {
	of     *primary
	parsed *ptx.Module
}

type kernel struct {
	module  *module
	entry   *ptx.Entry
	dynamic uint32 // shared memory that a launch may add
}

// The driver's codes, and what it calls them.
const (
	success        = 0
	invalidValue   = 1
	outOfMemory    = 2
	invalidDevice  = 101
	invalidImage   = 200
	invalidContext = 201
	noBinary       = 209
	invalidPTX     = 218
	unsupportedPTX = 222
	invalidHandle  = 400
	notFound       = 500
	illegalAddress = 700
	timeout        = 702
	misaligned     = 716
	launchFailed   = 719

	illegalState       = 401
	captureUnsupported = 900
)

var codeNames = map[int32]string{
	invalidValue: "CUDA_ERROR_INVALID_VALUE", outOfMemory: "CUDA_ERROR_OUT_OF_MEMORY", invalidDevice: "CUDA_ERROR_INVALID_DEVICE", invalidImage: "CUDA_ERROR_INVALID_IMAGE",
	invalidContext: "CUDA_ERROR_INVALID_CONTEXT", noBinary: "CUDA_ERROR_NO_BINARY_FOR_GPU", invalidPTX: "CUDA_ERROR_INVALID_PTX",
	unsupportedPTX: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", invalidHandle: "CUDA_ERROR_INVALID_HANDLE", notFound: "CUDA_ERROR_NOT_FOUND",
	illegalAddress: "CUDA_ERROR_ILLEGAL_ADDRESS", timeout: "CUDA_ERROR_LAUNCH_TIMEOUT", misaligned: "CUDA_ERROR_MISALIGNED_ADDRESS", launchFailed: "CUDA_ERROR_LAUNCH_FAILED",
	illegalState: "CUDA_ERROR_ILLEGAL_STATE", captureUnsupported: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}

// New makes a driver. Its functions stay for the life of the process.
func New(devices ...Device) *Driver {
	d := &Driver{Version: 13050, ISA: "9.5", names: make(map[int32]*byte)}
	for code, name := range codeNames {
		d.names[code] = &append([]byte(name), 0)[0]
	}
	d.mu.current, d.mu.objects, d.mu.pinned = make(map[int][]*primary), make(map[uintptr]any), make(map[*byte]pinned)
	d.mu.next = 0x1000
	for i, of := range devices {
		p := &primary{Device: of, next: uintptr(i+1) << 40}
		d.mu.contexts = append(d.mu.contexts, p)
	}
	d.symbols = d.functions()
	return d
}

// Symbol gives the address of a function.
func (d *Driver) Symbol(name string) (uintptr, error) { return symbol(&d.mu, d.symbols, name) }

func symbol(mu sync.Locker, symbols map[string]any, name string) (uintptr, error) {
	mu.Lock()
	defer mu.Unlock()
	switch fn := symbols[name].(type) {
	case nil:
		return 0, fmt.Errorf("no symbol %s", name)
	case uintptr:
		return fn, nil
	default:
		at := purego.NewCallback(fn)
		symbols[name] = at
		return at, nil
	}
}

// Live counts the objects, retained contexts, and blocks of memory that were made and not
// given back.
func (d *Driver) Live() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.mu.objects) + len(d.mu.pinned)
	for _, c := range d.mu.contexts {
		n += len(c.blocks)
	}
	return n
}

// Loads counts the modules that were loaded.
func (d *Driver) Loads() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.loads
}

// Kept is how much memory that nobody has pools keep at most.
func (d *Driver) Kept() (bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.mu.objects {
		if p, ok := o.(*pool); ok {
			bytes += p.keeps
		}
	}
	return bytes
}

// Waiting counts what streams have to do.
func (d *Driver) Waiting() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.mu.objects {
		if s, ok := o.(*stream); ok {
			s.mu.Lock()
			n += len(s.work)
			s.mu.Unlock()
		}
	}
	return n
}

// Current tells whether a thread is left with a context.
func (d *Driver) Current() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.current) > 0
}

// add gives an object a handle; under mu.
func (d *Driver) add(object any) uintptr {
	d.mu.next += 16
	d.mu.objects[d.mu.next] = object
	return d.mu.next
}

// here is the calling thread's context, where it works; under mu.
func (d *Driver) here() (*primary, int32) {
	stack := d.mu.current[unix.Gettid()]
	if len(stack) == 0 || stack[len(stack)-1].users == 0 {
		return nil, invalidContext
	}
	p := stack[len(stack)-1]
	return p, p.sticky
}

// object gives an object of the calling thread's context.
func object[T any](d *Driver, handle uintptr) (o T, of *primary, code int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of, code = d.here()
	if code != success {
		return o, of, code
	}
	o, known := d.mu.objects[handle].(T)
	if !known {
		return o, of, invalidHandle
	}
	return o, of, success
}

// destroy ends a context with all that is in it; under mu.
func (d *Driver) destroy(p *primary) {
	for h, o := range d.mu.objects {
		var of *primary
		switch o := o.(type) {
		case *stream:
			of = o.of
		case *event:
			of = o.of
		case *pool:
			of = o.of
		case *module:
			of = o.of
		case *kernel:
			of = o.module.of
		case *graph:
			of = o.of
		case *plan:
			of = o.of
		}
		if of == p {
			delete(d.mu.objects, h)
		}
	}
	maps.DeleteFunc(d.mu.pinned, func(_ *byte, m pinned) bool { return m.of == p })
	p.blocks, p.used, p.sticky = nil, 0, success
}

// drain does a stream's work.
func (d *Driver) drain(s *stream) int32 {
	s.busy.Lock()
	defer s.busy.Unlock()
	for {
		s.mu.Lock()
		if len(s.work) == 0 {
			s.mu.Unlock()
			break
		}
		work := s.work[0]
		s.work = s.work[1:]
		s.mu.Unlock()
		d.mu.Lock()
		lost := s.of.sticky != success
		d.mu.Unlock()
		if lost {
			continue
		}
		s.of.engine.Lock()
		code := work()
		s.of.engine.Unlock()
		if code != success {
			d.mu.Lock()
			if s.of.sticky == success {
				s.of.sticky = code
			}
			d.mu.Unlock()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return s.of.sticky
}

// drainAll does the work of all streams of a context.
func (d *Driver) drainAll(p *primary) {
	d.mu.Lock()
	var all []*stream
	for _, o := range d.mu.objects {
		if s, ok := o.(*stream); ok && s.of == p {
			all = append(all, s)
		}
	}
	d.mu.Unlock()
	for _, s := range all {
		d.drain(s)
	}
}

// memory is a context's, as a launch or copy sees it.
type memory struct {
	blocks []block
	last   int
}

// memoryOf is what there is now.
func (d *Driver) memoryOf(p *primary) *memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &memory{blocks: slices.Clone(p.blocks)}
}

// Bytes implements ptx.Memory.
func (m *memory) Bytes(address uint64, n int) ([]byte, error) {
	if m.last < len(m.blocks) {
		if b := m.blocks[m.last].part(uintptr(address), n); b != nil {
			return b, nil
		}
	}
	i, _ := slices.BinarySearchFunc(m.blocks, uintptr(address)+1, func(b block, at uintptr) int {
		if b.at < at {
			return -1
		}
		return 1
	})
	if i > 0 {
		if b := m.blocks[i-1].part(uintptr(address), n); b != nil {
			m.last = i - 1
			return b, nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x", n, address)
}

func (b block) part(at uintptr, n int) []byte {
	if at < b.at || n < 0 || at-b.at > uintptr(len(b.bytes)) || uintptr(n) > uintptr(len(b.bytes))-(at-b.at) {
		return nil
	}
	return b.bytes[at-b.at:][:n:n]
}

// text is a text that ends with a zero.
func text(at *byte) []byte {
	var b []byte
	for p := unsafe.Pointer(at); *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b = append(b, *(*byte)(p))
	}
	runtime.KeepAlive(at)
	return b
}
