package onednn

import (
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// E3: values in blocks, beside a tensor that has none, are the right ones in every implementation:
// those of all versions took others, behind an operation, and that of 2.6 as the second of a binary.
func TestValuesInBlocks(t *testing.T) {
	r := open1(t, limit.Limit{})
	const a, b, block = 17, 33, 16
	x := Dense("f32", a, b)
	src, second, dst := r.filled(1, x), r.filled(2, x), r.memory(x)
	for _, sizes := range [][]int64{{1, b}, {a, 1}, {a, b}, {1, 1}} {
		if r.is3() {
			break // it has no name for such blocks
		}
		row := (sizes[1] + block - 1) / block * block
		values := r.filled(3, tensor{Type: "f32", Dims: sizes, Strides: []int64{row, block}, Blocks: []primitive.Block{{Dim: 1, Size: block}}})
		behind := spec("binary", "", "mul", nil, x, x, x)
		behind.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: values.Tensor()}}
		want, sum := make([]float64, a*b), make([]float64, a*b)
		for i := range int64(a * b) {
			v := float64(Of[float32](values)[i/b%sizes[0]*row+i%b%sizes[1]])
			p := float64(Of[float32](src)[i])
			want[i], sum[i] = p*float64(Of[float32](second)[i])+v, p+v
		}
		r.each(behind, func(name string, p *primitive.Primitive) {
			r.run(p, Arg{Src, src}, Arg{Src1, second}, Arg{Dst, dst}, Arg{PostOpSource(0), values})
			near(t, name+", behind", Of[float32](dst), want, 1e-6)
		})
		r.each(spec("binary", "", "add", nil, x, values.Tensor(), x), func(name string, p *primitive.Primitive) {
			r.run(p, Arg{Src, src}, Arg{Src1, values}, Arg{Dst, dst})
			near(t, name+", second", Of[float32](dst), sum, 1e-6)
		})
	}
	for _, w := range []int64{4, 5} { // values of one row, in blocks of channels
		x, c := Dense("f32", 2, 16, 3, w), tensor{Type: "f32", Dims: []int64{1, 1, 1, w}, Strides: []int64{8 * w, 8 * w, 8 * w, 8}, Blocks: []primitive.Block{{Dim: 1, Size: 8}}}
		src, values, dst := r.filled(1, x), r.filled(3, c), r.memory(x)
		s := spec("binary", "", "mul", nil, x, x, x)
		s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: c}}
		want := wide(Of[float32](src))
		for i, v := range want {
			want[i] = v*v + float64(Of[float32](values)[int64(i)%w*8])
		}
		r.each(s, func(name string, p *primitive.Primitive) {
			r.run(p, Arg{Src, src}, Arg{Src1, src}, Arg{Dst, dst}, Arg{PostOpSource(0), values})
			near(t, name, Of[float32](dst), want, 1e-6)
		})
	}
}

// E3: an inner product adds what was there less its zero point in every implementation: one of 2.6
// left the zero point out.
func TestSumOfAnInnerProduct(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 5, 8, 16
	a, b, dst := r.filled(1, Dense("f32", m, k)), r.filled(2, Dense("f32", n, k)), r.memory(Dense("f32", m, n))
	s := spec("inner_product", "inference", "", nil, a.Tensor(), b.Tensor(), tensor{}, dst.Tensor())
	s.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: 0.5, ZeroPoint: 3}}
	want := make([]float64, m*n)
	for i := range want {
		for j := range k {
			want[i] += float64(Of[float32](a)[i/n*k+j]) * float64(Of[float32](b)[i%n*k+j])
		}
		want[i] -= 1 // half of 1 - 3
	}
	r.each(s, func(name string, p *primitive.Primitive) {
		for i := range Of[float32](dst) {
			Of[float32](dst)[i] = 1
		}
		r.run(p, Arg{Src, a}, Arg{Weights, b}, Arg{Dst, dst})
		near(t, name, Of[float32](dst), want, 1e-5)
	})
}

