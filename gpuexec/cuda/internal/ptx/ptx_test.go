package ptx_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/ptx"
)

// memory is global memory in pieces, by their addresses.
type memory map[uint64][]byte

func (m memory) Bytes(address uint64, n int) ([]byte, error) {
	for base, p := range m {
		if at := address - base; address >= base && at < uint64(len(p)) && n <= len(p)-int(at) {
			return p[at:][:n], nil
		}
	}
	return nil, errors.New("nothing is there")
}

// put lays a list into memory, and gives its address.
func put[T any](m memory, list []T) uint64 {
	address := uint64(0x7f00_0000_0000) + uint64(len(m))<<32
	p, err := binary.Append(nil, binary.LittleEndian, list)
	if err != nil {
		panic(err)
	}
	m[address] = p
	return address
}

// list is what lies at an address of memory.
func list[T any](m memory, address uint64, n int) []T {
	list := make([]T, n)
	if _, err := binary.Decode(m[address], binary.LittleEndian, list); err != nil {
		panic(err)
	}
	return list
}

// params puts the values of parameters where an entry wants them.
func params(e *ptx.Entry, values ...any) []byte {
	var all []byte
	for i, p := range e.Params() {
		all = append(all, make([]byte, p.Offset-len(all))...)
		all, _ = binary.Append(all, binary.LittleEndian, values[i])
	}
	return all
}

func entry(t testing.TB, text []byte, name string) *ptx.Entry {
	t.Helper()
	m, err := ptx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := m.Entry(name)
	if !ok {
		t.Fatalf("no entry %s", name)
	}
	return e
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var background = context.Background()

// What NVRTC made of a sum of vectors gives the sum, and touches nothing behind it.
func TestSumOfVectors(t *testing.T) {
	e := entry(t, file(t, "vadd.ptx"), "vadd")
	const n = 1000
	m, a, b := memory{}, make([]float32, n), make([]float32, n)
	for i := range a {
		a[i], b[i] = rand.Float32(), rand.Float32()
	}
	x, y, z := put(m, a), put(m, b), put(m, make([]float32, n))
	l := ptx.Launch{Grid: [3]uint32{8, 1, 1}, Block: [3]uint32{128, 1, 1}, Params: params(e, x, y, z, uint32(n)), Memory: m}
	if err := e.Run(background, l); err != nil {
		t.Fatal(err)
	}
	for i, got := range list[float32](m, z, n) {
		if got != a[i]+b[i] {
			t.Fatalf("element %d is %v, want %v", i, got, a[i]+b[i])
		}
	}
	l.Params = params(e, x, y, z, uint32(n+1))
	if f, ok := errors.AsType[*ptx.Fault](e.Run(background, l)); !ok || f.Kind != ptx.IllegalAddress || f.Line == 0 {
		t.Errorf("%v, want an illegal address", f)
	}
}
