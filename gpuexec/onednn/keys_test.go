package onednn

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// outcome is what a cold cache says to a request: its error, or its implementations with
// their tensors.
func outcome(t *testing.T, s primitive.Spec) (out []string) {
	r := open1(t, limit.Limit{})
	for d, err := range r.All(bg, &s) {
		if err != nil {
			return []string{err.Error()}
		}
		list := slices.Clone(d.Tensors())
		for i := range list {
			list[i].Strides = strides(&list[i]) // those of size 1 are as asked, where they were given
		}
		out = append(out, fmt.Sprint(d.Name(), d.Algorithm(), d.Scratchpad(), list))
		d.Release()
	}
	return out
}

// withOnes are requests of every kind whose tensors have dimensions of size 1, in rows, in blocks
// and as the library chooses.
func withOnes() []primitive.Spec {
	blocked := func(block int64, dims ...int64) tensor { // of the second dimension
		x := tensor{Type: "f32", Dims: dims, Strides: make([]int64, len(dims)), Blocks: []primitive.Block{{Dim: 1, Size: block}}}
		stride := block
		for i := len(dims) - 1; i >= 0; i-- {
			x.Strides[i] = stride
			if i == 1 {
				stride *= (dims[i] + block - 1) / block
			} else {
				stride *= dims[i]
			}
		}
		return x
	}
	any4 := func(x tensor) tensor { return tensor{Type: x.Type, Dims: x.Dims} }
	row, column, flat := Dense("f32", 1, 64), Dense("f32", 64, 1), Dense("f32", 4, 1, 6)
	image, thin, tiny := Dense("f32", 1, 16, 1, 9), blocked(8, 2, 16, 1, 9), blocked(16, 1, 1, 9, 9)
	window := []param{ints("kernel", 1, 3), ints("strides", 1, 1), ints("padding_l", 0, 1), ints("padding_r", 0, 1)}
	beside := []param{ints("strides", 1, 1), ints("padding_l", 0, 1), ints("padding_r", 0, 1)}
	return []primitive.Spec{
		spec("matmul", "", "", nil, row, column, tensor{}, Dense("f32", 1, 1)),
		spec("matmul", "", "", nil, Dense("f32", 4, 64), any4(Dense("f32", 64, 48)), Dense("f32", 1, 48), Dense("f32", 4, 48)),
		spec("inner_product", "forward_training", "", nil, image, any4(Dense("f32", 8, 16, 1, 9)), Dense("f32", 8), Dense("f32", 1, 8)),
		spec("inner_product", "inference", "", nil, thin, any4(Dense("f32", 8, 16, 1, 9)), tensor{}, Dense("f32", 2, 8)),
		spec("convolution", "inference", "direct", beside, image, any4(Dense("f32", 16, 16, 1, 3)), tensor{}, any4(image)),
		spec("convolution", "inference", "direct", beside, thin, any4(Dense("f32", 16, 16, 1, 3)), tensor{}, thin),
		spec("convolution", "inference", "auto", beside, any4(image), Dense("f32", 16, 16, 1, 3), Dense("f32", 16), image),
		spec("eltwise", "inference", "relu", nil, flat, flat), spec("eltwise", "inference", "relu", nil, thin, thin),
		spec("eltwise", "forward", "gelu_erf", nil, tiny, tiny),
		spec("softmax", "inference", "accurate", []param{ints("axis", 1)}, thin, thin),
		spec("softmax", "inference", "accurate", []param{ints("axis", 2)}, image, any4(image)),
		spec("layer_normalization", "inference", "", []param{float("epsilon", 1e-5)}, flat, flat, tensor{}),
		spec("pooling", "inference", "max", window, thin, thin), spec("pooling", "inference", "max", window, image, any4(image)),
		spec("pooling", "forward", "avg_include_padding", window, thin, any4(thin)),
		spec("binary", "", "add", nil, flat, Dense("f32", 1, 1, 6), flat), spec("binary", "", "mul", nil, thin, thin, thin),
		spec("binary", "", "add", nil, tiny, tiny, tiny),
		spec("reduction", "", "sum", nil, thin, blocked(8, 2, 16, 1, 1)), spec("reduction", "", "sum", nil, flat, Dense("f32", 4, 1, 1)),
		spec("sum", "", "", []param{float("scales", 1, 2)}, flat, flat, flat), spec("sum", "", "", []param{float("scales", 1, 2)}, thin, thin, any4(thin)),
		spec("concat", "", "", []param{ints("axis", 1)}, thin, thin, blocked(8, 2, 32, 1, 9)),
		spec("concat", "", "", []param{ints("axis", 1)}, flat, flat, Dense("f32", 4, 2, 6)),
		spec("reorder", "", "", nil, thin, Dense("f32", 2, 16, 1, 9)), spec("reorder", "", "", nil, tiny, Dense("f32", 1, 1, 9, 9)),
		spec("reorder", "", "", nil, Dense("f32", 1, 1, 9, 9), tiny),
	}
}

