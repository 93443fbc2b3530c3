//go:build linux && (amd64 || arm64)

package vulkan

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// both runs a test with the shaders for the device, and with those for devices that are no
// processor.
func both(t *testing.T, test func(t *testing.T, b *Backend)) {
	for name, number := range map[string]int{"device": 0, "narrow": -1} {
		t.Run(name, func(t *testing.T) { test(t, driven(t, Config{Device: number})) })
	}
}

// E8: every operation is right, and its bits depend on nothing but its own inputs.
func TestOperations(t *testing.T) {
	both(t, func(t *testing.T, b *Backend) { devicetest.Operations(t, b) })
}

// Shaders are those for the device that was chosen, not for the first: one that is no
// processor has others.
func TestShadersAreOfTheDevice(t *testing.T) {
	processor, other := driven(t, Config{}), driven(t, Config{Device: -1})
	if !processor.processor() {
		t.Skip("device 0 is no processor")
	}
	for _, op := range []ops.Op{ops.New(ops.MatMul, 2, 4, 4), ops.New(ops.Softmax, 2, 3, 4, 5)} {
		mine, err := processor.Source(op)
		theirs, otherErr := other.Source(op)
		if err := errors.Join(err, otherErr); err != nil || mine.Key == theirs.Key {
			t.Errorf("%s: both have %s, %v", op, mine.Name, err)
		}
	}
}

// each has an operation for each module and each choice of its flags.
func (b *Backend) each() []ops.Op {
	norm, product := ops.New(ops.LayerNorm, 2, 3), ops.New(ops.MatMul, 2, 3, 4)
	norm.Epsilon, product.Bias = 1e-5, true
	all := []ops.Op{norm, product, ops.New(ops.MatMul, 2, 3, 4), ops.New(ops.Gather, 2, 3, 4), ops.New(ops.Add, 4, 3, 2), ops.New(ops.Softmax, 2, 3, 4, 5),
		ops.New(ops.Reorder, 2, 3, 4, 5), ops.New(ops.GELU, 2, 3), ops.New(ops.Tanh, 2, 3), ops.New(ops.Slice, 2, 3, 4)}
	if b.processor() {
		wide, biased := ops.New(ops.MatMul, 2, 4, 4), ops.New(ops.MatMul, 2, 4, 4)
		biased.Bias = true
		all = append(all, wide, biased, ops.New(ops.Attention, 2, 3, 4, 1), ops.New(ops.Attention, 2, 3, 5, 1))
		for flags := range 4 {
			o := ops.New(ops.BatchMatMul, 2, 3, 4, 8, 12)
			o.TransposeB, o.MaskK = flags&1 != 0, flags&2 != 0
			all = append(all, o)
		}
	}
	for flags := range 4 {
		o := ops.New(ops.BatchMatMul, 2, 3, 4, 5, 7)
		o.TransposeB, o.MaskK = flags&1 != 0, flags&2 != 0
		all = append(all, o)
	}
	return all
}

// K4: one program serves operations of all dimensions, and of any epsilon and scale.
func TestOneProgramForAllShapes(t *testing.T) {
	b := New(Config{})
	keys := make(map[string]ops.Op)
	for _, op := range b.each() {
		src, err := b.Source(op)
		if err != nil {
			t.Fatal(err)
		}
		if twin, twice := keys[src.Key]; twice {
			t.Errorf("%s and %s have one program", op, twin)
		}
		keys[src.Key] = op
		for i := range op.Kind.Dims() {
			op.Dims[i] *= 6
		}
		switch op.Kind {
		case ops.LayerNorm:
			op.Epsilon = 1e-12
		case ops.BatchMatMul:
			op.Scale = 0.25
		}
		if other, err := b.Source(op); err != nil || !reflect.DeepEqual(src, other) {
			t.Errorf("%s has a program of its own, or none: %v", op, err)
		}
	}
	if _, err := b.Source(ops.New(ops.GELU, 1<<31, 1)); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("more elements than an index reaches: %v, want ErrUnsupported", err)
	}
	if _, err := b.Source(ops.New(ops.GELU, 0, 1)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no rows: %v, want ErrInvalid", err)
	}
}

// A program that is run with all numbers 0 touches nothing: gpuexec.Code.Block runs it so.
func TestAllNumbersZero(t *testing.T) { both(t, testAllNumbersZero) }

func testAllNumbersZero(t *testing.T, b *Backend) {
	e := open(t, b, 1)
	for _, op := range b.each() {
		_, values := b.Launch(op)
		run := func(values ...gpuexec.Arg) (wrote bool) {
			in, out := buffersOf(op)
			before := slices.Clone(out)
			compute(t, e, b, op, in, out, values...)
			return !slices.Equal(before, out)
		}
		if !run() {
			t.Errorf("%s wrote nothing", op)
		}
		for i := range values {
			if values[i] = gpuexec.ValueArg(uint32(0)); i >= len(op.Kind.Dims()) {
				values[i] = gpuexec.ValueArg(float32(0))
			}
		}
		if run(values...) {
			t.Errorf("%s with all numbers 0 wrote", op)
		}
	}
}

