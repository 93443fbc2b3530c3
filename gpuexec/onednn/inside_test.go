package onednn

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// E3: what the library takes and then writes, or reads, outside of its memory is refused.
func TestOutsideOfMemory(t *testing.T) {
	r := open1(t, limit.Limit{})
	turned := tensor{Type: "f32", Dims: []int64{4, 8, 16}, Strides: []int64{1, 4, 32}}
	wide := func(gap int64, dims ...int64) tensor {
		x := Dense("f32", dims...)
		for i := range x.Strides {
			x.Strides[i] *= gap
		}
		return x
	}
	of := func(kind string, params []param, a primitive.Attributes, tensors ...tensor) primitive.Spec {
		s := spec(kind, "", map[string]string{"eltwise": "square"}[kind], params, tensors...)
		s.Attr = a
		return s
	}
	over := func(dims []int64, strides ...int64) tensor { return tensor{Type: "f32", Dims: dims, Strides: strides} }
	none, added := primitive.Attributes{}, primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "sum", Scale: 1}}}
	six, five := []int64{2, 1, 2, 1, 1, 3}, []int64{2, 1, 2, 1, 3}
	axis := []param{ints("axis", 0)}
	for _, s := range []primitive.Spec{
		of("eltwise", nil, added, Dense("f32", six...), Dense("f32", six...)),
		of("eltwise", nil, none, wide(2, six...), wide(2, six...)),
		of("layer_normalization", nil, none, Dense("f32", 4, 8, 16), turned, tensor{}),
		of("layer_normalization", nil, none, Dense("f32", 4, 8, 16), wide(2, 4, 8, 16), tensor{}),
		of("layer_normalization", nil, none, over([]int64{1, 9, 2}, 2, 0, 1), over([]int64{1, 9, 2}, 2, 0, 1), tensor{}),
		of("reorder", nil, none, Dense("f32", 4, 8), over([]int64{4, 8}, 0, 1)),
		of("inner_product", nil, none, over([]int64{3, 1, 3, 1, 1}, 3, 9, 0, 9, 11), over([]int64{3, 1, 3, 1, 1}, 2, 18, 6, 2, 18), tensor{}, Dense("f32", 3, 3)),
		of("inner_product", nil, none, Dense("f32", 3, 4), Dense("f32", 2, 4), wide(2, 2), Dense("f32", 3, 2)),
		of("matmul", nil, none, Dense("f32", 4, 8), Dense("f32", 8, 3), wide(2, 1, 3), Dense("f32", 4, 3)),
		of("matmul", nil, none, Dense("f32", 4, 8), Dense("f32", 8, 3), tensor{}, over([]int64{4, 3}, 0, 1)),
	} {
		r.refused(s, fault.ErrUnsupported)
	}
	for _, s := range []primitive.Spec{ // these are well
		of("eltwise", nil, none, Dense("f32", six...), Dense("f32", six...)), of("eltwise", nil, none, wide(2, five...), wide(2, five...)),
		of("layer_normalization", nil, none, wide(2, 4, 1, 16), wide(2, 4, 1, 16), tensor{}),
		of("reorder", nil, none, over([]int64{4, 1}, 1, 0), over([]int64{4, 1}, 1, 0)), of("concat", axis, none, Dense("f32", 3, 3), Dense("f32", 3, 3), Dense("f32", 6, 3)),
	} {
		if n, err := r.described(&s); n == 0 || err != nil {
			t.Errorf("%s of %v: %d implementations, %v", s.Kind, s.Op.Tensors, n, err)
		}
	}
}

// E3: a concatenation that has a source of nothing is right, or has no implementation: the
// library's own loop divides by that source's sizes.
func TestConcatenationWithNothing(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, gap := range []int64{1, 2} {
		s := spec("concat", "", "", []param{ints("axis", 0)}, Dense("f32", 2), Dense("f32", 0), tensor{Type: "f32", Dims: []int64{2}, Strides: []int64{gap}})
		d, _, err := r.Descriptor(bg, &s)
		if gap > 1 && errors.Is(err, primitive.ErrEnd) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		d.Release()
		src, dst := r.filled(1, Dense("f32", 2)), r.memory(s.Op.Tensors[2])
		r.run(r.kernel(s), Arg{Source(0), src}, Arg{Source(1), r.memory(Dense("f32", 0))}, Arg{Dst, dst})
		if got := Of[float32](dst); got[0] != Of[float32](src)[0] || got[gap] != Of[float32](src)[1] {
			t.Errorf("%v of %v", got, Of[float32](src))
		}
	}
}

// E3: a reorder takes scales of any type for those of float32, whose bytes are twice as many.
func TestScalesOfAReorder(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, name := range []string{"f16", "bf16"} {
		s := spec("reorder", "", "", nil, Dense("f32", 2, 4), Dense("f32", 2, 4))
		s.Attr.Scales = []primitive.Quant{{Arg: "src", Type: name}}
		r.refused(s, fault.ErrUnsupported)
	}
}

