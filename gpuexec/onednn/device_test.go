package onednn

import (
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

// E1, E2, E3: the device keeps the contract of devices.
func TestContract(t *testing.T) {
	b := backend(t)
	devicetest.Contract(t, b, source(t, b, ops.New(ops.MatMul, 3, 4, 5)), source(t, b, ops.New(ops.GELU, 3, 5)), source(t, b, ops.New(ops.Add, 4, 7, 2)))
}

// rounds says that the forms of an operation round differently.
type rounds struct{ *Backend }

func (rounds) Rounds() {}

// The operations compute what package ops says.
func TestOperations(t *testing.T) {
	devicetest.Operations(t, rounds{backend(t)})
}
