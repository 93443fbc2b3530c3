package onednn

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// each gives the primitive of every implementation that a request has.
func (r *rig) each(s primitive.Spec, run func(name string, p *primitive.Primitive)) (n int) {
	r.Helper()
	for d, err := range r.All(bg, &s) {
		if err != nil {
			r.Fatal(err)
		}
		run(d.Name(), r.kernel(*d.Spec()))
		d.Release()
		n++
	}
	return n
}

// E3: products that sum over one index, with weights of a batch that do not lie side by side, are
// right in every implementation: one of 3.13 took rows of one product for those of the next.
func TestProductsOfOneRow(t *testing.T) {
	r := open1(t, limit.Limit{})
	const b, m, n = 3, 5, 40
	x, y := Dense("f32", 2, b, m, 1), Dense("f32", 2, b, m, n)
	sizes := []int64{2, b, 1, n}
	src, dst := r.filled(1, x), r.memory(y)
	for _, strides := range [][]int64{{b * n, n, n, 1}, {b*n + 5, n, n, 1}, {b * (n + 4), n + 4, n, 1}, {n, 2 * n, n, 1}, {b * (n + 4), n + 4, 1, 1}} {
		weights := r.filled(2, tensor{Type: "f32", Dims: sizes, Strides: strides})
		want := make([]float64, 2*b*m*n)
		for i := range want {
			row, column := i/n, i%n
			of := int64(row/m/b)*strides[0] + int64(row/m%b)*strides[1] + int64(column)
			want[i] = float64(Of[float32](src)[row]) * float64(Of[float32](weights)[of])
		}
		if r.each(spec("matmul", "", "", nil, x, weights.Tensor(), tensor{}, y), func(name string, p *primitive.Primitive) {
			clear(dst.Bytes())
			r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{Dst, dst})
			near(t, name, Of[float32](dst), want, 1e-6)
		}) == 0 {
			t.Errorf("%v: no implementation", strides)
		}
	}
}

// E3: a product into rows with gaps, or batches in another order, with a post-operation that has a
// value for each row, column or product, is right in every implementation: those of all versions
// took other values, and read behind the last.
func TestValuesBehindAProductWithGaps(t *testing.T) {
	r := open1(t, limit.Limit{})
	const b, m, k = 3, 7, 3
	x := Dense("f32", b, m, k)
	src := r.filled(1, x)
	for _, n := range []int64{1, 5, 17} {
		weights := r.filled(2, Dense("f32", b, k, n))
		var plain []float64
		for i := range b {
			part := k * int(n)
			plain = append(plain, product(Of[float32](src)[i*m*k:], Of[float32](weights)[i*part:], m, k, int(n))...)
		}
		for _, strides := range [][]int64{{m * n, n, 1}, {m * (n + 3), n + 3, 1}, {m*n + 7, n, 1}, {n, b * n, 1}, {2 * m * n, 2 * n, 2}} {
			y := tensor{Type: "f32", Dims: []int64{b, m, n}, Strides: strides}
			dst := r.memory(y)
			for _, sizes := range [][]int64{{1, 1, 1}, {1, 1, n}, {1, m, 1}, {1, m, n}, {b, 1, 1}, {b, 1, n}, {b, m, 1}, {b, m, n}} {
				s := spec("matmul", "", "", nil, x, weights.Tensor(), tensor{}, y)
				values := r.filled(3, Dense("f32", sizes...))
				s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "mul", Source: values.Tensor()}}
				want := slices.Clone(plain)
				for i := range want {
					of := int64(0)
					for d, at := range []int64{int64(i) / n / m, int64(i) / n % m, int64(i) % n} {
						of = of*sizes[d] + at%sizes[d]
					}
					want[i] *= float64(Of[float32](values)[of])
				}
				if r.each(s, func(name string, p *primitive.Primitive) {
					clear(dst.Bytes())
					r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{PostOpSource(0), values}, Arg{Dst, dst})
					got := make([]float32, len(want))
					for i := range got {
						row := int64(i) / n
						got[i] = Of[float32](dst)[row/m*strides[0]+row%m*strides[1]+int64(i)%n*strides[2]]
					}
					near(t, name, got, want, 1e-5)
				}) == 0 {
					t.Errorf("%v with values of %v: no implementation", strides, sizes)
				}
			}
		}
	}
}

