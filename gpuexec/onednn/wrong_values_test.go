package onednn

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// E3: a pooling with a value for each number that it gives is right in every implementation: those
// of 3.x took the values of other numbers, and read behind the last.
func TestPoolingWithAValueForEach(t *testing.T) {
	r := open1(t, limit.Limit{})
	const batch, in, n = 2, 8, 7
	for _, channels := range []int64{16, 17} {
		for _, sizes := range [][]int64{{1, 1, 1, 1}, {1, channels, 1, 1}, {batch, 1, 1, 1}, {1, 1, n, n}, {batch, channels, n, n}} {
			src, dst := r.filled(1, Dense("f32", batch, channels, in, in)), r.memory(Dense("f32", batch, channels, n, n))
			values := r.filled(2, Dense("f32", sizes...))
			s := spec("pooling", "inference", "max", []param{ints("kernel", 2, 2)}, src.Tensor(), dst.Tensor())
			s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: values.Tensor()}}
			x, want := Of[float32](src), make([]float64, len(Of[float32](dst)))
			for i := range want {
				at := [4]int64{int64(i) / n / n / channels, int64(i) / n / n % channels, int64(i) / n % n, int64(i) % n}
				of, from := int64(0), (int64(i)/n/n*in+at[2])*in+at[3]
				for d := range at {
					of = of*sizes[d] + at[d]%sizes[d]
				}
				want[i] = float64(max(x[from], x[from+1], x[from+in], x[from+in+1])) + float64(Of[float32](values)[of])
			}
			if r.each(s, func(name string, p *primitive.Primitive) {
				r.run(p, Arg{Src, src}, Arg{PostOpSource(0), values}, Arg{Dst, dst})
				near(t, name, Of[float32](dst), want, 1e-5)
			}) == 0 {
				t.Errorf("values of %v: no implementation", sizes)
			}
		}
	}
}

// E3: a layer normalisation of rows with gaps between them, or in another order, is right in every
// implementation: those of all versions took the rows to lie side by side, and wrote the gaps.
func TestNormalisationOfRowsApart(t *testing.T) {
	r := open1(t, limit.Limit{})
	const a, b, n = 5, 33, 16
	for _, strides := range [][]int64{{b * n, n, 1}, {b * (n + 5), n + 5, 1}, {b*n + 7, n, 1}, {n, a * n, 1}, {1, a, a * b}} {
		x := tensor{Type: "f32", Dims: []int64{a, b, n}, Strides: strides}
		src, dst, values := r.filled(1, x), r.memory(x), r.filled(2, Dense("f32", 1, b, 1))
		for i := range 2 {
			s := spec("layer_normalization", "inference", "", []param{float("epsilon", 1e-3)}, x, x, tensor{})
			args := []Arg{{Src, src}, {Dst, dst}}
			if i > 0 && r.image.newer { // others have no post-operations of it
				s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "mul", Source: values.Tensor()}}
				args = append(args, Arg{PostOpSource(0), values})
			}
			want := make([]float64, len(Of[float32](dst)))
			for row := range int64(a * b) {
				at := row/b*strides[0] + row%b*strides[1]
				sum, squares := 0.0, 0.0
				for c := range int64(n) {
					v := float64(Of[float32](src)[at+c*strides[2]])
					sum, squares = sum+v, squares+v*v
				}
				factor := 1 / math.Sqrt(squares/n-sum*sum/n/n+1e-3)
				for c := range int64(n) {
					want[at+c*strides[2]] = (float64(Of[float32](src)[at+c*strides[2]]) - sum/n) * factor
					if len(s.Attr.PostOps) > 0 {
						want[at+c*strides[2]] *= float64(Of[float32](values)[row%b])
					}
				}
			}
			if r.each(s, func(name string, p *primitive.Primitive) {
				clear(dst.Bytes()) // also what is between the rows
				r.run(p, args...)
				near(t, name, Of[float32](dst), want, 1e-4)
			}) == 0 {
				t.Errorf("strides %v: no implementation", strides)
			}
		}
	}
}

