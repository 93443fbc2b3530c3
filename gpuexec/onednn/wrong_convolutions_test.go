package onednn

import (
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// into copies a tensor into another layout and type, by the library's own reorder.
func (r *rig) into(to tensor, from *Memory) *Memory {
	r.Helper()
	m := r.memory(to)
	s, err := primitive.Reorder([]tensor{from.Tensor(), to})
	if err != nil {
		r.Fatal(err)
	}
	r.run(r.kernel(s), Arg{Src, from}, Arg{Dst, m})
	return m
}

// counted is f32 in rows, with small even integers: some processors halve weights of bytes.
func (r *rig) counted(first, count int, dims ...int64) *Memory {
	r.Helper()
	m := r.memory(Dense("f32", dims...))
	for i := range Of[float32](m) {
		Of[float32](m)[i] = float32(first + i*7%count*2)
	}
	return m
}

// pixels is a convolution with a kernel of one number, in every implementation that a request has.
func (r *rig) pixels(s primitive.Spec, src, weights *Memory, values ...*Memory) int {
	r.Helper()
	n, in, size := src.Tensor().Dims[0], src.Tensor().Dims[1], src.Tensor().Dims[2]
	out := weights.Tensor().Dims[0]
	want := make([]float64, n*out*size)
	for i := range int64(len(want)) {
		image, o, at := i/size/out, i/size%out, i%size
		for c := range in {
			want[i] += float64(Of[float32](src)[(image*in+c)*size+at]) * float64(Of[float32](weights)[o*in+c])
		}
		for _, v := range values {
			switch d := v.Tensor().Dims; {
			case slices.Equal(d, []int64{n, out, size}):
				want[i] += float64(Of[float32](v)[i])
			default:
				want[i] += float64(Of[float32](v)[o])
			}
		}
	}
	return r.each(s, func(name string, p *primitive.Primitive) {
		t := p.Descriptor().Tensors()
		dst := r.memory(t[3])
		args := []Arg{{Src, r.into(t[0], src)}, {Weights, r.into(t[1], weights)}, {Dst, dst}}
		for i, v := range values {
			args = append(args, Arg{PostOpSource(i), r.into(s.Attr.PostOps[i].Source, v)})
		}
		r.run(p, args...)
		near(r, name, Of[float32](r.into(Dense("f32", n, out, size), dst)), want, 1e-6)
	})
}

// E3: values behind a convolution, for each number or for each channel, are the right ones in every
// implementation, whatever the layouts are: 2.6 and 3.2 looked for those of numbers as if they were in
// rows, 2.6 read behind those of channels from the second image on, and 3.13 took the first channel's for
// all in images of one number.
func TestValuesBehindAConvolution(t *testing.T) {
	r := open1(t, limit.Limit{})
	const n, in = 3, 8
	for _, types := range [][2]string{{"f32", "f32"}, {"bf16", "bf16"}, {"u8", "s8"}, {"s8", "s8"}} {
		for _, size := range []int64{1, 5} {
			for _, out := range []int64{16, 17, 40} {
				x, y := []int64{n, in, size}, []int64{n, out, size}
				src, weights := r.counted(0, 5, x...), r.counted(-4, 5, out, in, 1)
				each, channels := r.counted(-8, 9, y...), r.counted(-10, 11, 1, out, 1)
				for _, orders := range [][2][]int{{{0, 1, 2}, {0, 1, 2}}, {{0, 2, 1}, {0, 2, 1}}, {nil, {0, 2, 1}}, {nil, {0, 1, 2}}} {
					s := spec("convolution", "inference", "direct", nil, tensor{Type: types[0], Dims: x}, tensor{Type: types[1], Dims: []int64{out, in, 1}}, tensor{}, tensor{Type: "f32", Dims: y})
					if orders[0] != nil {
						s.Op.Tensors[0], s.Op.Tensors[3] = ordered(types[0], x, orders[0]...), ordered("f32", y, orders[0]...)
					}
					numbers := primitive.PostOp{Kind: "binary", Algorithm: "add", Source: ordered("f32", y, orders[1]...)}
					byChannel := primitive.PostOp{Kind: "binary", Algorithm: "add", Source: channels.Tensor()}
					s.Attr.PostOps = []primitive.PostOp{byChannel}
					if r.pixels(s, src, weights, channels) == 0 && types[0] != "bf16" { // which old processors do not have
						t.Errorf("%s into %v, values of channels: no implementation", types[0], y)
					}
					s.Attr.PostOps = []primitive.PostOp{numbers, byChannel}
					r.pixels(s, src, weights, each, channels)
				}
			}
		}
	}
}

// D1: a convolution of bytes into images of one number, with a value for each channel behind it, is in
// every implementation of 3.13 that there is without the values, and right, where the library lays the
// result out, as in networks.
func TestValuesBehindAConvolutionIntoOneNumber(t *testing.T) {
	r := open1(t, limit.Limit{})
	const n, in = 3, 8
	for _, types := range [][2]string{{"u8", "u8"}, {"s8", "s8"}, {"u8", "f32"}} {
		for _, out := range []int64{16, 24} {
			src, weights, channels := r.counted(0, 3, n, in, 1), r.counted(0, 2, out, in, 1), r.counted(0, 11, 1, out, 1)
			s := spec("convolution", "inference", "direct", nil, tensor{Type: types[0], Dims: []int64{n, in, 1}}, tensor{Type: "s8", Dims: []int64{out, in, 1}}, tensor{}, tensor{Type: types[1], Dims: []int64{n, out, 1}})
			plain := r.names(s)
			s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: channels.Tensor()}}
			r.pixels(s, src, weights, channels)
			if names := r.names(s); r.image.newer && !slices.Equal(names, plain) {
				t.Errorf("%v, %d channels: %v, want %v", types, out, names, plain)
			}
		}
	}
}

