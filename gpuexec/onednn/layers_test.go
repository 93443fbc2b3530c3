package onednn

import (
	"math"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

func TestInnerProduct(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 6, 40, 24
	x, w, b, y := Dense("f32", m, k), Dense("f32", n, k), Dense("f32", n), Dense("f32", m, n)
	src, weights, bias, dst := r.filled(1, x), r.filled(2, w), r.filled(3, b), r.memory(y)
	forward := r.both(spec("inner_product", "forward_training", "", nil, x, w, b, y), Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst})
	diffDst, diffSrc, diffWeights, diffBias := r.filled(4, y), r.memory(x), r.memory(w), r.memory(b)
	r.both(r.hinted(spec("inner_product", "backward_data", "", nil, x, w, y), forward), Arg{DiffSrc, diffSrc}, Arg{Weights, weights}, Arg{DiffDst, diffDst})
	r.both(r.hinted(spec("inner_product", "backward_weights", "", nil, x, w, b, y), forward),
		Arg{Src, src}, Arg{DiffWeights, diffWeights}, Arg{DiffBias, diffBias}, Arg{DiffDst, diffDst})
	out, dx, dw, db := make([]float64, m*n), make([]float64, m*k), make([]float64, n*k), make([]float64, n)
	for i := range m {
		for j := range n {
			g := float64(Of[float32](diffDst)[i*n+j])
			db[j] += g
			out[i*n+j] = float64(Of[float32](bias)[j])
			for l := range k {
				a, f := float64(Of[float32](src)[i*k+l]), float64(Of[float32](weights)[j*k+l])
				out[i*n+j] += a * f
				dx[i*k+l] += g * f
				dw[j*k+l] += g * a
			}
		}
	}
	near(t, "dst", Of[float32](dst), out, 1e-5)
	near(t, "diff_src", Of[float32](diffSrc), dx, 1e-5)
	near(t, "diff_weights", Of[float32](diffWeights), dw, 1e-5)
	near(t, "diff_bias", Of[float32](diffBias), db, 1e-5)
}

// window calls visit for each pair of an output and an input of a window of 3 x 3 with
// stride 2 and one line of padding, over images of 9 x 9: outputs are 5 x 5.
func window(visit func(out, in, at int)) {
	for oy := range 5 {
		for ox := range 5 {
			for ky := range 3 {
				for kx := range 3 {
					if y, x := 2*oy+ky-1, 2*ox+kx-1; y >= 0 && y < 9 && x >= 0 && x < 9 {
						visit(oy*5+ox, y*9+x, ky*3+kx)
					}
				}
			}
		}
	}
}

var spatial = []param{ints("strides", 2, 2), ints("padding_l", 1, 1), ints("padding_r", 1, 1)}