// E3: a reorder with zero points, one or for each index of a dimension, is right or has no
// implementation: that of 3.13 took one for all, and those of 2.6 and 3.2 left it out beside gaps.
func TestZeroPointsOfAReorder(t *testing.T) {
	r := open1(t, limit.Limit{})
	const a, b = 5, 7
	src := r.memory(Dense("s32", a, b))
	for i := range Of[int32](src) {
		Of[int32](src)[i] = int32(i)
	}
	for mask, sizes := range [][2]int32{{1, 1}, {a, 1}, {1, b}, {a, b}} {
		if mask > 0 && !r.image.newer {
			break // it has one zero point for all numbers
		}
		zeros := r.memory(Dense("s32", int64(sizes[0]*sizes[1])))
		for i := range Of[int32](zeros) {
			Of[int32](zeros)[i] = int32(1 + i)
		}
		for _, strides := range [][]int64{{b, 1}, {1, a}, {2 * b, 2}, {b + 3, 1}} {
			for slot, sign := range map[Slot]int32{Src: -1, Dst: 1} {
				dst := r.memory(tensor{Type: "s32", Dims: []int64{a, b}, Strides: strides})
				s := spec("reorder", "", "", nil, src.Tensor(), dst.Tensor())
				s.Attr.ZeroPoints = []primitive.Quant{{Arg: slot.String(), Mask: uint64(mask)}}
				r.each(s, func(name string, p *primitive.Primitive) {
					r.run(p, Arg{Src, src}, Arg{Dst, dst}, Arg{ZeroPointsOf(slot), zeros})
					for i := range int32(a * b) {
						want := i + sign*(1+i/b%sizes[0]*sizes[1]+i%b%sizes[1])
						if got := Of[int32](dst)[int64(i/b)*strides[0]+int64(i%b)*strides[1]]; got != want {
							t.Fatalf("%s, %v by the mask %d, strides %v: number %d is %d, want %d", name, slot, mask, strides, i, got, want)
						}
					}
				})
			}
		}
	}
}

// E3: a reorder that adds to what was there is right in every implementation: that divides all by the
// scale of the result, and then comes its zero point. A loop of 3.x for f32 did not divide what was
// there, and another of 3.13 took the first zero point of the result for all.
func TestReorderThatAdds(t *testing.T) {
	r := open1(t, limit.Limit{})
	if !r.is3() {
		t.Skip("2.6 has no scales of a result")
	}
	const a, b, before, beta = 4, 8, 20, 0.5
	rows, columns, gaps := []int64{b, 1}, []int64{1, a}, []int64{b + 3, 1}
	for _, types := range [][2]string{{"f32", "f32"}, {"s32", "f32"}, {"f32", "s32"}, {"s32", "s32"}} {
		for _, strides := range [][2][]int64{{rows, rows}, {columns, columns}, {rows, columns}, {gaps, gaps}} {
			src := r.memory(tensor{Type: types[0], Dims: []int64{a, b}, Strides: strides[0]})
			dst := r.memory(tensor{Type: types[1], Dims: []int64{a, b}, Strides: strides[1]})
			half, two, zeros := r.memory(Dense("f32", 1)), r.memory(Dense("f32", 1)), r.memory(Dense("s32", b))
			Of[float32](half)[0], Of[float32](two)[0] = 0.5, 2
			for i := range Of[int32](zeros) {
				Of[int32](zeros)[i] = int32(10 * i)
			}
			for _, zeroed := range []bool{false, true} {
				if zeroed && (types[1] == "f32" || !r.image.newer) {
					break // it has one zero point, and none for f32
				}
				s := spec("reorder", "", "", nil, src.Tensor(), dst.Tensor())
				s.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: beta}}
				s.Attr.Scales = []primitive.Quant{{Arg: "src"}, {Arg: "dst"}}
				args := []Arg{{Src, src}, {Dst, dst}, {ScalesOf(Src), half}, {ScalesOf(Dst), two}}
				if zeroed {
					s.Attr.ZeroPoints = []primitive.Quant{{Arg: "dst", Mask: 2}}
					args = append(args, Arg{ZeroPointsOf(Dst), zeros})
				}
				r.each(s, func(name string, p *primitive.Primitive) {
					for i := range dst.Bytes()[:len(dst.Bytes())/4] {
						if types[1] == "f32" {
							Of[float32](dst)[i] = before
						} else {
							Of[int32](dst)[i] = before
						}
					}
					r.run(p, args...) // of 0
					for i := range int64(a * b) {
						want, at := before*beta/2, i/b*strides[1][0]+i%b*strides[1][1]
						if zeroed {
							want += float64(10 * (i % b))
						}
						got := 0.0
						if types[1] == "f32" {
							got = float64(Of[float32](dst)[at])
						} else {
							got = float64(Of[int32](dst)[at])
						}
						if got != want {
							t.Fatalf("%s, %v, strides %v: number %d is %v, want %v", name, types, strides, i, got, want)
						}
					}
				})
			}
		}
	}
}

