//go:build linux && (amd64 || arm64)

package opencl

import (
	"context"
	"unsafe"
)

// A device with memory of its own copies from and to memory that its driver has pinned. Copies
// of other memory would go through a driver's own stage, one part after the other; from a stage
// one part is copied by the device while the host fills the other.

// stage is memory of the host that a driver has pinned: a buffer that stays mapped.
type stage struct {
	buffer, at handle // and where the host sees it
	f          function
	event      handle // of the copy that is on its way; 0 = none
}

// stageBytes is how much one copy takes at most.
const stageBytes = 512 << 10

func (s *stage) bytes() []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&s.at)), stageBytes) // the address of no object of Go's
}

// next gives a stage that no copy is using.
func (q *queue) next(op string) (*stage, error) {
	const allocated, readWrite, wait = 1 << 4, 3, 1
	s := &q.stages[q.turn]
	q.turn = 1 - q.turn
	var code int32
	if s.buffer == 0 {
		if s.buffer, code = q.d.create(clCreateBuffer, uintptr(q.d.context), memReadWrite|allocated, stageBytes, 0); code != success {
			return nil, failed(op, clCreateBuffer, code, false)
		}
	}
	if s.at == 0 {
		if s.at, code = q.d.create(clEnqueueMapBuffer, uintptr(q.queue), uintptr(s.buffer), wait, readWrite, 0, stageBytes, 0, 0, 0); code != success {
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
	for len(from) > 0 {
		s, err := q.next("write")
		if err != nil {
			return err
		}
		n := copy(s.bytes(), from)
		if err := q.copied("write", clEnqueueWriteBuffer, s, m, offset, n); err != nil {
			return err
		}
		from, offset = from[n:], offset+int64(n)
	}
	return nil
}

// read has one part come while the one before is copied out of its stage.
func (q *queue) read(m *memory, offset int64, into []byte) error {
	var came *stage
	var part []byte
	for came != nil || len(into) > 0 {
		var s *stage
		var n int
		if len(into) > 0 {
			var err error
			if s, err = q.next("read"); err != nil {
				return err
			}
			n = min(len(into), stageBytes)
			if err := q.copied("read", clEnqueueReadBuffer, s, m, offset, n); err != nil {
				return err
			}
		}
		if came != nil {
			if err := q.wait("read", came); err != nil {
				return err
			}
			copy(part, came.bytes())
		}
		came, part, into, offset = s, into[:n], into[n:], offset+int64(n)
	}
	return nil
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
