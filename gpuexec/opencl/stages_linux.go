//go:build linux && (amd64 || arm64)

package opencl

import (
	"context"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec/internal/staging"
)

// A device with memory of its own copies through stages. Copies of other memory would go through a
// driver's own stage, one part after the other.

// stage is memory of the host that a driver has pinned: a buffer that stays mapped.
type stage struct {
	buffer, at handle // and where the host sees it
	f          function
	event      handle // of the copy that is on its way; 0 = none
}

// Bytes implements staging.Stage.
func (s *stage) Bytes() []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&s.at)), staging.Bytes) // the address of no object of Go's
}

// next gives a stage that no copy is using.
func (q *queue) next(op string) (*stage, error) {
	const allocated, readWrite, wait = 1 << 4, 3, 1
	s := &q.stages[q.turn]
	q.turn = 1 - q.turn
	var code int32
	if s.buffer == 0 {
		if s.buffer, code = q.d.create(clCreateBuffer, uintptr(q.d.context), memReadWrite|allocated, staging.Bytes, 0); code != success {
			return nil, failed(op, clCreateBuffer, code, false)
		}
	}
	if s.at == 0 {
		if s.at, code = q.d.create(clEnqueueMapBuffer, uintptr(q.queue), uintptr(s.buffer), wait, readWrite, 0, staging.Bytes, 0, 0, 0); code != success {
			return nil, failed(op, clEnqueueMapBuffer, code, true)
		}
	}
	return s, q.wait(op, s)
}

// copied has a part of a stage on its way.
func (q *queue) copied(op string, f function, s *stage, m *memory, offset int64, n int) error {
	code := q.d.call(f, uintptr(q.queue), uintptr(m.buffer), 0, uintptr(offset), uintptr(n), uintptr(s.at), 0, 0, uintptr(unsafe.Pointer(&q.arg.event)))
	if code != success {
		return failed(op, f, code, true)
	}
	native.Add(1)
	s.f, s.event = f, q.arg.event
	return nil
}

// wait waits until the device is done with a stage.
func (q *queue) wait(op string, s *stage) error {
	if s.event == 0 {
		return nil
	}
	q.arg.event = s.event
	code := q.d.call(clWaitForEvents, 1, uintptr(unsafe.Pointer(&q.arg.event)))
	if err := q.ended(op, s); err != nil {
		return err
	}
	return failed(op, clWaitForEvents, code, true)
}

// ended gives the outcome of a stage's copy, which is over.
func (q *queue) ended(op string, s *stage) error {
	if s.event == 0 {
		return nil
	}
	err := q.outcome(op, s.f, s.event)
	s.event = 0
	return err
}

// write returns when the bytes are in stages.
func (q *queue) write(m *memory, offset int64, from []byte) error {
	return staging.Write(from, func() (*stage, error) { return q.next("write") }, func(s *stage, place int64, n int) error {
		return q.copied("write", clEnqueueWriteBuffer, s, m, offset+place, n)
	})
}

// read returns when the bytes have come.
func (q *queue) read(m *memory, offset int64, into []byte) error {
	return staging.Read(into, func() (*stage, error) { return q.next("read") }, func(s *stage, place int64, n int) error {
		return q.copied("read", clEnqueueReadBuffer, s, m, offset+place, n)
	}, func(s *stage) error { return q.wait("read", s) })
}

// unstage gives the stages back, which no copy uses.
func (q *queue) unstage() {
	for i := range q.stages {
		s := &q.stages[i]
		if s.at != 0 {
			q.d.call(clEnqueueUnmapMemObject, uintptr(q.queue), uintptr(s.buffer), uintptr(s.at), 0, 0, 0)
			native.Add(-1)
		}
		q.d.release(clReleaseMemObject, s.buffer)
		*s = stage{}
	}
	_ = q.Finish(context.Background())
}