// D1: the machine code of a reorder with one zero point is listed, and right, where the result has no
// gaps: the source may have some, and either may be in blocks.
func TestZeroPointsBesideBlocks(t *testing.T) {
	r := open1(t, limit.Limit{})
	const batch, channels, size, block = 2, 24, 5, 16
	dims := []int64{batch, channels, size}
	at := func(x *tensor, i int64) int64 {
		c, inner := i/size%channels, int64(0)
		if len(x.Blocks) > 0 {
			c, inner = c/block, c%block
		}
		return i/size/channels*x.Strides[0] + c*x.Strides[1] + i%size*x.Strides[2] + inner
	}
	apart := func(dataType string) tensor { return tensor{Type: dataType, Dims: dims, Strides: []int64{700, 1, 27}} }
	blocked := func(dataType string) tensor {
		return tensor{Type: dataType, Dims: dims, Strides: []int64{2 * block * size, block * size, block}, Blocks: []primitive.Block{{Dim: 1, Size: block}}}
	}
	for _, types := range [][2]string{{"u8", "s8"}, {"s8", "s32"}, {"s32", "s8"}, {"s8", "s8"}} {
		from, to := types[0], types[1]
		for i, c := range [][2]tensor{{Dense(from, dims...), blocked(to)}, {blocked(from), Dense(to, dims...)}, {apart(from), blocked(to)}, {apart(from), Dense(to, dims...)}, {blocked(from), blocked(to)}} {
			src, dst, zero := r.memory(c[0]), r.memory(c[1]), r.memory(Dense("s32", 1))
			Of[int32](zero)[0] = 3
			put := func(m *Memory, x *tensor, i int64, v int32) {
				if m.tensor.Type == "s32" {
					Of[int32](m)[at(x, i)] = v
				} else {
					m.Bytes()[at(x, i)] = byte(v)
				}
			}
			for k := range int64(batch * channels * size) {
				put(src, &c[0], k, int32(k%50))
			}
			s := spec("reorder", "", "", nil, c[0], c[1])
			s.Attr.ZeroPoints = []primitive.Quant{{Arg: "src"}}
			code := false
			r.each(s, func(name string, p *primitive.Primitive) {
				clear(dst.Bytes())
				r.run(p, Arg{Src, src}, Arg{Dst, dst}, Arg{ZeroPointsOf(Src), zero})
				for k := range int64(batch * channels * size) {
					got, want := int32(0), int32(k%50-3)
					if to == "s32" {
						got = Of[int32](dst)[at(&c[1], k)]
					} else {
						got = int32(int8(dst.Bytes()[at(&c[1], k)]))
					}
					if got != want {
						t.Fatalf("%s, %s to %s, layouts %d: number %d is %d, want %d", name, from, to, i, k, got, want)
					}
				}
				code = code || strings.HasPrefix(name, "jit")
			})
			if !code {
				t.Errorf("%s to %s, layouts %d: no machine code is listed", from, to, i)
			}
		}
	}
}