// buffersOf are the tensors of an operation, with ids and lengths of 2 and other numbers
// of 1, and what its output has before.
func buffersOf(op ops.Op) (in [][]float32, out []float32) {
	d := op.Dims
	fill := func(n int64, with float32) { in = append(in, slices.Repeat([]float32{with}, int(n))) }
	two := math.Float32frombits(2)
	switch op.Kind {
	case ops.Gather:
		fill(d[0], two)
		fill(d[1]*d[2], 1)
	case ops.Add:
		fill(d[0]*d[1], 1)
		fill(d[2]*d[1], 1)
	case ops.LayerNorm:
		fill(d[0]*d[1], 1)
		fill(d[1], 1)
		fill(d[1], 1)
	case ops.MatMul:
		fill(d[0]*d[1], 1)
		fill(d[1]*general.Parts(d[2], panel)*panel, 1)
		if op.Bias {
			fill(d[2], 1)
		}
	case ops.BatchMatMul:
		fill(d[0]*d[1]*d[2]*d[3], 1)
		fill(d[0]*d[1]*d[3]*d[4], 1)
		fill(d[0], two)
	case ops.Softmax:
		fill(op.Elements(), 1)
		fill(d[0], two)
	case ops.Slice:
		fill(d[0]*d[1]*d[2], 1)
	case ops.Attention: // of sequences of one length
		for range 3 {
			fill(op.Elements(), 1)
		}
		starts := make([]float32, d[3]+1)
		for i := range starts {
			starts[i] = math.Float32frombits(uint32(int64(i) * d[0] / d[3]))
		}
		in = append(in, starts)
	default:
		fill(op.Elements(), 1)
	}
	return in, slices.Repeat([]float32{7}, int(op.Elements()))
}

// launch is that of an operation, with its tensors on the device.
func launch(t testing.TB, e *gpuexec.Executor, b *Backend, op ops.Op, in [][]float32, out []float32) (l gpuexec.Launch, on *gpuexec.Buffer) {
	t.Helper()
	src, err := b.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	grid, values := b.Launch(op)
	l = gpuexec.Launch{Kernel: compile(t, e, src), Grid: grid}
	for _, x := range append(slices.Clone(in), out) {
		on = alloc(t, e, int64(4*len(x)))
		if err := e.Write(t.Context(), on, 0, gpuexec.BytesOf(x)); err != nil {
			t.Fatal(err)
		}
		l.Args = append(l.Args, gpuexec.BufferArg(on))
	}
	l.Args = append(l.Args, values...)
	return l, on
}