func TestConvolution(t *testing.T) {
	r := open1(t, limit.Limit{})
	const images, in, out = 2, 3, 16
	x, w, b, y := Dense("f32", images, in, 9, 9), Dense("f32", out, in, 3, 3), Dense("f32", out), Dense("f32", images, out, 5, 5)
	src, weights, bias, dst := r.filled(1, x), r.filled(2, w), r.filled(3, b), r.memory(y)
	forward := r.both(spec("convolution", "forward_training", "auto", spatial, x, w, b, y), Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst})
	if alg := forward.Descriptor().Algorithm(); alg != "direct" { // D6
		t.Errorf("auto became %q", alg)
	}
	diffDst, diffSrc, diffWeights, diffBias := r.filled(4, y), r.memory(x), r.memory(w), r.memory(b)
	r.both(r.hinted(spec("convolution", "backward_data", "direct", spatial, x, w, y), forward), Arg{DiffSrc, diffSrc}, Arg{Weights, weights}, Arg{DiffDst, diffDst})
	r.both(r.hinted(spec("convolution", "backward_weights", "direct", spatial, x, w, b, y), forward),
		Arg{Src, src}, Arg{DiffWeights, diffWeights}, Arg{DiffBias, diffBias}, Arg{DiffDst, diffDst})
	yy, dx, dw, db := make([]float64, images*out*25), make([]float64, images*in*81), make([]float64, out*in*9), make([]float64, out)
	for n := range images {
		for o := range out {
			for p := range 25 {
				yy[(n*out+o)*25+p] = float64(Of[float32](bias)[o])
				db[o] += float64(Of[float32](diffDst)[(n*out+o)*25+p])
			}
			for i := range in {
				window(func(to, from, at int) {
					a, f, g := &Of[float32](src)[(n*in+i)*81+from], &Of[float32](weights)[(o*in+i)*9+at], float64(Of[float32](diffDst)[(n*out+o)*25+to])
					yy[(n*out+o)*25+to] += float64(*a) * float64(*f)
					dx[(n*in+i)*81+from] += g * float64(*f)
					dw[(o*in+i)*9+at] += g * float64(*a)
				})
			}
		}
	}
	near(t, "dst", Of[float32](dst), yy, 1e-5)
	near(t, "diff_src", Of[float32](diffSrc), dx, 1e-4)
	near(t, "diff_weights", Of[float32](diffWeights), dw, 1e-4)
	near(t, "diff_bias", Of[float32](diffBias), db, 1e-4)
}

// D5, D7: a pooling's backward form is made from the forward descriptor's hints, which are
// values: any worker may have them.
func TestPooling(t *testing.T) {
	r := open1(t, limit.Limit{})
	const planes = 16
	x, y := Dense("f32", 1, planes, 9, 9), Dense("f32", 1, planes, 5, 5)
	params := append([]param{ints("kernel", 3, 3)}, spatial...)
	for _, alg := range []string{"max", "avg_include_padding", "avg_exclude_padding"} {
		src, dst, diffSrc, diffDst := r.filled(1, x), r.memory(y), r.memory(x), r.filled(2, y)
		s := spec("pooling", "forward_training", alg, params, x, y)
		p := r.kernel(s)
		hints := p.Descriptor().Hints()
		args, back := []Arg{{Src, src}, {Dst, dst}}, []Arg{{DiffSrc, diffSrc}, {DiffDst, diffDst}}
		if workspace := hints[2]; !absent(&workspace) {
			m := r.memory(workspace)
			args, back = append(args, Arg{Workspace, m}), append(back, Arg{Workspace, m})
		} else if alg == "max" {
			t.Error("a trained maximum has no workspace")
		}
		r.both(s, args...)
		r.both(r.hinted(spec("pooling", "backward_data", alg, params, x, y), p), back...)
		yy, dx := make([]float64, planes*25), make([]float64, planes*81)
		for n := range planes {
			count, best := make([]float64, 25), make([]int, 25)
			for i := range 25 {
				yy[n*25+i] = math.Inf(-1)
			}
			window(func(to, from, _ int) {
				if v := float64(Of[float32](src)[n*81+from]); v > yy[n*25+to] {
					yy[n*25+to], best[to] = v, from
				}
				count[to]++
			})
			if alg != "max" {
				clear(yy[n*25:][:25])
				window(func(to, from, _ int) {
					if alg == "avg_include_padding" {
						count[to] = 9
					}
					yy[n*25+to] += float64(Of[float32](src)[n*81+from]) / count[to]
					dx[n*81+from] += float64(Of[float32](diffDst)[n*25+to]) / count[to]
				})
				continue
			}
			for to, from := range best {
				dx[n*81+from] += float64(Of[float32](diffDst)[n*25+to])
			}
		}
		near(t, alg, Of[float32](dst), yy, 1e-5)
		near(t, alg+" backward", Of[float32](diffSrc), dx, 1e-5)
	}
}