// E3: zero points of several products by a mask are read by the dimension that it says, or refused:
// 2.6 took that of one product, and read behind the last.
func TestZeroPointsOfManyProducts(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := spec("matmul", "", "", nil, Dense("u8", 3, 5, 8), Dense("s8", 3, 8, 9), tensor{}, Dense("s32", 3, 5, 9))
	for _, arg := range []string{"src", "dst"} {
		s.Attr.ZeroPoints = []primitive.Quant{{Arg: arg, Mask: 2}}
		if n, err := r.described(&s); !r.is3() && !errors.Is(err, fault.ErrUnsupported) || r.is3() && err != nil && !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("zero points of %s: %d implementations, %v", arg, n, err)
		}
	}
}

// E3: a function of numbers of one dimension has gaps passed over, and its post-operations done, in
// every implementation: the library's own loop of 2.6 did neither.
func TestFunctionsInOneDimension(t *testing.T) {
	r := open1(t, limit.Limit{})
	const n = 17
	for _, gap := range []int64{1, 2} {
		x := tensor{Type: "f32", Dims: []int64{n}, Strides: []int64{gap}}
		src, values, dst := r.filled(1, x), r.filled(2, Dense("f32", n)), r.memory(x)
		s := spec("eltwise", "inference", "square", nil, x, x)
		args := []Arg{{Src, src}, {Dst, dst}}
		if gap == 1 {
			s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: x}}
			args = append(args, Arg{PostOpSource(0), values})
		}
		want := make([]float64, len(Of[float32](dst)))
		for i := range int64(n) {
			v := float64(Of[float32](src)[i*gap])
			if want[i*gap] = v * v; gap == 1 {
				want[i] += float64(Of[float32](values)[i])
			}
		}
		r.each(s, func(name string, p *primitive.Primitive) {
			clear(dst.Bytes())
			r.run(p, args...)
			near(t, name, Of[float32](dst), want, 1e-6)
		})
	}
}

// E3: values by channel behind a binary operation are the right ones also where each channel has one
// number: those of all versions took the first for all.
func TestValuesOfChannelsOfOne(t *testing.T) {
	r := open1(t, limit.Limit{})
	const batch, channels = 3, 16
	for _, spatial := range [][]int64{{}, {1}, {1, 1}} {
		x, c := Dense("f32", append([]int64{batch, channels}, spatial...)...), Dense("f32", append([]int64{1, channels}, spatial...)...)
		a, b, values, dst := r.filled(1, x), r.filled(2, x), r.filled(3, c), r.memory(x)
		want := make([]float64, batch*channels)
		for i := range want {
			want[i] = float64(Of[float32](a)[i])*float64(Of[float32](b)[i]) + float64(Of[float32](values)[i%channels])
		}
		s := spec("binary", "", "mul", nil, x, x, x)
		s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: c}}
		if r.each(s, func(name string, p *primitive.Primitive) {
			r.run(p, Arg{Src, a}, Arg{Src1, b}, Arg{Dst, dst}, Arg{PostOpSource(0), values})
			near(t, name, Of[float32](dst), want, 1e-6)
		}) == 0 {
			t.Errorf("%v: no implementation", x.Dims)
		}
	}
}

