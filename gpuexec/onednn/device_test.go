package onednn

import (
	"context"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// backend is the backend with the library of this process, or skips.
func backend(t testing.TB) *Backend {
	t.Helper()
	b := New(path())
	if d := b.Devices(bg)[0]; !d.Available {
		t.Skip(d.Reason)
	}
	return b
}

func source(t testing.TB, b *Backend, op ops.Op) gpuexec.Source {
	t.Helper()
	src, err := b.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// counted is a backend whose devices' libraries are counted for devicetest.
type counted struct {
	*Backend
	mu struct {
		sync.Mutex
		opened []*Library
	}
}

func (w *counted) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := w.Backend.Open(ctx, index)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.mu.opened = append(w.mu.opened, d.(*device).lib)
	}
	return d, err
}

// Objects are those of all libraries that were opened, the closed ones too.
func (w *counted) Objects() (n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.mu.opened {
		n += l.Len()
	}
	return n
}

// E1, E2, E3: the device keeps the contract of devices, and leaves no object of the library.
func TestContract(t *testing.T) {
	b := &counted{Backend: backend(t)}
	devicetest.Contract(t, b, source(t, b.Backend, ops.New(ops.MatMul, 3, 4, 5)), source(t, b.Backend, ops.New(ops.GELU, 3, 5)), source(t, b.Backend, ops.New(ops.Add, 4, 7, 2)),
		source(t, b.Backend, ops.New(ops.GELU, 80, 100)), source(t, b.Backend, ops.New(ops.BatchMatMul, 2, 2, 3, 4, 5))) // in their exact form, and in both
}

// rounds says that the forms of an operation round differently.
type rounds struct{ *Backend }

func (rounds) Rounds() {}

// The operations compute what package ops says.
func TestOperations(t *testing.T) {
	devicetest.Operations(t, rounds{backend(t)})
}
