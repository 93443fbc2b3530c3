//go:build linux && (amd64 || arm64)

package opencl

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// queue is an in-order queue of one worker.
type queue struct {
	d      *device
	queue  handle
	events []handle // of the launches since the last Finish
	parts  []handle // of buffers, for these launches
	fresh  bool     // one of them may have the driver compile
	warms  bool     // for a blob that is being taken
	stages [2]stage // that copies go through in turn, where the device has memory of its own
	turn   int

	holds []*program // whose blob must not be taken before Finish
	grids []*users   // that it is one of until Finish

	// What calls are given by address.
	arg struct {
		buffer, event handle
		value         uint64
		region        [2]uintptr
		global, local [3]uintptr
		status        int32
	}
}

// mostEvents bounds what is kept until a Finish.
const mostEvents = 256

// OpenQueue implements gpuexec.Device.
func (d *device) OpenQueue() (gpuexec.Queue, error) {
	q, err := d.newQueue()
	if err != nil {
		return nil, err
	}
	return &queue{d: d, queue: q}, nil
}

// Launch implements gpuexec.Queue.
func (q *queue) Launch(ctx context.Context, prog gpuexec.Program, args []gpuexec.DeviceArg, grid, block gpuexec.Size) error {
	p, ok := prog.(*program)
	if !ok {
		return failure("launch", fault.ErrInvalid, "a program of type %T", prog)
	}
	if len(q.events) >= mostEvents {
		if err := q.Finish(ctx); err != nil {
			return err
		}
	}
	for i := range grid {
		high, global := bits.Mul(uint(grid[i]), uint(block[i]))
		if high != 0 {
			return failure("launch", fault.ErrInvalid, "a grid of %v blocks of %v items is too large", grid, block)
		}
		q.arg.global[i], q.arg.local[i] = uintptr(global), uintptr(block[i])
	}
	if err := q.hold(ctx, p, grid, block); err != nil {
		return err
	}
	kernel, fresh, err := p.kernel(q)
	if err != nil {
		return err
	}
	q.fresh = q.fresh || fresh
	for i := range args {
		if err := q.set(kernel, i, &args[i]); err != nil {
			return err
		}
	}
	var code int32
	enqueue := func() {
		code = q.d.call(clEnqueueNDRangeKernel, uintptr(q.queue), uintptr(kernel), uintptr(len(grid)), 0,
			uintptr(unsafe.Pointer(&q.arg.global)), uintptr(unsafe.Pointer(&q.arg.local)), 0, 0, uintptr(unsafe.Pointer(&q.arg.event)))
	}
	if fresh {
		keepSignals(enqueue)
	} else {
		enqueue()
	}
	if code != success {
		return failed("launch", clEnqueueNDRangeKernel, code, false)
	}
	native.Add(1)
	q.events = append(q.events, q.arg.event)
	return nil
}

// hold waits until the program may be launched. A queue that has to wait finishes first,
// and so holds nothing: two queues could wait for each other.
func (q *queue) hold(ctx context.Context, p *program, grid, block gpuexec.Size) error {
	for {
		if q.d.miscounts {
			k := kernelBlock{p.hash, block}
			if !q.tryGrid(k, grid) {
				if err := q.Finish(ctx); err != nil {
					return err
				}
				q.waitGrid(k, grid)
			}
		}
		if p.blob.Load() != nil || q.warms || slices.Contains(q.holds, p) {
			return nil
		}
		if p.taking.TryRLock() {
			q.holds = append(q.holds, p)
			return nil
		}
		if err := q.Finish(ctx); err != nil {
			return err
		}
		p.taking.RLock() // once the blob is taken
		q.holds = append(q.holds, p)
	}
}