// K2, K3, D1: requests of one key are one to the library, whoever asks first: what a key leaves
// out changes neither the list nor a layout that the library chooses, in any kind.
func TestOneKeyOnePrimitive(t *testing.T) {
	need(t, 1)
	// in has its dimensions of size 1 at another stride, as in a view of a larger tensor.
	in := func(x tensor, stride int64) tensor {
		x = cloned(x)
		for i, n := range x.Dims {
			if n == 1 && len(x.Strides) > 0 {
				x.Strides[i] = stride
			}
		}
		return x
	}
	for _, s := range withOnes() {
		key, err := s.Key()
		if err != nil {
			t.Fatal(err)
		}
		want := outcome(t, s)
		for _, stride := range []int64{0, 1, 5, 8, 16, 1000, 1 << 50, -3, atExecution} {
			other := s
			other.Op.Tensors = nil
			for _, x := range s.Op.Tensors {
				other.Op.Tensors = append(other.Op.Tensors, in(x, stride))
			}
			if k, err := other.Key(); err != nil || k != key {
				t.Fatalf("%s: another key at stride %d: %v", s.Kind, stride, err)
			}
			if got := outcome(t, other); !slices.Equal(got, want) {
				t.Errorf("%s %v, stride %d of the dimensions of size 1:\n%q, want\n%q", s.Kind, s.Op.Tensors, stride, got, want)
			}
		}
	}
	scales := func(args ...string) (list []primitive.Quant) {
		for _, a := range args {
			list = append(list, primitive.Quant{Arg: a})
		}
		return list
	}
	s := spec("matmul", "", "", nil, Dense("s8", 4, 64), Dense("s8", 64, 48), tensor{}, Dense("f32", 4, 48))
	s.Attr.Scales, s.Attr.ZeroPoints, s.Skip = scales("src", "weights"), scales("dst", "src"), []int{3, 1}
	turned := s
	turned.Attr.Scales, turned.Attr.ZeroPoints, turned.Skip = scales("weights", "src"), scales("src", "dst"), []int{1, 3, 1}
	if a, b := outcome(t, s), outcome(t, turned); !slices.Equal(a, b) {
		t.Errorf("%q, want %q", b, a)
	}
}

// K3, D1, D5: the rest that a key leaves out changes nothing either: hints of a forward request,
// lists that are empty and not nil, a scale of 1 that a post-operation has anyway, and the strides
// of dimensions of size 1 in the source of one. What it does not leave out may.
func TestOneKeyWithPostOperations(t *testing.T) {
	need(t, 1)
	row := tensor{Type: "f32", Dims: []int64{1, 1, 1, 1}, Strides: []int64{1, 1, 1, 1}}
	astray := tensor{Type: "f32", Dims: []int64{1, 1, 1, 1}, Strides: []int64{7, 1 << 50, -3, 0}, Blocks: []primitive.Block{}}
	lists := func(x tensor) tensor {
		if x = cloned(x); len(x.Strides) == 0 && len(x.Dims) > 0 {
			x.Strides = []int64{}
		}
		if len(x.Blocks) == 0 {
			x.Blocks = []primitive.Block{}
		}
		return x
	}
	built := 0
	for _, s := range withOnes() {
		other := s
		other.Hints, other.Skip, other.Inputs = []tensor{row}, []int{}, []primitive.Input{}
		other.Op.Tensors = nil
		for _, x := range s.Op.Tensors {
			other.Op.Tensors = append(other.Op.Tensors, lists(x))
		}
		other.Attr = primitive.Attributes{Scales: []primitive.Quant{}, ZeroPoints: []primitive.Quant{}, Rounding: []primitive.Rounding{}, PostOps: []primitive.PostOp{}}
		alike(t, s, other)
		if len(s.Op.Tensors[len(s.Op.Tensors)-1].Dims) != 4 || s.Kind == "sum" || s.Kind == "concat" {
			continue
		}
		s.Attr.PostOps = []primitive.PostOp{{Kind: "sum"}, {Kind: "eltwise", Algorithm: "relu"}, {Kind: "binary", Algorithm: "mul", Source: row}}
		other.Attr.PostOps = []primitive.PostOp{{Kind: "sum", Scale: 1, Params: []param{}}, {Kind: "eltwise", Algorithm: "relu", Scale: 1},
			{Kind: "binary", Algorithm: "mul", Source: astray}}
		if alike(t, s, other) {
			built++
		}
	}
	if built < 6 {
		t.Errorf("%d requests with post-operations have an implementation, want 6 or more", built)
	}
}

// alike holds two requests to one key and to one list, and tells whether there is something in it.
func alike(t *testing.T, s, other primitive.Spec) bool {
	t.Helper()
	r := open1(t, limit.Limit{})
	keys := [2]string{}
	for i, x := range []*primitive.Spec{&s, &other} {
		if d, _, err := r.Descriptor(bg, x); err == nil {
			keys[i] = d.Key()
			d.Release()
		}
	}
	if keys[0] != keys[1] {
		t.Errorf("%s %v: two keys", s.Kind, s.Op.Tensors)
	}
	if a, b := outcome(t, s), outcome(t, other); !slices.Equal(a, b) {
		t.Errorf("%s %v, written in another way:\n%q, want\n%q", s.Kind, s.Op.Tensors, b, a)
	}
	return keys[0] != ""
}