// E3: values behind an operation, one for each index of a dimension, are the right ones in every
// implementation, whatever the order of dimensions is: those of all versions took others.
func TestValuesOfDimensionsInAnyOrder(t *testing.T) {
	r := open1(t, limit.Limit{})
	const a, b, c, d = 2, 16, 3, 5
	dims := []int64{a, b, c, d}
	kinds := []primitive.Spec{spec("binary", "", "max", nil, tensor{}, tensor{}, tensor{})}
	if r.is3() { // 2.6 has no post-operations of it
		for _, axis := range []int64{1, 3} {
			kinds = append(kinds, spec("softmax", "inference", "accurate", []param{ints("axis", axis)}, tensor{}, tensor{}))
		}
	}
	for _, x := range []tensor{
		Dense("f32", dims...),
		{Type: "f32", Dims: dims, Strides: []int64{b * c * d, 1, b * d, b}},
		{Type: "f32", Dims: dims, Strides: []int64{1, a, a * b, a * b * c}},
		{Type: "f32", Dims: dims, Strides: []int64{c * d, a * c * d, d, 1}},
		{Type: "f32", Dims: dims, Strides: []int64{b * c * d, 8 * c * d, 8 * d, 8}, Blocks: []primitive.Block{{Dim: 1, Size: 8}}},
	} {
		src, dst := r.memory(x), r.memory(x) // all are 0
		at := func(i int64) (index [4]int64, place int64) {
			index = [4]int64{i / d / c / b, i / d / c % b, i / d % c, i % d}
			for k, n := range index {
				if k == 1 && len(x.Blocks) > 0 {
					place += n % 8
					n /= 8
				}
				place += n * x.Strides[k]
			}
			return index, place
		}
		for _, sizes := range [][]int64{{1, 1, 1, 1}, {1, b, 1, 1}, {1, 1, 1, d}, {1, 1, c, d}, {a, 1, 1, 1}} {
			values := r.filled(3, Dense("f32", sizes...))
			for _, s := range kinds {
				args, plain := []Arg{{Src, src}, {Src1, src}, {Dst, dst}, {PostOpSource(0), values}}, 0.0
				for i := range s.Op.Tensors {
					s.Op.Tensors[i] = x
				}
				if s.Kind == "softmax" {
					args, plain = slices.Delete(args, 1, 2), 1/float64(dims[s.Op.Params[0].Ints[0]])
				}
				s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: values.Tensor()}}
				want := make([]float64, a*b*c*d)
				for i := range int64(len(want)) {
					index, place := at(i)
					of := int64(0)
					for k, n := range index {
						of = of*sizes[k] + n%sizes[k]
					}
					want[place] = plain + float64(Of[float32](values)[of])
				}
				r.each(s, func(name string, p *primitive.Primitive) {
					r.run(p, args...)
					near(t, s.Kind+", "+name, Of[float32](dst), want, 1e-5)
				})
				s.Op.Tensors[len(s.Op.Tensors)-1].Strides, s.Op.Tensors[len(s.Op.Tensors)-1].Blocks = nil, nil // the library's to lay out
				r.each(s, func(name string, p *primitive.Primitive) {
					if chosen := p.Descriptor().Tensors(); same(&chosen[len(chosen)-1], &x) {
						r.run(p, args...)
						near(t, s.Kind+" into any layout, "+name, Of[float32](dst), want, 1e-5)
					}
				})
			}
		}
	}
}

// E3: a binary operation of bytes in several layouts is right in every implementation: those of all
// versions took one layout for all.
func TestBinaryOfBytesInSeveralLayouts(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, n = 16, 33
	at := func(x tensor, i int64) int64 { return i/n*x.Strides[0] + i%n*x.Strides[1] }
	rows, columns := Dense("s8", m, n), tensor{Type: "s8", Dims: []int64{m, n}, Strides: []int64{1, m}}
	one := tensor{Type: "s8", Dims: []int64{1, 1}, Strides: []int64{0, 0}}
	for i, all := range [][3]tensor{{rows, rows, rows}, {rows, rows, columns}, {rows, columns, rows}, {columns, rows, rows}, {rows, one, columns}, {columns, one, columns}} {
		a, b, dst := r.memory(all[0]), r.memory(all[1]), r.memory(all[2])
		for i := range int64(m * n) {
			a.Bytes()[at(all[0], i)], b.Bytes()[at(all[1], i)] = byte(i%19), byte(i%7)
		}
		r.each(spec("binary", "", "add", nil, all[:]...), func(name string, p *primitive.Primitive) {
			clear(dst.Bytes())
			r.run(p, Arg{Src, a}, Arg{Src1, b}, Arg{Dst, dst})
			for k := range int64(m * n) {
				want := a.Bytes()[at(all[0], k)] + b.Bytes()[at(all[1], k)]
				if got := dst.Bytes()[at(all[2], k)]; got != want {
					t.Fatalf("%s, layouts %d: number %d is %d, want %d", name, i, k, got, want)
				}
			}
		})
	}
}

