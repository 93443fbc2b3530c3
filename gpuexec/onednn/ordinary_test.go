package onednn

import (
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// ordered is a tensor without gaps whose dimensions lie in this order, the outermost first.
func ordered(dataType string, dims []int64, order ...int) tensor {
	x, step := tensor{Type: dataType, Dims: dims, Strides: make([]int64, len(dims))}, int64(1)
	for _, d := range slices.Backward(order) {
		x.Strides[d] = step
		step *= dims[d]
	}
	return x
}

// behindIt gives a request with each list of post-operations that networks have behind it.
func behindIt(s primitive.Spec, values ...tensor) (all []primitive.Spec) {
	relu, sum := primitive.PostOp{Kind: "eltwise", Algorithm: "relu"}, primitive.PostOp{Kind: "sum"}
	lists := [][]primitive.PostOp{nil, {relu}, {{Kind: "eltwise", Algorithm: "gelu_tanh"}}}
	if s.Kind == "matmul" || s.Kind == "inner_product" || s.Kind == "convolution" || s.Kind == "binary" {
		half := primitive.PostOp{Kind: "sum", Scale: 0.5}
		lists = append(lists, []primitive.PostOp{sum}, []primitive.PostOp{sum, relu}, []primitive.PostOp{relu, half}, []primitive.PostOp{half, relu, half})
	}
	for _, v := range values {
		add, mul := primitive.PostOp{Kind: "binary", Algorithm: "add", Source: v}, primitive.PostOp{Kind: "binary", Algorithm: "mul", Source: v}
		lists = append(lists, []primitive.PostOp{add}, []primitive.PostOp{mul, relu}, []primitive.PostOp{relu, mul, add})
	}
	for _, list := range lists {
		s.Attr.PostOps = list
		all = append(all, s)
	}
	return all
}

// quantised is a request of bytes with the scales that networks have.
func quantised(s primitive.Spec, columns uint64) (all []primitive.Spec) {
	for _, mask := range []uint64{0, columns} {
		s.Attr.Scales = []primitive.Quant{{Arg: "src"}, {Arg: "weights", Mask: mask}}
		all = append(all, s)
		s.Attr.Scales = append(slices.Clone(s.Attr.Scales), primitive.Quant{Arg: "dst"})
		all = append(all, s)
		s.Attr.ZeroPoints = []primitive.Quant{{Arg: "src"}, {Arg: "dst"}}
		all = append(all, s)
		s.Attr.ZeroPoints = nil
	}
	return all
}

// products are those of a transformer: of layers, and of attention.
func products(a, b, c string) (all []primitive.Spec) {
	const batch, heads, rows, size, wide = 2, 4, 16, 32, 96
	x, y := Dense(a, rows, size), Dense(c, rows, wide)
	for _, w := range []tensor{Dense(b, size, wide), ordered(b, []int64{size, wide}, 1, 0), {Type: b, Dims: []int64{size, wide}}} {
		for _, bias := range []tensor{{}, Dense("f32", 1, wide)} {
			s := spec("matmul", "", "", nil, x, w, bias, y)
			all = append(all, behindIt(s, Dense(c, rows, wide), Dense("f32", 1, wide), Dense("f32", 1, 1))...)
			if b == "s8" {
				all = append(all, quantised(s, 2)...)
			}
		}
	}
	w := tensor{Type: b, Dims: []int64{wide, size}}
	all = append(all, behindIt(spec("inner_product", "inference", "", nil, x, w, Dense("f32", wide), y), y, Dense("f32", 1, wide))...)
	if b == "s8" {
		all = append(all, quantised(spec("inner_product", "inference", "", nil, x, w, Dense("f32", wide), y), 1)...)
	}
	q, each := []int64{batch, heads, rows, size}, []int64{batch, heads, rows, rows}
	for _, order := range [][]int{{0, 1, 2, 3}, {0, 2, 1, 3}} { // heads outside, and as one product of layers has them
		keys := tensor{Type: b, Dims: []int64{batch, heads, size, rows}, Strides: slices.Clone(ordered(b, q, order...).Strides)}
		keys.Strides[2], keys.Strides[3] = keys.Strides[3], keys.Strides[2]
		scores := spec("matmul", "", "", nil, ordered(a, q, order...), keys, tensor{}, Dense(c, each...))
		all = append(all, behindIt(scores, Dense("f32", 1, 1, 1, 1), Dense("f32", batch, 1, 1, rows), Dense("f32", batch, 1, rows, rows), Dense("f32", 1, heads, rows, rows))...)
		all = append(all, spec("matmul", "", "", nil, Dense(a, each...), ordered(b, q, order...), tensor{}, ordered(c, q, order...)))
		scaled := all[len(all)-1]
		scaled.Attr.PostOps = []primitive.PostOp{{Kind: "binary", Algorithm: "mul", Source: Dense("f32", 1, 1, 1, 1)}}
		all = append(all, scaled)
	}
	return all
}

// images are convolutions and poolings in each order that frameworks have.
func images(a, b, c string) (all []primitive.Spec) {
	const n, channels, out, size = 2, 16, 32, 8
	x, y := []int64{n, channels, size, size}, []int64{n, out, size, size}
	spread := []param{ints("padding_l", 1, 1), ints("padding_r", 1, 1)}
	for _, order := range [][]int{{0, 1, 2, 3}, {0, 2, 3, 1}, nil} {
		laid := func(dataType string, dims []int64) tensor {
			if order == nil {
				return tensor{Type: dataType, Dims: dims}
			}
			return ordered(dataType, dims, order...)
		}
		residual := Dense(c, y...)
		if order != nil {
			residual = laid(c, y)
		}
		for _, w := range [][]int64{{out, channels, 3, 3}, {out, channels, 1, 1}, {channels, 2, 1, 3, 3}} {
			params := spread
			if w[2] == 1 && len(w) == 4 {
				params = nil
			}
			s := spec("convolution", "inference", "direct", params, laid(a, x), tensor{Type: b, Dims: w}, Dense("f32", out), laid(c, y))
			all = append(all, behindIt(s, residual, Dense("f32", 1, out, 1, 1), Dense("f32", 1, 1, 1, 1))...)
			if b == "s8" {
				all = append(all, quantised(s, 1<<(len(w)-3)-1)...)
			}
		}
		if order == nil {
			continue
		}
		for _, alg := range []string{"max", "avg_include_padding", "avg_exclude_padding"} {
			s := spec("pooling", "inference", alg, append([]param{ints("kernel", 3, 3)}, spread...), laid(a, x), laid(a, x))
			all = append(all, behindIt(s, Dense("f32", 1, channels, 1, 1), Dense("f32", 1, 1, 1, 1))...)
		}
	}
	return all
}

// byNumber are operations that have a number for each number, or row, in a type.
func byNumber(a string) (all []primitive.Spec) {
	const n, heads, rows, size = 2, 16, 8, 32
	for _, x := range []tensor{Dense(a, 64), Dense(a, rows, size), Dense(a, n, rows, size), Dense(a, n, heads, rows, size),
		ordered(a, []int64{n, heads, rows, size}, 0, 2, 3, 1), Dense(a, n, heads, 2, rows, size)} {
		functions := []string{"relu", "gelu_tanh", "logistic"}
		if typeBytes[a] == 1 {
			functions = functions[:1]
		}
		for _, alg := range functions {
			all = append(all, spec("eltwise", "inference", alg, nil, x, x))
		}
		r := len(x.Dims)
		one := slices.Repeat([]int64{1}, r)
		channel, row := slices.Clone(one), slices.Clone(one)
		row[r-1] = x.Dims[r-1]
		if r > 1 {
			channel[1] = x.Dims[1]
		}
		for _, second := range []tensor{x, Dense(a, one...), Dense(a, row...), Dense(a, channel...)} {
			all = append(all, behindIt(spec("binary", "", "add", nil, x, second, x), x, Dense("f32", one...), Dense("f32", channel...))...)
		}
		all = append(all, spec("reorder", "", "", nil, x, x), spec("sum", "", "", []param{float("scales", 1, 1)}, x, x, x))
		for axis := range x.Dims {
			all = append(all, behindIt(spec("softmax", "inference", "accurate", []param{ints("axis", int64(axis))}, x, x), x, Dense("f32", one...))...)
		}
		if r > 1 {
			both := tensor{Type: a, Dims: slices.Clone(x.Dims)}
			both.Dims[1] *= 2
			all = append(all, spec("concat", "", "", []param{ints("axis", 1)}, x, x, Dense(a, both.Dims...)), spec("concat", "", "", []param{ints("axis", 1)}, x, x, both))
		}
	}
	for _, x := range []tensor{Dense(a, rows, size), Dense(a, n, rows, size)} {
		mean := slices.Clone(x.Dims)
		mean[len(mean)-1] = 1
		all = append(all, behindIt(spec("reduction", "", "mean", nil, x, Dense(a, mean...)))...)
		norm := []param{float("epsilon", 1e-5), {Name: "scale"}, {Name: "shift"}}
		all = append(all, behindIt(spec("layer_normalization", "inference", "", norm, x, x, tensor{}), x, Dense("f32", slices.Repeat([]int64{1}, len(x.Dims))...))...)
	}
	return all
}

// copies are reorders of weights and images from one type and layout to others.
func copies(a, b string) (all []primitive.Spec) {
	matrix, image := []int64{64, 32}, []int64{2, 32, 4, 4}
	blocked := tensor{Type: b, Dims: image, Strides: []int64{512, 256, 64, 16}, Blocks: []primitive.Block{{Dim: 1, Size: 16}}}
	for _, s := range []primitive.Spec{
		spec("reorder", "", "", nil, Dense(a, matrix...), Dense(b, matrix...)),
		spec("reorder", "", "", nil, Dense(a, matrix...), ordered(b, matrix, 1, 0)),
		spec("reorder", "", "", nil, Dense(a, image...), Dense(b, image...)),
		spec("reorder", "", "", nil, Dense(a, image...), ordered(b, image, 0, 2, 3, 1)),
		spec("reorder", "", "", nil, Dense(a, image...), blocked),
	} {
		all = append(all, s)
		s.Attr.PostOps = []primitive.PostOp{{Kind: "sum"}}
		all = append(all, s)
		s.Attr.PostOps = nil
		for _, mask := range []uint64{0, 1, 2, 3} {
			s.Attr.Scales = []primitive.Quant{{Arg: "src", Mask: mask}}
			all = append(all, s)
			s.Attr.Scales = []primitive.Quant{{Arg: "src"}, {Arg: "dst", Mask: mask}}
			all = append(all, s)
		}
		s.Attr.Scales = []primitive.Quant{{Arg: "src"}}
		for i, arg := range []string{"src", "dst"} {
			if typeBytes[s.Op.Tensors[i].Type] == 1 {
				s.Attr.ZeroPoints = append(s.Attr.ZeroPoints, primitive.Quant{Arg: arg})
			}
		}
		all = append(all, s)
		s.Attr.Scales = nil
		all = append(all, s)
	}
	return all
}

func ordinary(t *testing.T) (all []primitive.Spec) {
	for _, types := range [][3]string{{"f32", "f32", "f32"}, {"bf16", "bf16", "bf16"}, {"bf16", "bf16", "f32"}, {"f16", "f16", "f16"}, {"u8", "s8", "f32"}, {"s8", "s8", "s8"}} {
		all = append(all, products(types[0], types[1], types[2])...)
		all = append(all, images(types[0], types[1], types[2])...)
	}
	for _, a := range []string{"f32", "bf16", "f16", "s8", "u8"} {
		all = append(all, byNumber(a)...)
		for _, b := range []string{"f32", "bf16", "f16", "s8"} {
			all = append(all, copies(a, b)...)
		}
		if a == "u8" { // there are no weights of it
			continue
		}
		list, _ := problems(t, a)
		for i, p := range list {
			if i%7 == 0 { // enough of each network
				all = append(all, behindIt(p.spec)[:2]...)
			}
		}
	}
	return all
}

// known is whether an implementation of such a request is wrong: in 3.13 functions of f16 for old
// processors, in 2.6 one with a function behind a pooling, and one with what is added to a convolution of
// f32 with its channels innermost.
func (r *rig) known(s *primitive.Spec, name string) bool {
	switch s.Kind {
	case "pooling":
		return !r.is3() && name == "jit:sse41" && len(s.Attr.PostOps) > 0
	case "convolution":
		values := slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool { return slices.Equal(p.Source.Dims, s.Op.Tensors[3].Dims) })
		return !r.is3() && name == "x64:gemm:jit" && s.Op.Tensors[0].Type == "f32" && values
	}
	return s.Kind == "eltwise" && r.image.newer && s.Op.Tensors[0].Type == "f16" && (name == "jit:avx" || name == "jit:sse41")
}

// D1: of requests that networks have, no implementation is left out, so that the first is the
// library's own first, and none is refused that the library takes.
func TestOrdinaryRequests(t *testing.T) {
	r := open1(t, limit.Limit{})
	kinds := make(map[string]int)
	for n, s := range ordinary(t) {
		if testing.Short() && n%4 != 0 || !r.is3() && len(s.Attr.Scales) > 0 { // 2.6 has scales of another meaning
			continue
		}
		for each, err := range r.walk(bg, &s) {
			if err != nil {
				t.Errorf("%+v: %v", s, err)
				break
			}
			i := &implementation{lib: r.Library, spec: &s, pd: each.pd}
			if i.choose(); i.err != nil {
				continue // a layout that has no name
			}
			kinds[s.Kind]++
			var at *byte
			r.c.PlanText(each.pd, queryName, 0, &at)
			if name := text(at); i.spoils() && !r.known(&s, name) {
				t.Errorf("%s is left out for %+v", name, s)
			}
		}
	}
	if t.Log(kinds); len(kinds) != 12 {
		t.Error("want implementations of 12 kinds")
	}
}