// E3: a product takes scales of weights by other dimensions than the columns for those by
// columns, and reads behind the last of them.
func TestScalesOfAProduct(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := spec("matmul", "", "", nil, Dense("f32", 1, 1, 2, 17), Dense("f32", 1, 1, 17, 7), tensor{}, Dense("f32", 1, 1, 2, 7))
	for _, q := range []primitive.Quant{{Arg: "weights", Mask: 2}, {Arg: "weights", Mask: 4}, {Arg: "weights", Mask: 12}, {Arg: "dst", Mask: 8}} {
		s.Attr.Scales = []primitive.Quant{q}
		r.refused(s, fault.ErrUnsupported)
	}
	if !r.is3() {
		return
	}
	for _, q := range []primitive.Quant{{Arg: "weights"}, {Arg: "weights", Mask: 8}, {Arg: "dst"}} {
		s.Attr.Scales = []primitive.Quant{q}
		if n, err := r.described(&s); n == 0 || err != nil {
			t.Errorf("%+v: %d implementations, %v", q, n, err)
		}
	}
}

// E3: an execution with stochastic rounding reads a seed that no argument gives.
func TestStochasticRounding(t *testing.T) {
	r := open1(t, limit.Limit{})
	x := Dense("f32", 2, 8, 7, 7)
	s := spec("convolution", "inference", "direct", nil, x, Dense("f32", 8, 8, 1, 1), tensor{}, x)
	s.Attr.Rounding = []primitive.Rounding{{Arg: "dst", Mode: "stochastic"}}
	r.refused(s, fault.ErrUnsupported)
}

// E3: blocks in 12 dimensions end the process in 2.6, when it looks for an implementation.
func TestBlocksInManyDimensions(t *testing.T) {
	r := open1(t, limit.Limit{})
	x := Dense("f32", 2, 2, 3, 2, 1, 1, 3, 2, 1, 3, 2, 2)
	blocked := Dense("f32", x.Dims...)
	for i := range blocked.Strides {
		blocked.Strides[i] *= 4
	}
	blocked.Blocks = []primitive.Block{{Dim: 8, Size: 4}}
	r.refused(spec("reorder", "", "", nil, x, blocked), fault.ErrUnsupported)
}

// E3, D1: each implementation of a softmax of rows that are not in order is right, and the library's
// own loop is among them but where it leaves the memory, in 2.6 and 3.2: over rows side by side with
// nothing behind them, or of one number.
func TestSoftmaxOfTurnedRows(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, c := range []struct {
		dims, strides []int64
		axis          int
		wrong         bool // it is, in 2.6 and 3.2
	}{
		{[]int64{16, 7, 2}, []int64{2, 32, 1}, 2, true},
		{[]int64{16, 7, 1}, []int64{1, 16, 112}, 2, true},
		{[]int64{7, 16, 2, 1}, []int64{2, 14, 1, 1}, 2, true},
		{[]int64{16, 7, 2}, []int64{2, 32, 1}, 1, false},
		{[]int64{16, 7, 2}, []int64{1, 16, 112}, 2, false},
		{[]int64{2, 16, 3, 5}, []int64{240, 1, 80, 16}, 1, false},
		{[]int64{2, 16, 3, 5}, []int64{240, 1, 80, 16}, 3, false},
		{[]int64{16, 7}, []int64{1, 16}, 0, false},
	} {
		x := tensor{Type: "f32", Dims: c.dims, Strides: c.strides}
		src, dst := r.filled(1, x), r.memory(x)
		step, size := c.strides[c.axis], c.dims[c.axis]
		want := make([]float64, len(Of[float32](src)))
		for i := range want { // places of a row, whose first is i
			if size > 1 && int64(i)/step%size != 0 {
				continue
			}
			sum := 0.0
			for k := range size {
				sum += math.Exp(float64(Of[float32](src)[int64(i)+k*step]))
			}
			for k := range size {
				want[int64(i)+k*step] = math.Exp(float64(Of[float32](src)[int64(i)+k*step])) / sum
			}
		}
		loops := false
		r.each(spec("softmax", "inference", "accurate", []param{ints("axis", int64(c.axis))}, x, x), func(name string, p *primitive.Primitive) {
			clear(dst.Bytes())
			r.run(p, Arg{Src, src}, Arg{Dst, dst})
			near(t, name, Of[float32](dst), want, 1e-5)
			loops = loops || strings.HasPrefix(name, "ref")
		})
		if loops != (r.image.newer || !c.wrong) {
			t.Errorf("axis %d of %v, strides %v: the library's own loop is listed: %v", c.axis, c.dims, c.strides, loops)
		}
	}
}

// E3: values for groups that do not divide a dimension are refused: a reorder would read more.
func TestGroupsWithARest(t *testing.T) {
	r := open1(t, limit.Limit{})
	q := []primitive.Quant{{Arg: "src", Mask: 3, Groups: []int64{1, 3}}}
	for _, a := range []primitive.Attributes{{ZeroPoints: q}, {Scales: q}} {
		s := spec("reorder", "", "", nil, Dense("s8", 2, 4), Dense("f32", 2, 4))
		s.Attr = a
		if n, err := r.described(&s); n != 0 || err != nil && !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%d implementations, %v", n, err)
		}
	}
}