// set gives a kernel object one argument.
func (q *queue) set(kernel handle, i int, a *gpuexec.DeviceArg) error {
	size, from := uintptr(a.Bytes), unsafe.Pointer(&q.arg.value)
	switch a.Kind {
	case gpuexec.ParamBuffer:
		if err := q.part(a); err != nil {
			return err
		}
		size, from = unsafe.Sizeof(q.arg.buffer), unsafe.Pointer(&q.arg.buffer)
	case gpuexec.ParamStruct:
		from = unsafe.Pointer(unsafe.SliceData(a.Struct))
	case gpuexec.ParamLocal:
		from = nil
	default:
		q.arg.value = a.Value // its lowest bytes come first on these machines
	}
	return failed("launch", clSetKernelArg, q.d.call(clSetKernelArg, uintptr(kernel), uintptr(i), size, uintptr(from)), false)
}

// part puts the buffer of an argument into q.arg: the whole one, or the part of it from
// its offset on. A part of nothing is no buffer.
func (q *queue) part(a *gpuexec.DeviceArg) error {
	q.arg.buffer = a.Memory.(*memory).buffer
	switch {
	case a.Offset == 0:
		return nil
	case a.Bytes == 0:
		q.arg.buffer = 0
		return nil
	}
	q.arg.region = [2]uintptr{uintptr(a.Offset), uintptr(a.Bytes)}
	part, code := q.d.create(clCreateSubBuffer, uintptr(q.arg.buffer), memReadWrite, regionOrigin, uintptr(unsafe.Pointer(&q.arg.region)))
	if code != success {
		return failed("launch", clCreateSubBuffer, code, false)
	}
	q.parts = append(q.parts, part)
	q.arg.buffer = part
	return nil
}

// Write implements gpuexec.Queue.
func (q *queue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	if !q.d.unified {
		return q.write(m.(*memory), offset, from)
	}
	return q.copy("write", clEnqueueWriteBuffer, m, offset, from)
}

// Read implements gpuexec.Queue.
func (q *queue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	if !q.d.unified {
		return q.read(m.(*memory), offset, into)
	}
	return q.copy("read", clEnqueueReadBuffer, m, offset, into)
}

// copy returns when the bytes are copied.
func (q *queue) copy(op string, f function, m gpuexec.Memory, offset int64, host []byte) error {
	const wait = 1
	if len(host) == 0 {
		return nil
	}
	code := q.d.call(f, uintptr(q.queue), uintptr(m.(*memory).buffer), wait, uintptr(offset), uintptr(len(host)), uintptr(unsafe.Pointer(&host[0])), 0, 0, 0)
	return failed(op, f, code, true)
}

// Finish implements gpuexec.Queue. The error is that of the first launch that failed.
func (q *queue) Finish(context.Context) error {
	var code int32
	wait := func() { code = q.d.call(clFinish, uintptr(q.queue)) }
	if q.fresh {
		keepSignals(wait)
	} else {
		wait()
	}
	q.fresh = false
	err := failed("finish", clFinish, code, true)
	for _, e := range q.events {
		err = cmp.Or(err, q.outcome("launch", clEnqueueNDRangeKernel, e))
	}
	for i := range q.stages {
		err = cmp.Or(err, q.ended("copy", &q.stages[i]))
	}
	for _, part := range q.parts {
		q.d.release(clReleaseMemObject, part)
	}
	for _, p := range q.holds {
		p.taking.RUnlock()
	}
	q.leaveGrids()
	q.events, q.parts, q.holds = q.events[:0], q.parts[:0], q.holds[:0]
	return err
}

// outcome gives what an event says of what has ended, and the event back.
func (q *queue) outcome(op string, f function, event handle) error {
	defer q.d.release(clReleaseEvent, event)
	code := q.d.call(clGetEventInfo, uintptr(event), eventStatus, unsafe.Sizeof(q.arg.status), uintptr(unsafe.Pointer(&q.arg.status)), 0)
	if code != success {
		return failed("finish", clGetEventInfo, code, true)
	}
	return failed(op, f, q.arg.status, true)
}

// Close waits for what runs.
func (q *queue) Close() error {
	err := q.Finish(context.Background())
	q.unstage()
	q.d.release(clReleaseCommandQueue, q.queue)
	return err
}
