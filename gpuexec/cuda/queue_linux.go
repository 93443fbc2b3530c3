//go:build linux && (amd64 || arm64)

package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/staging"
)

// queue is a stream of one worker.
type queue struct {
	d      *device
	stream handle
	stages [2]stage // that copies go through in turn
	turn   int
	blas   blasQueue

	values []uint64         // of a launch
	args   []unsafe.Pointer // to them, and to structs
}

// stage is memory of the host that the driver has pinned.
type stage struct {
	at    *byte
	event handle // of the last copy
	busy  bool   // until it has come
}

// Bytes implements staging.Stage.
func (s *stage) Bytes() []byte { return unsafe.Slice(s.at, staging.Bytes) }

// OpenQueue implements gpuexec.Device.
func (d *device) OpenQueue() (gpuexec.Queue, error) {
	q := &queue{d: d}
	err := d.within("open", func() (err error) {
		q.stream, err = d.make("open", cuStreamCreate, streamNonBlocking)
		return err
	})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// Launch implements gpuexec.Queue. The driver copies all arguments.
func (q *queue) Launch(_ context.Context, prog gpuexec.Program, args []gpuexec.DeviceArg, grid, block gpuexec.Size) error {
	p, ok := prog.(*program)
	if !ok {
		return failure("launch", fault.ErrInvalid, "a program of type %T", prog)
	}
	if q.multiply(p, args) {
		return nil
	}
	if cap(q.values) < len(args) {
		q.values = make([]uint64, len(args))
	}
	values, local := q.values[:len(args)], int64(0)
	q.args = q.args[:0]
	for i := range args {
		a := &args[i]
		switch a.Kind {
		case gpuexec.ParamLocal:
			local = a.Bytes
			continue
		case gpuexec.ParamStruct:
			q.args = append(q.args, unsafe.Pointer(unsafe.SliceData(a.Struct)))
			continue
		case gpuexec.ParamBuffer:
			values[i] = uint64(a.Memory.(*memory).at) + uint64(a.Offset)
		default:
			values[i] = a.Value // its lowest bytes come first on these machines
		}
		q.args = append(q.args, unsafe.Pointer(&values[i]))
	}
	return q.d.within("launch", func() error {
		return q.d.failed("launch", cuLaunchKernel, q.d.call(cuLaunchKernel, uintptr(p.function),
			uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]), uintptr(block[0]), uintptr(block[1]), uintptr(block[2]),
			uintptr(local), uintptr(q.stream), uintptr(unsafe.Pointer(unsafe.SliceData(q.args))), 0))
	})
}

// next gives a stage that no copy is using.
func (q *queue) next(op string) (*stage, error) {
	d, s := q.d, &q.stages[q.turn]
	q.turn = 1 - q.turn
	if s.at == nil {
		at := new(*byte)
		if err := d.failed(op, cuMemAllocHost, d.call(cuMemAllocHost, uintptr(unsafe.Pointer(at)), staging.Bytes)); err != nil {
			return nil, err
		}
		native.Add(1)
		s.at = *at
	}
	if s.event == 0 {
		var err error
		if s.event, err = d.make(op, cuEventCreate, eventDisableTiming); err != nil {
			return nil, err
		}
	}
	return s, q.wait(op, s)
}

// record marks where the stream is done with a stage.
func (q *queue) record(op string, s *stage) error {
	s.busy = true
	return q.d.failed(op, cuEventRecord, q.d.call(cuEventRecord, uintptr(s.event), uintptr(q.stream)))
}

// wait waits until the stream is done with a stage.
func (q *queue) wait(op string, s *stage) error {
	if !s.busy {
		return nil
	}
	s.busy = false
	return q.d.failed(op, cuEventSynchronize, q.d.call(cuEventSynchronize, uintptr(s.event)))
}

// Write implements gpuexec.Queue. It returns when the bytes are in stages.
func (q *queue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	at := uintptr(m.(*memory).at) + uintptr(offset)
	return q.d.within("write", func() error {
		return staging.Write(from, func() (*stage, error) { return q.next("write") }, func(s *stage, place int64, n int) error {
			code := q.d.call(cuMemcpyHtoDAsync, at+uintptr(place), uintptr(unsafe.Pointer(s.at)), uintptr(n), uintptr(q.stream))
			return cmp.Or(q.d.failed("write", cuMemcpyHtoDAsync, code), q.record("write", s))
		})
	})
}

// Read implements gpuexec.Queue.
func (q *queue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	at := uintptr(m.(*memory).at) + uintptr(offset)
	return q.d.within("read", func() error {
		return staging.Read(into, func() (*stage, error) { return q.next("read") }, func(s *stage, place int64, n int) error {
			code := q.d.call(cuMemcpyDtoHAsync, uintptr(unsafe.Pointer(s.at)), at+uintptr(place), uintptr(n), uintptr(q.stream))
			return cmp.Or(q.d.failed("read", cuMemcpyDtoHAsync, code), q.record("read", s))
		}, func(s *stage) error { return q.wait("read", s) })
	})
}

// Finish implements gpuexec.Queue. The error may be that of any launch before. A stream that
// cannot be waited for may work still, and memory of a pool is freed beside it: the device
// is lost then, whatever the driver says.
func (q *queue) Finish(context.Context) error {
	err := q.d.within("finish", func() error {
		return q.d.failed("finish", cuStreamSynchronize, q.d.call(cuStreamSynchronize, uintptr(q.stream)))
	})
	if err != nil && !errors.Is(err, fault.ErrDeviceLost) {
		q.d.primary.lose()
		return fmt.Errorf("%w: %w", fault.ErrDeviceLost, err)
	}
	return err
}

// Close waits for what runs.
func (q *queue) Close() error {
	err := q.Finish(context.Background())
	q.blas.close(q.d)
	for i := range q.stages {
		s := &q.stages[i]
		q.d.drop(cuEventDestroy, s.event)
		q.d.drop(cuMemFreeHost, handle(unsafe.Pointer(s.at)))
	}
	q.d.drop(cuStreamDestroy, q.stream)
	return err
}
