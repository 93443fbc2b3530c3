package gpuexec_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// shared is a device whose memory the host shares. It notes when it is closed first, and that
// memory was released.
type shared struct {
	*fakedevice.Backend
	memory   []byte
	once     sync.Once
	closed   chan struct{}
	released atomic.Bool
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
	d.on.once.Do(func() { close(d.on.closed) })
	return d.Device.Close()
}

type sharedMemory struct {
	gpuexec.Memory
	on *shared
}

func (m sharedMemory) Mapped() []byte { return m.on.memory }

func (m sharedMemory) Release() {
	m.on.released.Store(true)
	m.Memory.Release()
}

// openShared opens such a device, with one worker and a buffer of n bytes; the test closes it.
func openShared(t *testing.T, n int64) (*shared, *gpuexec.Executor, *gpuexec.Buffer) {
	t.Helper()
	s := &shared{Backend: &fakedevice.Backend{}, closed: make(chan struct{})}
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: s, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Alloc(bg, n)
	if err != nil {
		t.Fatal(err)
	}
	return s, e, b
}

// A buffer is filled in place where the host shares it, else by a copy. An error is the
// caller's, and then nothing is copied.
func TestFill(t *testing.T) {
	want := []byte{1, 2, 3}
	fill := func(into []byte) error { copy(into, want); return nil }
	failed := errors.New("failed")
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	b := alloc(t, e, 3)
	got := make([]byte, 3)
	err := errors.Join(hidden.Fill(bg, b, fill), e.Read(bg, b, 0, got))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("copied: %v, %v", got, err)
	}
	err = hidden.Fill(bg, b, func(into []byte) error { into[0] = 9; return failed })
	if err := e.Read(bg, b, 0, got); err != nil || !slices.Equal(got, want) {
		t.Errorf("after an error: %v, %v", got, err)
	}
	if !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	var panicked *fault.PanicError
	if err := hidden.Fill(bg, b, func([]byte) error { panic("broken") }); !errors.As(err, &panicked) {
		t.Errorf("a panic: %v", err)
	}
	if err := hidden.Fill(bg, b, func([]byte) error { runtime.Goexit(); return nil }); !errors.Is(err, fault.ErrGoexit) {
		t.Errorf("a goroutine that ends: %v", err)
	}
	b.Release()
	if err := hidden.Fill(bg, b, fill); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a buffer that was released: %v", err)
	}
	s, mapped, b := openShared(t, 3)
	if err := hidden.Fill(bg, b, fill); err != nil || !slices.Equal(s.memory, want) {
		t.Errorf("in place: %v, %v", s.memory, err)
	}
	if err := mapped.Close(bg); err != nil {
		t.Error(err)
	}
}

// What fills buffers may wait for files for long: no worker does with it, and no queue is full of
// those that wait, however many are filled.
func TestFillingTakesNoWorker(t *testing.T) {
	const buffers = 5
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{Workers: 1, Queue: 1})
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	var begun, ended sync.WaitGroup
	begun.Add(buffers)
	read := make(chan struct{})
	for range buffers {
		b := alloc(t, e, 1)
		ended.Go(func() {
			fill := func([]byte) error {
				begun.Done()
				<-read
				return nil
			}
			if err := hidden.Fill(ctx, b, fill); err != nil && !errors.Is(err, fault.ErrOverloaded) { // of the copies
				t.Error(err)
			}
		})
	}
	began := make(chan struct{})
	go func() {
		begun.Wait()
		close(began)
	}()
	select {
	case <-began:
	case <-ctx.Done():
		t.Error("not all buffers are being filled")
	}
	if err := e.Submit(ctx); err != nil {
		t.Errorf("beside %d that are filled: %v", buffers, err)
	}
	close(read)
	ended.Wait()
}

// E1: a device that is lost while a buffer is filled is closed after that, and from then on its
// buffers are not filled any more.
func TestDeviceLostWhileABufferIsFilled(t *testing.T) {
	s, e, b := openShared(t, 1)
	err := hidden.Fill(bg, b, func(into []byte) error {
		s.Lose()
		for e.Stats().Restarts == 0 { // until that is known
			_ = e.Submit(bg)
		}
		select {
		case <-s.closed:
			t.Error("the device is closed")
		case <-time.After(100 * time.Millisecond): // the fill takes its time
			into[0]++
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	<-s.closed
	err = hidden.Fill(bg, b, func([]byte) error { t.Error("it is filled"); return nil })
	if !errors.Is(err, fault.ErrDeviceLost) {
		t.Errorf("a buffer that was lost: %v", err)
	}
	b.Release()
	if err := e.Close(bg); err != nil {
		t.Error(err)
	}
	if err := hidden.Fill(bg, b, func([]byte) error { return nil }); err == nil {
		t.Error("after Close a buffer was filled")
	}
}

// C5: a buffer that is released while it is filled, by a caller that has left, stays until then.
func TestFilledBufferIsKept(t *testing.T) {
	s, e, b := openShared(t, 1)
	ctx, leave := context.WithCancel(bg)
	left := make(chan struct{})
	err := hidden.Fill(ctx, b, func(into []byte) error {
		leave()
		<-left
		into[0]++
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	b.Release()
	if err := e.Submit(bg); err != nil || s.released.Load() { // after it, were it to be released now
		t.Errorf("%v, the buffer is gone: %v", err, s.released.Load())
	}
	close(left)
	for !s.released.Load() {
		if err := e.Submit(bg); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(bg); err != nil {
		t.Error(err)
	}
}

// F5: what fills a buffer does not wait for itself when it closes the executor.
func TestFillThatCloses(t *testing.T) {
	e := open(t, &fakedevice.Backend{}, gpuexec.Config{})
	b := alloc(t, e, 1)
	_ = hidden.Fill(bg, b, func([]byte) error {
		if err := e.Close(bg); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("%v, want ErrCycle", err)
		}
		return nil
	})
}

// F8: whoever fills a buffer keeps the device open until it is done, also where its caller has left.
func TestCloseWhileABufferIsFilled(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		s, e, b := openShared(t, 1)
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
		err := hidden.Fill(ctx, b, func(into []byte) error {
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
		})
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
