package kernels_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openEngine opens an engine with a small memory for the length of a test.
func openEngine(t testing.TB) *kernels.Engine {
	t.Helper()
	e, err := kernels.Open(kernels.Config{MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func specOf(kind ops.Kind, dims ...uint32) kernels.Spec {
	s := kernels.Spec{Op: ops.Op{Kind: kind}}
	for i, d := range dims {
		s.Dims[i] = int64(d)
	}
	return s
}

func layerNorm(rows, width uint32, epsilon float32) kernels.Spec {
	s := specOf(ops.LayerNorm, rows, width)
	s.Epsilon = epsilon
	return s
}

// launch is a compiled spec with its buffers filled with random values.
type launch struct {
	spec     kernels.Spec
	engine   *kernels.Engine
	program  *kernels.Program
	instance *kernels.Instance
	params   []kernels.Param
	buffers  []uint32
}

const guard = 64 // bytes around each buffer

func newLaunch(t testing.TB, e *kernels.Engine, spec kernels.Spec, seed uint64) *launch {
	t.Helper()
	p, err := e.Compile(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	i, err := p.NewInstance()
	if err != nil {
		t.Fatal(err)
	}
	l := &launch{spec: spec, engine: e, program: p, instance: i, params: spec.Params()}
	at := uint32(guard)
	for _, q := range l.params {
		l.buffers = append(l.buffers, at)
		at += uint32(q.Bytes+2*guard+63) / 64 * 64
	}
	if int(at) > len(e.Memory()) {
		t.Fatalf("%s needs %d bytes", spec, at)
	}
	l.fill(seed)
	t.Cleanup(func() {
		i.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// fill writes random floats, valid lengths and ids; what is around the buffers
// is a pattern that intact checks.
func (l *launch) fill(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	last := len(l.buffers) - 1
	area := l.engine.Memory()[:l.buffers[last]+uint32(l.params[last].Bytes)+guard]
	for i := range area {
		area[i] = 0xa5
	}
	for n, q := range l.params {
		var most uint32 // of an integer buffer
		switch d := l.spec.Dims; {
		case q.Name == "lengths":
			most = uint32(d[3])
		case q.Name == "ids":
			most = uint32(d[2]) - 1
		}
		for i := range int(q.Bytes / 4) {
			switch {
			case q.Name == "lengths":
				l.setInt(n, i, int32(1+r.Uint32N(most)))
			case q.Name == "ids":
				l.setInt(n, i, int32(r.Uint32N(most+1)))
			default:
				l.set(n, i, float32(r.NormFloat64()*2))
			}
		}
	}
}

func (l *launch) word(buffer, i int) []byte {
	at := int(l.buffers[buffer]) + 4*i
	return l.engine.Memory()[at : at+4]
}

func (l *launch) set(buffer, i int, v float32) {
	binary.LittleEndian.PutUint32(l.word(buffer, i), math.Float32bits(v))
}

func (l *launch) setInt(buffer, i int, v int32) {
	binary.LittleEndian.PutUint32(l.word(buffer, i), uint32(v))
}

func (l *launch) float(buffer, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(l.word(buffer, i)))
}

func (l *launch) int(buffer, i int) int {
	return int(int32(binary.LittleEndian.Uint32(l.word(buffer, i))))
}

// run calls the kernel for all blocks, cut after each of the given ones.
func (l *launch) run(t testing.TB, cuts ...uint32) {
	t.Helper()
	from := uint32(0)
	for _, to := range append(cuts, l.spec.Blocks()) {
		if err := l.instance.Call(l.buffers, from, to); err != nil {
			t.Fatal(err)
		}
		from = to
	}
}

// output is a copy of the result's bits.
func (l *launch) output() []uint32 {
	last := len(l.buffers) - 1
	bits := make([]uint32, l.params[last].Bytes/4)
	for i := range bits {
		bits[i] = binary.LittleEndian.Uint32(l.word(last, i))
	}
	return bits
}

// intact fails the test if a byte around a buffer was written.
func (l *launch) intact(t testing.TB) {
	t.Helper()
	m := l.engine.Memory()
	for n, q := range l.params {
		start, end := l.buffers[n], l.buffers[n]+uint32(q.Bytes)
		for i := range uint32(guard) {
			if m[start-1-i] != 0xa5 && (n == 0 || start-1-i >= l.buffers[n-1]+uint32(l.params[n-1].Bytes)) || n == len(l.params)-1 && m[end+i] != 0xa5 {
				t.Fatalf("%s wrote around buffer %s", l.spec, q.Name)
			}
		}
	}
}
