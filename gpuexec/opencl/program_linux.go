//go:build linux && (amd64 || arm64)

package opencl

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// program is a built program with one kernel object for each queue that ran it.
type program struct {
	d       *device
	code    gpuexec.Code
	params  []gpuexec.Param
	key     string
	hash    uint64 // of what the driver is given
	program handle
	bytes   int64
	mu      struct {
		sync.Mutex
		kernels map[*queue]handle
	}
	spare handle // the first queue's kernel object, before there is one; under mu once p is known

	// PoCL reads its cache folder twice to give a binary, and overruns its memory if
	// code for another launch has come meanwhile, or the binary is taken twice at once.
	// So until blob is there, who launches holds taking from the launch to the end of it.
	taking sync.RWMutex
	blob   atomic.Pointer[[]byte]
}

func (p *program) Bytes() int64 { return p.bytes }

// Requires implements gpuexec.Program: a driver does not tell.
func (p *program) Requires() []string { return nil }

func (p *program) Release() {
	p.d.mu.Lock()
	delete(p.d.mu.programs, p)
	p.d.mu.Unlock()
	p.free()
}

func (p *program) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.mu.kernels {
		p.d.release(clReleaseKernel, k)
	}
	clear(p.mu.kernels)
	p.d.release(clReleaseKernel, p.spare)
	p.d.release(clReleaseProgram, p.program)
}

func (p *program) newKernel() (handle, error) {
	name := append([]byte(p.code.Entry), 0)
	k, code := p.d.create(clCreateKernel, uintptr(p.program), uintptr(unsafe.Pointer(&name[0])))
	if code == invalidName {
		return 0, failure("compile", fault.ErrInvalid, "the program has no kernel %q", p.code.Entry)
	}
	return k, failed("compile", clCreateKernel, code, false)
}

// numbers are the kinds of parameters for the types of OpenCL C.
var numbers = map[string]gpuexec.ParamKind{
	"char": gpuexec.ParamI8, "uchar": gpuexec.ParamU8, "short": gpuexec.ParamI16, "ushort": gpuexec.ParamU16, "int": gpuexec.ParamI32, "uint": gpuexec.ParamU32,
	"float": gpuexec.ParamF32, "long": gpuexec.ParamI64, "ulong": gpuexec.ParamU64, "double": gpuexec.ParamF64,
}

// fits refuses a parameter that is not what the kernel takes there, as far as the
// driver tells: a driver follows a number as if it were a buffer (SPEC E3).
func (p *program) fits(i int, kind gpuexec.ParamKind) error {
	var space uint32
	if p.d.call(clGetKernelArgInfo, uintptr(p.spare), uintptr(i), argumentSpace, unsafe.Sizeof(space), uintptr(unsafe.Pointer(&space)), 0) != success {
		return nil
	}
	var name [256]byte
	var length uintptr
	if p.d.call(clGetKernelArgInfo, uintptr(p.spare), uintptr(i), argumentType, uintptr(len(name)), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&length))) != success {
		length = 1
	}
	typed := string(name[:max(length, 1)-1])
	number := bytesOf[kind] > 0
	fits := number || kind == gpuexec.ParamStruct
	switch want, known := numbers[typed]; {
	case space == spaceGlobal, space == spaceConstant:
		fits, typed = kind == gpuexec.ParamBuffer, "global "+typed
	case space == spaceLocal:
		fits, typed = kind == gpuexec.ParamLocal, "local "+typed
	case known:
		fits = kind == want
	}
	if !fits {
		return failure("compile", fault.ErrInvalid, "kernel %s: parameter %d is not for a %s, which the kernel takes there", p.code.Entry, i, typed)
	}
	return nil
}

// kernel is the queue's own kernel object; fresh says that it has not been launched.
func (p *program) kernel(q *queue) (k handle, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k, there := p.mu.kernels[q]; there {
		return k, false, nil
	}
	if k, p.spare = p.spare, 0; k == 0 {
		if k, err = p.newKernel(); err != nil {
			return 0, false, err
		}
	}
	p.mu.kernels[q] = k
	return k, true, nil
}

// Blob is the driver's binary, behind a digest. The driver is asked once.
func (p *program) Blob(ctx context.Context) ([]byte, error) {
	p.taking.Lock()
	defer p.taking.Unlock()
	if blob := p.blob.Load(); blob != nil {
		return slices.Clone(*blob), nil
	}
	if p.code.Block != (gpuexec.Size{}) {
		if err := p.warm(ctx); errors.Is(err, fault.ErrDeviceLost) || ctx.Err() != nil {
			return nil, err
		} // any other: the blob is as good, and slower at its first launch
	}
	var binary []byte
	var code int32
	keepSignals(func() { binary, code = p.binary() })
	switch {
	case code != success:
		return nil, failed("blob", clGetProgramInfo, code, false)
	case len(binary) == 0:
		return nil, failure("blob", fault.ErrUnsupported, "the driver gives no binary")
	}
	blob := format.Seal(p.key, binary)
	if p.d.known != "" {
		_ = p.d.known.add(p.d.line(blob)) // else it is tried
	}
	p.blob.Store(&blob)
	return slices.Clone(blob), nil
}

func (p *program) binary() ([]byte, int32) {
	sizes, code := p.d.bytes(clGetProgramInfo, p.program, programBinarySizes)
	if code != success || len(sizes) < 8 {
		return nil, code
	}
	size := binary.LittleEndian.Uint64(sizes)
	if size == 0 {
		return nil, success
	}
	b := make([]byte, size)
	first := &b[0]
	code = p.d.call(clGetProgramInfo, uintptr(p.program), programBinaries, unsafe.Sizeof(first), uintptr(unsafe.Pointer(&first)), 0)
	return b, code
}

// warm runs one block on zeros, so that what a driver compiles for a size of blocks is
// in the binary.
func (p *program) warm(ctx context.Context) error {
	opened, err := p.d.OpenQueue()
	if err != nil {
		return err
	}
	q := opened.(*queue)
	q.warms = true
	defer func() {
		p.forget(q)
		_ = q.Close()
	}()
	args := make([]gpuexec.DeviceArg, len(p.params))
	for i, param := range p.params {
		args[i] = gpuexec.DeviceArg{Kind: param.Kind, Bytes: max(param.Bytes, 1)}
		switch param.Kind {
		case gpuexec.ParamBuffer:
			m, err := p.d.Alloc(max(param.Bytes, 1))
			if err != nil {
				return err
			}
			defer m.Release()
			args[i].Memory = m
		case gpuexec.ParamStruct:
			args[i].Struct = make([]byte, param.Bytes)
		case gpuexec.ParamLocal:
		default:
			args[i].Bytes = bytesOf[param.Kind]
		}
	}
	block := p.code.Block
	for i := range block {
		block[i] = max(block[i], 1)
	}
	if err := q.Launch(ctx, p, args, gpuexec.Size{1, 1, 1}, block); err != nil {
		return err
	}
	return q.Finish(ctx)
}

// bytesOf has the size of each kind of number.
var bytesOf = map[gpuexec.ParamKind]int64{
	gpuexec.ParamI8: 1, gpuexec.ParamU8: 1, gpuexec.ParamI16: 2, gpuexec.ParamU16: 2, gpuexec.ParamI32: 4, gpuexec.ParamU32: 4,
	gpuexec.ParamF32: 4, gpuexec.ParamI64: 8, gpuexec.ParamU64: 8, gpuexec.ParamF64: 8,
}

// forget releases a queue's own kernel object.
func (p *program) forget(q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.d.release(clReleaseKernel, p.mu.kernels[q])
	delete(p.mu.kernels, q)
}
