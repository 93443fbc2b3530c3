package gpuexec_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// adopting is a device that reads memory that is not its own.
type adopting struct {
	*fakedevice.Backend
	adopt func(memory []byte, release func()) gpuexec.Memory
}

func (a adopting) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := a.Backend.Open(ctx, index)
	return adoptingDevice{d, a}, err
}

type adoptingDevice struct {
	gpuexec.Device
	on adopting
}

func (d adoptingDevice) Adopt(memory []byte, release func()) gpuexec.Memory {
	return d.on.adopt(memory, release)
}

type adopted struct {
	memory  []byte
	release func()
}

func (a adopted) Mapped() []byte { return a.memory }
func (a adopted) Release()       { a.release() }

// E3: a buffer of memory that is not the device's is one like others: a lease of its memory
// ends when nobody has the buffer any more. Where the device has none, the memory stays the
// caller's.
func TestAdopt(t *testing.T) {
	memory, released := []byte{1, 2, 3}, atomic.Int32{}
	done := make(chan bool, 1)
	release := func() {
		released.Add(1)
		done <- true
	}
	for _, c := range []struct {
		name    string
		backend gpuexec.Backend
		want    error
	}{
		{"none", &fakedevice.Backend{}, fault.ErrUnsupported},
		{"one", adopting{&fakedevice.Backend{}, func(memory []byte, release func()) gpuexec.Memory { return adopted{memory, release} }}, nil},
		{"panic", adopting{&fakedevice.Backend{}, func([]byte, func()) gpuexec.Memory { panic("broken") }}, errPanic},
	} {
		released.Store(0)
		e, err := gpuexec.Open(bg, gpuexec.Config{Backend: c.backend, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		b, err := hidden.Adopt(bg, e, memory, release)
		if c.want == nil {
			b := b.(*gpuexec.Buffer)
			if err != nil || &b.Mapped()[0] != &memory[0] || b.Bytes() != 3 || released.Load() != 0 {
				t.Errorf("%s: %v, %v, released %d times", c.name, err, b.Mapped(), released.Load())
			}
			b.Release()
			b.Release()
			<-done // the device's Close would be the one to release what is left
		} else if panicked := new(fault.PanicError); !errors.Is(err, c.want) && !(c.want == errPanic && errors.As(err, &panicked)) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
		if got, want := released.Load(), map[bool]int32{true: 1}[c.want == nil]; got != want {
			t.Errorf("%s: released %d times, want %d", c.name, got, want)
		}
		if _, err := hidden.Adopt(bg, e, memory, release); !errors.Is(err, fault.ErrClosed) {
			t.Errorf("%s: closed: %v", c.name, err)
		}
	}
}

var errPanic = errors.New("a panic")

// Who leaves before the device has adopted memory finds it released: nobody else would.
func TestAdoptIsLeft(t *testing.T) {
	ctx, leave := context.WithCancel(bg)
	released := make(chan bool)
	backend := adopting{&fakedevice.Backend{}, func(memory []byte, release func()) gpuexec.Memory {
		leave()
		<-released // the caller has gone
		return adopted{memory, release}
	}}
	e, err := gpuexec.Open(bg, gpuexec.Config{Backend: backend, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(bg)
	_, err = hidden.Adopt(ctx, e, []byte{1}, func() { close(released) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
	released <- true
	<-released
}