// D1: a product of one matrix into rows with gaps, as into a part of a wider one, with a value for
// each column has all implementations that 3.13 gives, and they are right.
func TestColumnsBehindAProductWithGaps(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, wide = 7, 3, 80
	for _, n := range []int64{5, 17, 70} {
		src, weights := r.filled(1, Dense("f32", m, k)), r.filled(2, Dense("f32", k, n))
		dst, values := r.memory(tensor{Type: "f32", Dims: []int64{m, n}, Strides: []int64{wide, 1}}), r.filled(3, Dense("f32", 1, n))
		s := spec("matmul", "", "", nil, src.Tensor(), weights.Tensor(), tensor{}, dst.Tensor())
		s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "mul", Source: values.Tensor()}, {Kind: "binary", Algorithm: "add", Source: values.Tensor()}}
		plain, want := product(Of[float32](src), Of[float32](weights), m, k, int(n)), make([]float64, len(Of[float32](dst)))
		for i, v := range plain {
			x := float64(Of[float32](values)[int64(i)%n])
			want[int64(i)/n*wide+int64(i)%n] = v*x + x
		}
		fast := false
		r.each(s, func(name string, p *primitive.Primitive) {
			clear(dst.Bytes()) // also the gaps
			r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{PostOpSource(0), values}, Arg{PostOpSource(1), values}, Arg{Dst, dst})
			near(t, name, Of[float32](dst), want, 1e-5)
			fast = fast || !strings.HasPrefix(name, "ref")
		})
		if fast != r.image.newer {
			t.Errorf("%d columns: one is listed that is not the library's own loop: %v", n, fast)
		}
	}
}

// E3: values behind an operation that do not lie side by side are the right ones in every
// implementation: 2.6 and 3.2 took those of each column for a row without gaps.
func TestValuesWithGaps(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 7, 4, 33
	a, b, dst := r.filled(1, Dense("f32", m, k)), r.filled(2, Dense("f32", k, n)), r.memory(Dense("f32", m, n))
	for _, gap := range []int64{1, 2} {
		values := r.filled(3, tensor{Type: "f32", Dims: []int64{1, n}, Strides: []int64{n * gap, gap}})
		want := product(Of[float32](a), Of[float32](b), m, k, n)
		for i := range want {
			want[i] *= float64(Of[float32](values)[int64(i)%n*gap])
		}
		s := spec("matmul", "", "", nil, a.Tensor(), b.Tensor(), tensor{}, dst.Tensor())
		s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "mul", Source: values.Tensor()}}
		if r.each(s, func(name string, p *primitive.Primitive) {
			r.run(p, Arg{Src, a}, Arg{Weights, b}, Arg{PostOpSource(0), values}, Arg{Dst, dst})
			near(t, name, Of[float32](dst), want, 1e-5)
		}) == 0 {
			t.Error("no implementation")
		}
	}
}

// E3: a softmax over the last dimension with a factor for each channel is right in every
// implementation: one of 3.2 read behind the last factor.
func TestSoftmaxByChannels(t *testing.T) {
	r := open1(t, limit.Limit{})
	if !r.is3() {
		t.Skip("2.6 has no post-operations of a softmax")
	}
	const batch, channels, n = 64, 17, 7
	x := Dense("f32", batch, channels, n)
	s := spec("softmax", "inference", "accurate", []param{ints("axis", 2)}, x, x)
	s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "mul", Source: Dense("f32", 1, channels, 1)}}
	src, factors, dst := r.filled(1, x), r.filled(2, s.Attr.PostOps[0].Source), r.memory(x)
	want := make([]float64, batch*channels*n)
	for row := range batch * channels {
		sum := 0.0
		for i := range n {
			sum += math.Exp(float64(Of[float32](src)[row*n+i]))
		}
		for i := range n {
			want[row*n+i] = math.Exp(float64(Of[float32](src)[row*n+i])) / sum * float64(Of[float32](factors)[row%channels])
		}
	}
	if r.each(s, func(name string, p *primitive.Primitive) {
		r.run(p, Arg{Src, src}, Arg{Dst, dst}, Arg{PostOpSource(0), factors})
		near(t, name, Of[float32](dst), want, 1e-5)
	}) == 0 {
		t.Error("no implementation")
	}
}

// E3: functions of numbers of 16 bits are right in every implementation: two of 3.13 took them for
// other numbers.
func TestEltwiseOfHalves(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, x := range []tensor{Dense("f16", 64), Dense("f16", 4, 8, 5), Dense("bf16", 64)} {
		src, dst := r.memory(x), r.memory(x)
		want := make([]uint16, len(Of[uint16](src)))
		for i := range want {
			want[i] = uint16(i+1) << 7 // bits of a number above 0
			Of[uint16](src)[i] = want[i] | uint16(i%2)<<15
		}
		r.each(spec("eltwise", "inference", "abs", nil, x, x), func(name string, p *primitive.Primitive) {
			clear(dst.Bytes())
			r.run(p, Arg{Src, src}, Arg{Dst, dst})
			if !slices.Equal(Of[uint16](dst), want) {
				t.Errorf("%s of %s: %x, want %x", name, x.Type, Of[uint16](dst), want)
			}
		})
	}
}