// compute runs an operation, with other values than its own if some are given.
func compute(t testing.TB, e *gpuexec.Executor, b *Backend, op ops.Op, in [][]float32, out []float32, values ...gpuexec.Arg) {
	t.Helper()
	l, on := launch(t, e, b, op, in, out)
	copy(l.Args[len(in)+1:], values)
	if err := e.Submit(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if err := e.Read(t.Context(), on, 0, gpuexec.BytesOf(out)); err != nil {
		t.Fatal(err)
	}
}

// A grid of more blocks than a device takes in one dimension has two, and every row and
// element is computed; the longest sums are complete, though a driver ends loops early.
func TestLargeShapes(t *testing.T) { both(t, testLargeShapes) }

func testLargeShapes(t *testing.T, b *Backend) {
	e := open(t, b, 1)
	norm, wide := ops.New(ops.LayerNorm, mostBlocks+5, 1), ops.New(ops.LayerNorm, 2, mostTerms)
	norm.Epsilon, wide.Epsilon = 1e-5, 1e-5
	transposed := ops.New(ops.BatchMatMul, 1, 1, 2, mostTerms, 3)
	transposed.TransposeB = true
	biased := ops.New(ops.MatMul, 2, mostTerms, 3)
	biased.Bias = true
	type large struct {
		op         ops.Op
		want, next float32 // of every element, but for those from 2 on
	}
	list := []large{
		{ops.New(ops.Add, mostBlocks+5, items, 1), 2, 2}, {ops.New(ops.Gather, mostBlocks+5, items, 3), 1, 1},
		{ops.New(ops.Reorder, mostBlocks+5, 2, 2, items/4), 1, 1}, {ops.New(ops.Slice, mostBlocks+5, 2, items), 1, 1},
		{ops.New(ops.Softmax, mostBlocks+5, 1, 1, 3), 0.5, 0.5}, {norm, 1, 1},
		{wide, 1, 1}, {ops.New(ops.Softmax, 1, 1, 1, mostTerms), 0.5, 0}, {ops.New(ops.Softmax, 1, 1, 1, mostTerms-1), 0.5, 0},
		{ops.New(ops.MatMul, 2, mostTerms, 3), mostTerms, mostTerms}, {ops.New(ops.MatMul, 2, mostTerms-1, 3), mostTerms - 1, mostTerms - 1}, {biased, mostTerms + 1, mostTerms + 1},
		{ops.New(ops.BatchMatMul, 1, 1, 2, mostTerms, 3), mostTerms, mostTerms}, {transposed, mostTerms, mostTerms},
		{ops.New(ops.BatchMatMul, 1, 1, 2, mostTerms, 4), mostTerms, mostTerms}, {ops.New(ops.BatchMatMul, mostBlocks+5, 1, 1, 4, 4), 4, 4},
		{ops.New(ops.Attention, mostBlocks/16+5, 17, 1, mostBlocks/16+5), 1, 1},
	}
	if b.processor() {
		list = append(list, large{ops.New(ops.Attention, 1, mostBlocks+5, 4, 1), 1, 1})
	}
	for _, c := range list {
		in, out := buffersOf(c.op)
		compute(t, e, b, c.op, in, out)
		for i, got := range out {
			want := c.want
			if i > 1 {
				want = c.next
			}
			if c.op.Kind == ops.Softmax && c.op.Dims[3] == 3 && i%3 == 2 {
				want = 0
			}
			if got != want {
				t.Errorf("%s: element %d is %v, want %v", c.op, i, got, want)
				break
			}
		}
	}
}

// The longest sequences of an attention are complete: its first rows are looked at alone.
func TestLongSequences(t *testing.T) { both(t, testLongSequences) }

func testLongSequences(t *testing.T, b *Backend) {
	e := open(t, b, 1)
	for _, width := range []int64{1, 32, mostWidth} {
		op := ops.New(ops.Attention, mostTerms/3/general.Parts(width, 32), 1, width, 1)
		in, out := buffersOf(op)
		for i := range in[2] {
			in[2][i] = float32(i / int(width)) // so that a missing key shows
		}
		l, on := launch(t, e, b, op, in, out)
		l.Grid = gpuexec.Size{2}
		if err := e.Submit(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if err := e.Read(t.Context(), on, 0, gpuexec.BytesOf(out)); err != nil {
			t.Fatal(err)
		}
		want := float32(op.Dims[0]-1) / 2
		for i, got := range out[:2*width] {
			if math.Abs(float64(got-want)) > 1e-4*float64(want) {
				t.Fatalf("%s: element %d is %v, want %v", op, i, got, want)
			}
		}
	}
}

// A grid has no more blocks in a dimension than any device takes.
func TestGridIsBounded(t *testing.T) {
	for _, op := range []ops.Op{ops.New(ops.GELU, 1<<20, 1<<10), ops.New(ops.Softmax, 1, 1, 1<<30, 1), ops.New(ops.MatMul, 1<<30, 1, 1), ops.New(ops.BatchMatMul, 1<<10, 1<<10, 1, 1, 1<<10)} {
		if grid, _ := New(Config{}).Launch(op); grid[0] != 65535 || grid[1] < 2 || grid[1] > 65535 {
			t.Errorf("%s: a grid of %v", op, grid)
		}
	}
	b := New(Config{})
	for _, op := range []ops.Op{ops.New(ops.MatMul, 1, mostTerms+1, 1), ops.New(ops.Attention, mostTerms/3+1, 1, 1, 1), ops.New(ops.Attention, 1, 1, mostWidth+1, 1)} {
		if _, err := b.Source(op); !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%s, of more terms than loops have turns or than items have room: %v, want ErrUnsupported", op, err)
		}
	}
}

// The functions of math.glsl are as accurate as they say, over all that they are made for.
func TestFunctions(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	x := make([]float32, 1<<20)
	for i := range x {
		x[i] = 24 * (float32(i)/float32(len(x)) - 0.5)
	}
	special := []float32{0, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), math.MaxFloat32, -math.MaxFloat32, 1e-30, 88, -88, 6, -6}
	copy(x, special)
	for _, c := range []struct {
		kind ops.Kind
		want func(x float64) float64
		most func(want float64) float64 // error
	}{
		{ops.GELU, func(x float64) float64 { return x / 2 * math.Erfc(-x/math.Sqrt2) }, func(want float64) float64 { return max(4e-7, 1.2e-7*math.Abs(want)) }},
		{ops.Tanh, math.Tanh, func(want float64) float64 { return 3 * 1.2e-7 * math.Abs(want) }},
	} {
		op, got, worst := ops.New(c.kind, 1, int64(len(x))), make([]float32, len(x)), 0.0
		compute(t, e, b, op, [][]float32{x}, got)
		for i, v := range x {
			want := c.want(float64(v))
			if math.IsInf(float64(v), -1) && c.kind == ops.GELU {
				want = 0
			}
			if math.IsNaN(want) && math.IsNaN(float64(got[i])) || float64(got[i]) == want {
				continue
			}
			off := math.Abs(float64(got[i])-want) / c.most(want)
			if worst = max(worst, off); !(off <= 1) {
				t.Fatalf("%s(%v) is %v, want %v", c.kind, v, got[i], want)
			}
		}
		t.Logf("%s: at most %.2f of the error that is allowed", c.kind, worst)
	}
}

// BenchmarkOperations runs what MiniLM does at 128 tokens, and a wider product, in turns with cpu.
func BenchmarkOperations(b *testing.B) {
	other, err := cpu.New("auto")
	if err != nil {
		b.Fatal(err)
	}
	generaltest.Beside(b, driven(b, Config{}), other)
}
