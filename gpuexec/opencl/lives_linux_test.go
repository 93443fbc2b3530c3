//go:build linux && (amd64 || arm64)

package opencl

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/lives"
)

// E1: launches, programs that come and go, and devices that are opened and closed leave no
// object of the driver, and no more memory than its calls alone: -long makes it a long life.
func TestLives(t *testing.T) {
	needDevice(t)
	args := func(b *gpuexec.Buffer) []gpuexec.Arg {
		return []gpuexec.Arg{gpuexec.BufferArg(b), gpuexec.ValueArg(uint32(1))}
	}
	lives.Test(t, "TestLives", lives.Subject{Backend: backend{}, Driver: driverAlone, Objects: native.Load, Args: args, Source: func(i int) gpuexec.Source {
		src, err := gpuexec.Code{Language: Language, Entry: "k", Text: textOfLife(i)}.Source(
			gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4}, gpuexec.Param{Kind: gpuexec.ParamU32})
		if err != nil {
			t.Fatal(err)
		}
		return src
	}})
}

func textOfLife(i int) string {
	return fmt.Sprintf("kernel void k(global int *a, uint n) { a[0] = n + %d; }", i)
}

// driverAlone makes the calls that an executor makes, without one.
func driverAlone() (c lives.Calls, err error) {
	l, all, err := devices()
	if err != nil {
		return c, err
	}
	opened, err := l.openDevice(all[0])
	if err != nil {
		return c, err
	}
	d := opened.(*device)
	q, err := d.newQueue()
	if err != nil {
		return c, err
	}
	m, err := d.Alloc(1024)
	if err != nil {
		return c, err
	}
	arg := &struct {
		buffer, event handle
		value         uint64
		size          [3]uintptr
	}{buffer: m.(*memory).buffer, value: 1, size: [3]uintptr{1, 1, 1}}
	launch := func(k handle) error {
		for _, code := range []int32{
			d.call(clSetKernelArg, uintptr(k), 0, 8, uintptr(unsafe.Pointer(&arg.buffer))),
			d.call(clSetKernelArg, uintptr(k), 1, 4, uintptr(unsafe.Pointer(&arg.value))),
			d.call(clEnqueueNDRangeKernel, uintptr(q), uintptr(k), 3, 0, uintptr(unsafe.Pointer(&arg.size)),
				uintptr(unsafe.Pointer(&arg.size)), 0, 0, uintptr(unsafe.Pointer(&arg.event))),
			d.call(clFinish, uintptr(q)),
		} {
			if code != success {
				return failed("launch", clEnqueueNDRangeKernel, code, false)
			}
		}
		native.Add(1)
		d.release(clReleaseEvent, arg.event)
		return nil
	}
	build := func(i int) (program, kernel handle, err error) {
		text := append([]byte(textOfLife(i)), 0)
		first := &text[0]
		program, code := d.create(clCreateProgramWithSource, uintptr(d.context), 1, uintptr(unsafe.Pointer(&first)), 0)
		if code == success {
			options := []byte("-cl-kernel-arg-info\x00")
			code = d.call(clBuildProgram, uintptr(program), 1, uintptr(unsafe.Pointer(&d.id)), uintptr(unsafe.Pointer(&options[0])), 0, 0)
		}
		if code == success {
			name := []byte("k\x00")
			kernel, code = d.create(clCreateKernel, uintptr(program), uintptr(unsafe.Pointer(&name[0])))
		}
		return program, kernel, failed("compile", clBuildProgram, code, false)
	}
	kept, kernel, err := build(-1)
	if err != nil {
		return c, err
	}
	c.Launch = func() error { return launch(kernel) }
	c.Compile = func(i int) error {
		p, k, err := build(i)
		if err != nil {
			return err
		}
		defer d.release(clReleaseProgram, p)
		defer d.release(clReleaseKernel, k)
		if _, code := (&program{d: d, program: p}).binary(); code != success { // executors take it
			return failed("blob", clGetProgramInfo, code, false)
		}
		return launch(k)
	}
	c.Open = func() error { // with the queues of an executor of one worker
		var code int32
		var made handle
		keepSignals(func() { made, code = l.create(clCreateContext, 0, 1, uintptr(unsafe.Pointer(&d.id)), 0, 0) })
		defer func() { l.release(clReleaseContext, made) }()
		for range 2 {
			if code == success {
				var q handle
				q, code = l.create(clCreateCommandQueue, uintptr(made), uintptr(d.id), 0)
				defer l.release(clReleaseCommandQueue, q)
			}
		}
		return failed("open", clCreateContext, code, false)
	}
	c.Close = func() error {
		d.release(clReleaseKernel, kernel)
		d.release(clReleaseProgram, kept)
		m.Release()
		d.release(clReleaseCommandQueue, q)
		return d.Close()
	}
	return c, nil
}
