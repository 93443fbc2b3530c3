//go:build linux && (amd64 || arm64)

package opencl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// device is a context on one device.
type device struct {
	*library
	found
	context  handle
	known    known
	patience time.Duration // with a driver that loads a blob in a child
	zeros    struct {
		sync.Mutex
		queue handle // fills new memory
	}
	mu struct {
		sync.Mutex
		programs map[*program]struct{} // not released
		memories map[*memory]struct{}
	}
}

func (l *library) openDevice(f found) (gpuexec.Device, error) {
	d := &device{library: l, found: f, patience: mostTrial}
	d.mu.programs, d.mu.memories = make(map[*program]struct{}), make(map[*memory]struct{})
	var code int32
	keepSignals(func() {
		d.context, code = l.create(clCreateContext, 0, 1, uintptr(unsafe.Pointer(&d.id)), 0, 0)
	})
	if code != success {
		return nil, failed("open", clCreateContext, code, false)
	}
	var err error
	if d.zeros.queue, err = d.newQueue(); err != nil {
		l.release(clReleaseContext, d.context)
		return nil, err
	}
	return d, nil
}

// newQueue makes an in-order queue.
func (d *device) newQueue() (handle, error) {
	var q handle
	var code int32
	keepSignals(func() { q, code = d.create(clCreateCommandQueue, uintptr(d.context), uintptr(d.id), 0) })
	return q, failed("open", clCreateCommandQueue, code, false)
}

func (d *device) Info() gpuexec.DeviceInfo { return d.info }

func (d *device) Limits() gpuexec.Limits { return d.limits }

// Lost implements gpuexec.Device: a driver does not say it, but answers so.
func (d *device) Lost() <-chan struct{} { return nil }

// Close releases all that is left.
func (d *device) Close() error {
	for p := range d.mu.programs {
		p.Release()
	}
	for m := range d.mu.memories {
		m.Release()
	}
	d.release(clReleaseCommandQueue, d.zeros.queue)
	d.release(clReleaseContext, d.context)
	return nil
}