// E3: the greatest of numbers below 0 reaches what is behind a pooling in every implementation: that
// of 3.13 took 0 for it where the result is of u8.
func TestGreatestBelowZero(t *testing.T) {
	r := open1(t, limit.Limit{})
	src, dst := r.memory(Dense("f32", 1, 3, 4, 4)), r.memory(Dense("u8", 1, 3, 3, 3))
	for i := range Of[float32](src) {
		Of[float32](src)[i] = -5
	}
	want := slices.Repeat([]byte{5}, len(dst.Bytes()))
	s := spec("pooling", "inference", "max", []param{ints("kernel", 2, 2)}, src.Tensor(), dst.Tensor())
	s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "abs"}}
	r.each(s, func(name string, p *primitive.Primitive) {
		if r.run(p, Arg{Src, src}, Arg{Dst, dst}); !slices.Equal(dst.Bytes(), want) {
			t.Errorf("%s: %d, want %d", name, dst.Bytes(), want)
		}
	})
}

// E3: a function behind a pooling of few channels has its implementations made: one of 2.6 crashed.
func TestFunctionBehindAPooling(t *testing.T) {
	r := open1(t, limit.Limit{})
	last := func(h, w int64) tensor {
		return tensor{Type: "f32", Dims: []int64{2, 3, h, w}, Strides: []int64{3 * h * w, 1, 3 * w, 3}}
	}
	s := spec("pooling", "inference", "max", []param{ints("kernel", 2, 2)}, last(4, 6), last(3, 5))
	s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "relu"}}
	r.each(s, func(string, *primitive.Primitive) {})
}

// E3: a reorder with scales by any two masks is right in every implementation: those of 3.2 refused
// each execution with two, and those of 3.x took dimensions apart for others.
func TestScalesOfTwoMasks(t *testing.T) {
	r := open1(t, limit.Limit{})
	sizes := [3]int64{3, 16, 5}
	src, dst := r.filled(1, Dense("f32", sizes[:]...)), r.memory(Dense("f32", sizes[:]...))
	for masks := range uint64(64) {
		s := spec("reorder", "", "", nil, src.Tensor(), dst.Tensor())
		args := []Arg{{Src, src}, {Dst, dst}}
		want := wide(Of[float32](src))
		for k, slot := range []Slot{Src, Dst} {
			mask := masks >> (3 * k) & 7
			n := int64(1)
			for d, size := range sizes {
				if mask>>d&1 != 0 {
					n *= size
				}
			}
			scales := r.memory(Dense("f32", n))
			for i := range Of[float32](scales) {
				Of[float32](scales)[i] = float32(1 + i%7)
			}
			for i := range want {
				of, at := int64(0), [3]int64{int64(i) / 80, int64(i) / 5 % 16, int64(i) % 5}
				for d, size := range sizes {
					if mask>>d&1 != 0 {
						of = of*size + at[d]
					}
				}
				if factor := float64(Of[float32](scales)[of]); slot == Src {
					want[i] *= factor
				} else {
					want[i] /= factor
				}
			}
			s.Attr.Scales = append(s.Attr.Scales, primitive.Quant{Arg: slot.String(), Mask: mask})
			args = append(args, Arg{ScalesOf(slot), scales})
		}
		if !r.is3() {
			continue // it has one kind of scales
		}
		r.each(s, func(name string, p *primitive.Primitive) {
			r.run(p, args...)
			near(t, name, Of[float32](dst), want, 1e-5)
		})
	}
}

// E3: a softmax over the channels of blocks takes the scale of its source in every implementation: those
// of 3.2 for old processors left it out.
func TestScaleOfASoftmaxInBlocks(t *testing.T) {
	r := open1(t, limit.Limit{})
	if !r.is3() {
		t.Skip("2.6 has no scales of a softmax")
	}
	const batch, channels, n = 2, 16, 3
	for _, block := range []int64{4, 8, 16} {
		x := tensor{Type: "f32", Dims: []int64{batch, channels, n}, Strides: []int64{channels * n, n * block, block}, Blocks: []primitive.Block{{Dim: 1, Size: block}}}
		src, dst, scale := r.memory(x), r.memory(x), r.memory(Dense("f32", 1)) // all are 0
		Of[float32](scale)[0] = 4
		want := slices.Repeat([]float64{4. / channels}, batch*channels*n)
		s := spec("softmax", "inference", "accurate", []param{ints("axis", 1)}, x, x)
		s.Attr.Scales = []primitive.Quant{{Arg: "src"}}
		r.each(s, func(name string, p *primitive.Primitive) {
			r.run(p, Arg{Src, src}, Arg{Dst, dst}, Arg{ScalesOf(Src), scale})
			near(t, name, Of[float32](dst), want, 1e-5)
		})
	}
}