// E3: values of 16 bits behind an operation are the right ones in every implementation: those of 2.6,
// and of 3.2 but for processors with arithmetic of f16, took them for other numbers.
func TestValuesOfHalves(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 4, 8, 33
	one, two := map[string]uint16{"f16": 0x3c00, "bf16": 0x3f80}, map[string]uint16{"f16": 0x4000, "bf16": 0x4000}
	filled := func(x tensor, odd bool) *Memory { // with ones, and if odd with twos between
		y := r.memory(x)
		for i := range y.Tensor().Dims[0] * y.Tensor().Dims[1] {
			twice := odd && i%2 == 1
			switch {
			case x.Type == "f32" && twice:
				Of[float32](y)[i] = 2
			case x.Type == "f32":
				Of[float32](y)[i] = 1
			case twice:
				Of[uint16](y)[i] = two[x.Type]
			default:
				Of[uint16](y)[i] = one[x.Type]
			}
		}
		return y
	}
	sums := map[string][2]uint16{"f16": {0x4880, 0x4900}, "bf16": {0x4110, 0x4120}}  // 9 and 10
	small := map[string][2]uint16{"f16": {0x4200, 0x4400}, "bf16": {0x4040, 0x4080}} // 3 and 4
	for _, name := range []string{"f16", "bf16"} {
		for _, of := range []string{"f32", name} {
			a, b, c, dst, values := filled(Dense(of, m, k), false), filled(Dense(of, k, n), false), filled(Dense(of, m, n), false), r.memory(Dense(of, m, n)), filled(Dense(name, 1, n), true)
			for _, x := range []struct {
				s     primitive.Spec
				args  []Arg
				plain float32
				want  [2]uint16
			}{
				{spec("matmul", "", "", nil, a.Tensor(), b.Tensor(), tensor{}, dst.Tensor()), []Arg{{Src, a}, {Weights, b}}, k, sums[name]},
				{spec("binary", "", "add", nil, c.Tensor(), c.Tensor(), dst.Tensor()), []Arg{{Src, c}, {Src1, c}}, 2, small[name]},
			} {
				x.s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: values.Tensor()}}
				r.each(x.s, func(impl string, p *primitive.Primitive) {
					clear(dst.Bytes())
					r.run(p, append(x.args, Arg{PostOpSource(0), values}, Arg{Dst, dst})...)
					for i := range m * n {
						odd := i % n % 2
						if of == "f32" && Of[float32](dst)[i] != x.plain+1+float32(odd) || of != "f32" && Of[uint16](dst)[i] != x.want[odd] {
							t.Fatalf("%s, %s of %s with values of %s: number %d is wrong", impl, x.s.Kind, of, name, i)
						}
					}
				})
			}
		}
	}
}

// E3: an inner product whose two sides have their dimensions in several orders is right in every
// implementation: one of 3.13 took the order of one for both.
func TestInnerProductOfTwoOrders(t *testing.T) {
	r := open1(t, limit.Limit{})
	const c, n = 4, 5
	for _, rows := range []int64{1, 2, 17} {
		for _, columns := range []int64{1, 3} {
			src := r.filled(1, tensor{Type: "f32", Dims: []int64{rows, c, n}, Strides: []int64{c * n, 1, c}})
			weights, dst := r.filled(2, Dense("f32", columns, c, n)), r.memory(Dense("f32", rows, columns))
			want := make([]float64, rows*columns)
			for i := range want {
				x, y := Of[float32](src)[i/int(columns)*c*n:], Of[float32](weights)[i%int(columns)*c*n:]
				for at := range c * n {
					want[i] += float64(x[at%n*c+at/n]) * float64(y[at])
				}
			}
			if r.each(spec("inner_product", "inference", "", nil, src.Tensor(), weights.Tensor(), tensor{}, dst.Tensor()), func(name string, p *primitive.Primitive) {
				r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{Dst, dst})
				near(t, name, Of[float32](dst), want, 1e-5)
			}) == 0 {
				t.Error("no implementation")
			}
		}
	}
}
