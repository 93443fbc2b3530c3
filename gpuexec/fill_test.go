package gpuexec_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// shared is a device whose memory the host shares. It notes when it is closed.
type shared struct {
	*fakedevice.Backend
	memory []byte
	closed chan struct{}
}

func (s *shared) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := s.Backend.Open(ctx, index)
	return sharedDevice{d, s}, err
}

type sharedDevice struct {
	gpuexec.Device
	on *shared
}

func (d sharedDevice) Alloc(n int64) (gpuexec.Memory, error) {
	m, err := d.Device.Alloc(n)
	d.on.memory = make([]byte, n)
	return sharedMemory{m, d.on}, err
}

func (d sharedDevice) Close() error {
	close(d.on.closed)
	return d.Device.Close()
}

type sharedMemory struct {
	gpuexec.Memory
	on *shared
}

func (m sharedMemory) Mapped() []byte { return m.on.memory }

func filling(b *gpuexec.Buffer, fill func([]byte) error) gpuexec.Launch {
	return hidden.With(gpuexec.CopyTo(b, 0, nil), fill)
}

// A buffer is filled by a worker: where the host shares it in place, else by a copy. An
// error is the caller's, and then nothing is copied.
func TestFill(t *testing.T) {
	want := []byte{1, 2, 3}
	fill := func(into []byte) error { copy(into, want); return nil }
	failed := errors.New("failed")
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	b := alloc(t, e, 3)
	got := make([]byte, 3)
	err := e.Submit(bg, filling(b, fill), gpuexec.CopyFrom(b, 0, got))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("copied: %v, %v", got, err)
	}
	err = e.Submit(bg, filling(b, func(into []byte) error { into[0] = 9; return failed }))
	if err := e.Read(bg, b, 0, got); err != nil || !slices.Equal(got, want) {
		t.Errorf("after an error: %v, %v", got, err)
	}
	if !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	s := &shared{Backend: &fakedevice.Backend{}, closed: make(chan struct{})}
	mapped, err := gpuexec.Open(bg, gpuexec.Config{Backend: s})
	if err != nil {
		t.Fatal(err)
	}
	if b, err = mapped.Alloc(bg, 3); err != nil {
		t.Fatal(err)
	}
	if err := mapped.Submit(bg, filling(b, fill)); err != nil || !slices.Equal(s.memory, want) {
		t.Errorf("in place: %v, %v", s.memory, err)
	}
	if err := mapped.Close(bg); err != nil {
		t.Error(err)
	}
}

// F8: whoever fills a buffer keeps the device open until it is done, also where its caller has left.
func TestCloseWhileABufferIsFilled(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		s := &shared{Backend: &fakedevice.Backend{}, closed: make(chan struct{})}
		e, err := gpuexec.Open(bg, gpuexec.Config{Backend: s})
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.Alloc(bg, 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(bg)
		begun, answered, filled := make(chan struct{}), make(chan struct{}), false
		go func() {
			<-begun
			if leaves {
				leave()
				<-answered
			}
			_ = e.Close(bg)
		}()
		err = e.Submit(ctx, filling(b, func(into []byte) error {
			close(begun)
			if leaves {
				<-answered
			}
			for !errors.Is(e.Submit(bg), fault.ErrClosed) { // until the executor is closing
				into[0]++
			}
			for range 100 {
				select {
				case <-s.closed:
					t.Error("the device is closed")
				default:
					into[0]++
				}
			}
			filled = true
			return nil
		}))
		close(answered)
		b.Release()
		if want := map[bool]error{true: context.Canceled, false: fault.ErrClosed}[leaves]; err != nil && !errors.Is(err, want) {
			t.Errorf("leaves %v: %v", leaves, err)
		}
		if err := e.Close(bg); err != nil || !filled {
			t.Errorf("leaves %v: %v, filled %v", leaves, err, filled)
		}
		leave()
	}
}