// Alloc implements gpuexec.Device.
func (d *device) Alloc(bytes int64) (gpuexec.Memory, error) {
	if bytes > d.mostBytes {
		return nil, failure("alloc", fault.ErrTooLarge, "%d bytes, the device takes at most %d in one buffer", bytes, d.mostBytes)
	}
	buffer, code := d.create(clCreateBuffer, uintptr(d.context), memReadWrite, uintptr(bytes), 0)
	if code != success {
		return nil, failed("alloc", clCreateBuffer, code, false)
	}
	if err := d.clear(buffer, bytes); err != nil {
		d.release(clReleaseMemObject, buffer)
		return nil, err
	}
	m := &memory{d: d, buffer: buffer}
	d.mu.Lock()
	d.mu.memories[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// clear fills a buffer with zeros.
func (d *device) clear(buffer handle, bytes int64) error {
	d.zeros.Lock()
	defer d.zeros.Unlock()
	var zero byte
	code := d.call(clEnqueueFillBuffer, uintptr(d.zeros.queue), uintptr(buffer), uintptr(unsafe.Pointer(&zero)), 1, 0, uintptr(bytes), 0, 0, 0)
	if code != success {
		return failed("alloc", clEnqueueFillBuffer, code, false)
	}
	return failed("alloc", clFinish, d.call(clFinish, uintptr(d.zeros.queue)), false)
}

type memory struct {
	d      *device
	buffer handle
}

// Mapped implements gpuexec.Memory: a kernel must not run on what the host has mapped.
func (m *memory) Mapped() []byte { return nil }

func (m *memory) Release() {
	m.d.mu.Lock()
	delete(m.d.mu.memories, m)
	m.d.mu.Unlock()
	m.d.release(clReleaseMemObject, m.buffer)
}

// Compile implements gpuexec.Device. A driver cannot be told to stop.
func (d *device) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	code, text, options, err := codeOf(src)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	first, length := unsafe.StringData(text), len(text)
	made, status := d.create(clCreateProgramWithSource, uintptr(d.context), 1, uintptr(unsafe.Pointer(&first)), uintptr(unsafe.Pointer(&length)))
	if status != success {
		return nil, failed("compile", clCreateProgramWithSource, status, false)
	}
	const guess = 64 << 10 // a driver does not tell how large its code is
	p, err := d.build(made, src, code, text, options, max(guess, int64(len(text))))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Load implements gpuexec.Device.
func (d *device) Load(ctx context.Context, src gpuexec.Source, blob []byte) (gpuexec.Program, error) {
	code, given, options, err := codeOf(src)
	if err != nil {
		return nil, err
	}
	binary, err := format.Open(src.Key, blob)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.try(ctx, trial{d.info.Index, d.info.Identity, src.Key, code, src.Params, blob}); err != nil {
		return nil, err
	}
	var made handle
	var status int32
	keepSignals(func() {
		first, length := &binary[0], len(binary)
		made, status = d.create(clCreateProgramWithBinary, uintptr(d.context), 1, uintptr(unsafe.Pointer(&d.id)),
			uintptr(unsafe.Pointer(&length)), uintptr(unsafe.Pointer(&first)), 0)
	})
	if status != success {
		return nil, refused(cmp.Or(d.broken(status), failed("load", clCreateProgramWithBinary, status, false)))
	}
	p, err := d.build(made, src, code, given, options, int64(len(blob)))
	if err != nil {
		return nil, refused(err)
	}
	p.blob.Store(&blob) // it was given for good
	return p, nil
}

// refused is an error of a driver that was given a whole blob: short of memory, of a
// device or of what it builds with, it has not said anything about the blob.
func refused(err error) error {
	if e, ok := err.(*fault.Error); ok && !errors.Is(err, fault.ErrDeviceLost) && !errors.Is(err, fault.ErrTooLarge) && !errors.Is(err, fault.ErrUnavailable) {
		more := failure("load", fault.ErrRefused, "%w", e.Err)
		more.Reason = fault.DriverRefused
		return more
	}
	return err
}

// build makes a program of what was created, which is the program's from here on.
func (d *device) build(made handle, src gpuexec.Source, code gpuexec.Code, given, options string, bytes int64) (_ *program, err error) {
	p := &program{d: d, code: code, params: src.Params, key: src.Key, program: made, bytes: bytes,
		hash: xxhash.Sum64String(given + "\x00" + options + "\x00" + code.Entry)}
	p.mu.kernels = make(map[*queue]handle)
	defer func() {
		if err != nil {
			p.free()
		}
	}()
	text := append([]byte(options+" -cl-kernel-arg-info"), 0)
	var status int32
	keepSignals(func() {
		status = d.call(clBuildProgram, uintptr(made), 1, uintptr(unsafe.Pointer(&d.id)), uintptr(unsafe.Pointer(&text[0])), 0, 0)
	})
	if err := failed("compile", clBuildProgram, status, false); err != nil {
		return nil, cmp.Or(d.broken(status), p.logged(err, status))
	}
	if p.spare, err = p.newKernel(); err != nil {
		return nil, err
	}
	n, status := d.number(clGetKernelInfo, p.spare, kernelArguments)
	switch {
	case status != success:
		return nil, failed("compile", clGetKernelInfo, status, false)
	case n != uint64(len(src.Params)):
		return nil, failure("compile", fault.ErrInvalid, "kernel %s takes %d arguments, the source has %d parameters", code.Entry, n, len(src.Params))
	}
	for i, param := range src.Params {
		if err := p.fits(i, param.Kind); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	d.mu.programs[p] = struct{}{}
	d.mu.Unlock()
	return p, nil
}

// broken says that a build is not to blame for its failure: the driver does not build a
// program that is sound and new to it either.
func (d *device) broken(status int32) error {
	if status != buildFailed && status != invalidBinary {
		return nil // says more
	}
	text := append(fmt.Appendf(nil, "kernel void probe%d() {}", time.Now().UnixNano()), 0)
	first := &text[0]
	made, status := d.create(clCreateProgramWithSource, uintptr(d.context), 1, uintptr(unsafe.Pointer(&first)), 0)
	defer d.release(clReleaseProgram, made)
	if status == success {
		keepSignals(func() { status = d.call(clBuildProgram, uintptr(made), 1, uintptr(unsafe.Pointer(&d.id)), 0, 0, 0) })
	}
	if status != buildFailed {
		return nil
	}
	return failure("compile", fault.ErrUnavailable,
		"the driver builds no program at all: look whether the folder of its cache can be written and has space (PoCL's: POCL_CACHE_DIR, else in XDG_CACHE_HOME or ~/.cache)")
}

// logged adds the driver's build log to an error.
func (p *program) logged(err error, status int32) error {
	const most = 8 << 10
	var size uintptr
	if status != buildFailed || p.d.call(clGetProgramBuildInfo, uintptr(p.program), uintptr(p.d.id), programBuildLog, 0, 0, uintptr(unsafe.Pointer(&size))) != success || size < 2 {
		return err
	}
	text := make([]byte, size)
	if p.d.call(clGetProgramBuildInfo, uintptr(p.program), uintptr(p.d.id), programBuildLog, size, uintptr(unsafe.Pointer(&text[0])), 0) != success {
		return err
	}
	log := strings.TrimSpace(strings.TrimRight(string(text), "\x00"))
	if len(log) > most {
		log = log[:most] + "..."
	}
	return failure("compile", fault.ErrInvalid, "%s does not compile:\n%s", p.code.Entry, log)
}
