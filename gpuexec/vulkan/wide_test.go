//go:build linux && (amd64 || arm64)

package vulkan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// The shaders that processors have compute what the others do, at each edge of
// what a group makes: products with the same bits.
func TestWideShaders(t *testing.T) {
	wide, narrow := driven(t, Config{}), driven(t, Config{Device: -1})
	if !wide.processor() {
		t.Skip("device 0 is no processor")
	}
	e := open(t, wide, 1)
	rnd := rand.New(rand.NewPCG(3, 5))
	list := []ops.Op{ops.New(ops.Softmax, 2, 3, 5, 36), ops.New(ops.Softmax, 3, 2, 4, 4), ops.New(ops.Softmax, 1, 1, 3, 7)}
	for _, d := range [][3]int64{{1, 4, 4}, {8, 32, 32}, {9, 36, 33}, {13, 8, 5}, {33, 44, 64}, {70, 68, 31}} { // rows, texels, any
		for flags := range 4 {
			o := ops.New(ops.BatchMatMul, 2, 3, d[0], d[2], d[1])
			o.TransposeB, o.MaskK, o.Scale = flags&1 != 0, flags&2 != 0, 0.25
			if o.TransposeB {
				o.Dims[3], o.Dims[4] = d[1], d[2]
			}
			list = append(list, o)
		}
	}
	for _, width := range []int64{4, 28, 32, 36, 64} {
		list = append(list, ops.New(ops.Attention, 7, 3, width, 1), ops.New(ops.Attention, 41, 2, width, 5))
	}
	for _, op := range list {
		if a, b := wide.shader(op), narrow.shader(op); a.module == b.module {
			t.Errorf("%s: both have %s", op, a.module)
		}
		in, out := buffersOf(op)
		for i, x := range in {
			for j := range x {
				if x[j] == 1 {
					x[j] = float32(rnd.NormFloat64())
				}
			}
			if op.Kind != ops.Attention && len(x) == int(op.Dims[0]) && i > 0 { // lengths: some of a last texel, and all
				for j := range x {
					x[j] = math.Float32frombits(uint32(op.Dims[3]) - uint32(j%4))
				}
			}
		}
		other := slices.Clone(out)
		compute(t, e, wide, op, in, out)
		compute(t, e, narrow, op, in, other)
		for i := range out {
			if off := math.Abs(float64(out[i] - other[i])); off > 1e-6 && off > 1e-5*math.Abs(float64(other[i])) || op.Kind == ops.BatchMatMul && off != 0 {
				t.Errorf("%s: element %d is %v, else %v", op, i, out[i], other[i])
				break
			}
		}
	}
}

// E8: a row has the same bits with any padding.
func TestSoftmaxOfAnyPadding(t *testing.T) { both(t, testSoftmaxOfAnyPadding) }

func testSoftmaxOfAnyPadding(t *testing.T, b *Backend) {
	e := open(t, b, 1)
	rnd := rand.New(rand.NewPCG(3, 5))
	row := make([]float32, 70)
	for i := range row {
		row[i] = float32(rnd.NormFloat64())
	}
	for n := 1; n <= len(row)-5; n += 3 {
		var want []float32
		for keys := n; keys < n+5; keys++ {
			op, out := ops.New(ops.Softmax, 1, 1, 1, int64(keys)), make([]float32, keys)
			compute(t, e, b, op, [][]float32{row[:keys], {math.Float32frombits(uint32(n))}}, out)
			if keys == n {
				want = slices.Clone(out)
			}
			if !slices.Equal(out[:n], want) || slices.ContainsFunc(out[n:], func(y float32) bool { return y != 0 }) {
				t.Fatalf("%d keys, padded to %d: %v, want %v", n, keys, out, want)
			}
		}
	}
}

// E8: a row of a product by itself, at a tile's end too, has the bits that it has among others.
func TestRowByItself(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	rnd := rand.New(rand.NewPCG(3, 5))
	for _, k := range []int64{36, 40} {
		op := ops.New(ops.MatMul, 10, k, 130)
		in, want := buffersOf(op)
		for _, x := range in {
			for j := range x {
				x[j] = float32(rnd.NormFloat64())
			}
		}
		compute(t, e, b, op, in, want)
		for _, rows := range [][2]int64{{0, 1}, {7, 8}, {0, 9}} {
			part := op
			part.Dims[0] = rows[1] - rows[0]
			got := make([]float32, part.Elements())
			compute(t, e, b, part, [][]float32{in[0][rows[0]*k : rows[1]*k], in[1]}, got)
			if !slices.Equal(got, want[rows[0]*130:rows[1]*130]) {
				t.Errorf("rows %v of %s have other bits by themselves", rows, op)
			}
		}
	}
}