// E3: a convolution of bytes whose images have one number is right in every implementation: one of 3.13
// took channels for others.
func TestConvolutionOfOneNumber(t *testing.T) {
	r := open1(t, limit.Limit{})
	const n, in, out = 2, 8, 16
	src, weights := r.counted(0, 5, n, in, 1), r.counted(-4, 5, out, in, 1)
	for _, bytes := range []string{"u8", "s8"} {
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, nil} {
			s := spec("convolution", "inference", "direct", nil, tensor{Type: bytes, Dims: []int64{n, in, 1}}, tensor{Type: "s8", Dims: []int64{out, in, 1}}, tensor{}, tensor{Type: "f32", Dims: []int64{n, out, 1}})
			if order != nil {
				s.Op.Tensors[0], s.Op.Tensors[3] = ordered(bytes, s.Op.Tensors[0].Dims, order...), ordered("f32", s.Op.Tensors[3].Dims, order...)
			}
			if r.pixels(s, src, weights) == 0 {
				t.Errorf("%s, order %v: no implementation", bytes, order)
			}
		}
	}
}

// E3: values behind a product of bytes are the right ones in every implementation: code of 3.13 for AVX2
// had none for the last columns, on a processor with AVX-512.
func TestValuesBehindAProductOfBytes(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k = 15, 8
	for _, n := range []int64{16, 17, 19} {
		a, b, values := r.counted(0, 5, m, k), r.counted(-4, 5, k, n), r.counted(-10, 11, 1, n)
		want := product(Of[float32](a), Of[float32](b), m, k, int(n))
		for i := range want {
			want[i] += float64(Of[float32](values)[int64(i)%n])
		}
		s := spec("matmul", "", "", nil, Dense("u8", m, k), tensor{Type: "s8", Dims: []int64{k, n}}, tensor{}, Dense("f32", m, n))
		s.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: values.Tensor()}}
		dst := r.memory(s.Op.Tensors[3])
		if r.each(s, func(name string, p *primitive.Primitive) {
			chosen := p.Descriptor().Tensors()
			r.run(p, Arg{Src, r.into(chosen[0], a)}, Arg{Weights, r.into(chosen[1], b)}, Arg{Dst, dst}, Arg{PostOpSource(0), values})
			near(t, name, Of[float32](dst), want, 1e-6)
		}) == 0 {
			t.Errorf("%d columns: no implementation", n)
		}
	}
}