// E3: post-operations that add what was there by several scales do so in every implementation: 2.6
// took one scale for all of them.
func TestSumsOfSeveralScales(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 4, 8, 16
	y := Dense("f32", m, n)
	a, b, c, dst := r.filled(1, Dense("f32", m, k)), r.filled(2, Dense("f32", k, n)), r.filled(3, y), r.memory(y)
	before := r.filled(4, y)
	for _, scales := range [][3]float64{{1, 0.5}, {0.5, 0}, {1, 0}, {0.5, 0.5, 3}} { // 0 is 1; the last is the first's zero point
		total, zero := scales[0]+scales[1], scales[2]
		if scales[1] == 0 {
			total++
		}
		for _, s := range []primitive.Spec{
			spec("matmul", "", "", nil, a.Tensor(), b.Tensor(), tensor{}, y),
			spec("binary", "", "add", nil, y, y, y),
		} {
			s.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: scales[0], ZeroPoint: int64(zero)}, {Kind: "sum", Scale: scales[1]}}
			args, want := []Arg{{Src, c}, {Src1, before}, {Dst, dst}}, wide(Of[float32](c))
			if s.Kind == "matmul" {
				args, want = []Arg{{Src, a}, {Weights, b}, {Dst, dst}}, product(Of[float32](a), Of[float32](b), m, k, n)
			}
			for i, was := range Of[float32](before) {
				if s.Kind == "binary" {
					want[i] += float64(was)
				}
				want[i] += total*float64(was) - scales[0]*zero
			}
			r.each(s, func(name string, p *primitive.Primitive) {
				copy(dst.Bytes(), before.Bytes())
				r.run(p, args...)
				near(t, s.Kind+", "+name, Of[float32](dst), want, 1e-5)
			})
		}
	}
}

// E3: post-operations that the library takes and does not do are refused: 2.6 and 3.2 left a sum
// behind a function of one number or a pooling out, all versions the zero point of one behind a
// reorder, and each execution with a prelu behind what is no product was refused.
func TestPostOpsThatAreNotDone(t *testing.T) {
	r := open1(t, limit.Limit{})
	x, image := Dense("f32", 4, 16), Dense("f32", 2, 16, 7, 7)
	sum, prelu := primitive.PostOp{Kind: "sum"}, primitive.PostOp{Kind: "prelu", Mask: 2}
	axis := []param{ints("axis", 1)}
	for _, c := range []struct {
		s primitive.Spec
		p primitive.PostOp
	}{
		{spec("eltwise", "inference", "abs", nil, x, x), sum},
		{spec("pooling", "inference", "max", []param{ints("kernel", 1, 1)}, image, image), sum},
		{spec("reorder", "", "", nil, x, x), primitive.PostOp{Kind: "sum", ZeroPoint: 3}},
		{spec("eltwise", "inference", "abs", nil, x, x), prelu},
		{spec("binary", "", "add", nil, x, x, x), prelu},
		{spec("reduction", "", "sum", nil, x, Dense("f32", 4, 1)), prelu},
		{spec("softmax", "inference", "accurate", axis, x, x), prelu},
		{spec("pooling", "inference", "max", []param{ints("kernel", 1, 1)}, image, image), prelu},
	} {
		c.s.Attr.PostOps = []primitive.PostOp{c.p}
		r.refused(c.s, fault.ErrUnsupported)
	}
	s := spec("matmul", "", "", nil, x, Dense("f32", 16, 8), tensor{}, Dense("f32", 4, 8))
	s.Attr.PostOps = []primitive.PostOp{{Kind: "prelu", Mask: 4}}
	r.refused(s, fault.ErrInvalid)
}

// E3: a binary operation whose second tensor is the library's to lay out has a layout for it, or
// no implementation: 2.6 left it open, and crashed.
func TestSecondOfABinaryIsLaidOut(t *testing.T) {
	r := open1(t, limit.Limit{})
	x := Dense("f32", 4, 16)
	a, b, dst := r.filled(1, x), r.filled(2, x), r.memory(x)
	s := spec("binary", "", "sub", nil, x, tensor{Type: "f32", Dims: x.Dims}, x)
	want := wide(Of[float32](a))
	for i, v := range Of[float32](b) {
		want[i] -= float64(v)
	}
	r.each(s, func(name string, p *primitive.Primitive) {
		chosen := p.Descriptor().Tensors()[1]
		second := r.memory(chosen)
		reorder, err := primitive.Reorder([]tensor{x, chosen})
		if err != nil {
			t.Fatal(err)
		}
		r.run(r.kernel(reorder), Arg{Src, b}, Arg{Dst, second})
		r.run(p, Arg{Src, a}, Arg{Src1, second}, Arg{Dst, dst})
		near(t, name, Of[float32](dst), want, 1e-6)
	})
}