// What strides and blocks cannot say goes as bytes: weights of int8 that hold their sums.
func TestLayoutOfTheLibrary(t *testing.T) {
	r := open1(t, limit.Limit{})
	const m, k, n = 4, 64, 32
	s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{Dense("s8", m, k), {Type: "s8", Dims: []int64{k, n}}, {}, Dense("f32", m, n)}}}
	var names []string
	for d, err := range r.All(bg, &s) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, d.Name())
		d.Release()
	}
	t.Log(names)
	if len(names) == 0 {
		t.Fatal("no implementation")
	}
	p := r.kernel(s)
	chosen := p.Descriptor().Tensors()[1]
	t.Logf("%s: %v %v, %d bytes of the library's", p.Descriptor().Name(), chosen.Strides, chosen.Blocks, len(chosen.Layout))
	plain, weights, src, dst := r.memory(Dense("s8", k, n)), r.memory(chosen), r.memory(Dense("s8", m, k)), r.memory(Dense("f32", m, n))
	a, b := make([]float32, m*k), make([]float32, k*n)
	for i := range a {
		Of[int8](src)[i] = int8(i%11 - 5)
		a[i] = float32(i%11 - 5)
	}
	for i := range b {
		Of[int8](plain)[i] = int8(i%7 - 3)
		b[i] = float32(i%7 - 3)
	}
	reorder, err := primitive.Reorder([]tensor{Dense("s8", k, n), chosen})
	if err != nil {
		t.Fatal(err)
	}
	r.run(r.kernel(reorder), Arg{Src, plain}, Arg{Dst, weights})
	s.Op.Tensors = p.Descriptor().Tensors() // the library left to itself takes what 3.2 has no name for
	r.both(s, Arg{Src, src}, Arg{Weights, weights}, Arg{Dst, dst})
	near(t, "product", Of[float32](dst), product(a, b, m, k, n), 1e-6)
}

// Padding in front and behind may differ: each goes to its own side, forward and backward.
func TestUnequalPadding(t *testing.T) {
	r := open1(t, limit.Limit{})
	const n, k, in, out = 5, 3, 2, 16
	params := []param{ints("strides", 1, 1), ints("padding_l", 2, 0), ints("padding_r", 0, 2)}
	x, w, y := Dense("f32", 1, in, n, n), Dense("f32", out, in, k, k), Dense("f32", 1, out, n, n)
	src, weights, dst := r.filled(1, x), r.filled(2, w), r.memory(y)
	forward := r.both(spec("convolution", "forward_training", "direct", params, x, w, tensor{}, y), Arg{Src, src}, Arg{Weights, weights}, Arg{Dst, dst})
	diffDst, diffSrc, diffWeights := r.filled(3, y), r.memory(x), r.memory(w)
	r.both(r.hinted(spec("convolution", "backward_data", "direct", params, x, w, y), forward), Arg{DiffSrc, diffSrc}, Arg{Weights, weights}, Arg{DiffDst, diffDst})
	r.both(r.hinted(spec("convolution", "backward_weights", "direct", params, x, w, tensor{}, y), forward),
		Arg{Src, src}, Arg{DiffWeights, diffWeights}, Arg{DiffDst, diffDst})
	yy, dx, dw := make([]float64, out*n*n), make([]float64, in*n*n), make([]float64, out*in*k*k)
	for o := range out {
		for i := range in {
			for to := range n * n {
				for at := range k * k {
					row, column := to/n+at/k-2, to%n+at%k
					if row < 0 || column >= n {
						continue
					}
					from, to, at := i*n*n+row*n+column, o*n*n+to, (o*in+i)*k*k+at
					a, f, g := float64(Of[float32](src)[from]), float64(Of[float32](weights)[at]), float64(Of[float32](diffDst)[to])
					yy[to] += a * f
					dx[from] += g * f
					dw[at] += g * a
				}
			}
		}
	}
	near(t, "dst", Of[float32](dst), yy, 1e-5)
	near(t, "diff_src", Of[float32](diffSrc), dx, 1e-4)
	near(t, "diff_weights", Of[float32](diffWeights), dw, 1e-4)
}
