package onednn

import (
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// E7: one matmul with a size that is known at execution only is one entry for every number
// of rows; what does not fit is refused before the library sees it.
func TestLateRows(t *testing.T) {
	r := open1(t, limit.Limit{})
	const k, n = 48, 64
	s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{
		{Type: "f32", Dims: []int64{atExecution, k}, Strides: []int64{k, 1}}, Dense("f32", k, n), Dense("f32", 1, n),
		{Type: "f32", Dims: []int64{atExecution, n}, Strides: []int64{n, 1}}}}}
	p := r.kernel(s)
	weights, bias := r.filled(2, Dense("f32", k, n)), r.filled(3, Dense("f32", 1, n))
	for m := int64(1); m <= 128; m++ {
		src, dst := r.filled(uint64(m), Dense("f32", m, k)), r.memory(Dense("f32", m, n))
		r.run(r.kernel(s), Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst})
		want := product(Of[float32](src), Of[float32](weights), int(m), k, n)
		for i := range want {
			want[i] += float64(Of[float32](bias)[i%n])
		}
		near(t, "rows", Of[float32](dst), want, 1e-5)
	}
	if made := r.cache.Stats().Entries; made != 1 {
		t.Errorf("%d entries for 128 numbers of rows, want 1", made)
	}
	for what, args := range map[string][]Arg{
		"other rows":    {{Src, r.memory(Dense("f32", 5, k))}, {Dst, r.memory(Dense("f32", 7, n))}},
		"another depth": {{Src, r.memory(Dense("f32", 5, k-1))}, {Dst, r.memory(Dense("f32", 5, n))}},
		"another type":  {{Src, r.memory(Dense("s32", 5, k))}, {Dst, r.memory(Dense("f32", 5, n))}},
		"gaps":          {{Src, r.memory(tensor{Type: "f32", Dims: []int64{5, k}, Strides: []int64{k + 3, 1}})}, {Dst, r.memory(Dense("f32", 5, n))}},
		"no rows":       {{Src, r.memory(Dense("f32", 0, k))}, {Dst, r.memory(Dense("f32", 0, n))}},
	} {
		if err := r.Execute(bg, p, append(args, Arg{Weights, weights}, Arg{Bias, bias})...); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if _, err := r.NewMemory(s.Op.Tensors[0]); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("memory without a size: %v", err)
	}
	s.Op.Tensors[0].Dims[0] = -7
	if _, _, err := r.Primitive(bg, &s, ""); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a size of -7: %v", err)
	}
}

// E3: values for each row, whose number is known at execution only, are refused: nothing would
// compare theirs with it, and the library would read beyond them.
func TestValuesForLateRows(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := matmul(1, 16, 32, Dense("f32", 16, 32))
	s.Op.Tensors = slices.Clone(s.Op.Tensors)
	for _, i := range []int{0, 3} {
		s.Op.Tensors[i].Dims = []int64{atExecution, s.Op.Tensors[i].Dims[1]}
	}
	binary := func(rows int64) primitive.Attributes {
		return primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "binary", Algorithm: "add", Source: Dense("f32", rows, 32)}}}
	}
	all := []primitive.Attributes{binary(2)}
	if r.is3() {
		all = append(all, primitive.Attributes{PostOps: []primitive.PostOp{{Kind: "prelu", Mask: 1}}},
			primitive.Attributes{Scales: []primitive.Quant{{Arg: "src", Mask: 1}}}, primitive.Attributes{Scales: []primitive.Quant{{Arg: "dst", Mask: 1}}})
	}
	for _, s.Attr = range all {
		if n, err := r.described(&s); n > 0 || err != nil && !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%+v: %d implementations, %v", s.Attr, n, err)
		}
	}
	s.Attr = binary(1) // one row for every row
	if _, err := r.described(&s); err != nil {
		t.Error(err)
	}
}

// E3: a depth that is known at execution only is compared then, though the destination has
// its sizes.
func TestLateDepth(t *testing.T) {
	r := open1(t, limit.Limit{})
	late := matmul(4, 8, 6, Dense("f32", 8, 6))
	late.Op.Tensors[0] = tensor{Type: "f32", Dims: []int64{4, atExecution}, Strides: []int64{atExecution, 1}}
	late.Op.Tensors[1] = tensor{Type: "f32", Dims: []int64{atExecution, 6}, Strides: []int64{6, 1}}
	p := r.kernel(late)
	if !p.Native().(*kernel).plan.late {
		t.Fatal("no size comes at execution")
	}
	bias, dst := r.memory(Dense("f32", 1, 6)), r.memory(Dense("f32", 4, 6))
	src, weights := r.filled(1, Dense("f32", 4, 8)), r.filled(2, Dense("f32", 8, 6))
	if err := r.Execute(bg, p, Arg{Src, src}, Arg{Weights, r.memory(Dense("f32", 7, 6))}, Arg{Bias, bias}, Arg{Dst, dst}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	r.run(p, Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst})
	near(t, "product", Of[float32](dst), product(Of[float32](src), Of[float32](weights), 4, 8, 6), 1e-5)
}

// E3: blocks whose number is known at execution only are as many in all tensors of a product,
// or one that is repeated.
func TestLateBlocks(t *testing.T) {
	r := open1(t, limit.Limit{})
	p := r.kernel(r.lateSpec(ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5)))
	blocks := func(slot Slot, dims ...int64) Arg { return Arg{slot, r.filled(uint64(dims[0]), Dense("f32", dims...))} }
	for _, n := range [][3]int64{{2, 2, 3}, {2, 2, 1}, {2, 3, 3}, {1, 1, 2}} {
		err := r.Execute(bg, p, blocks(Src, n[0], 3, 4), blocks(Weights, n[1], 4, 5), blocks(Dst, n[2], 3, 5))
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%d times %d blocks are %d: %v, want ErrInvalid", n[0], n[1], n[2], err)
		}
	}
	src, weights, dst := blocks(Src, 2, 3, 4), blocks(Weights, 2, 4, 5), blocks(Dst, 2, 3, 5)
	r.run(p, src, weights, dst)
	for b := range 2 {
		want := product(Of[float32](src.Memory)[12*b:12*b+12], Of[float32](weights.Memory)[20*b:20*b+20], 3, 4, 5)
		near(t, "block", Of[float32](dst.Memory)[15*b:15*b+15], want, 1e-5)
	}
}

// E3: a bias whose stride is known at execution only has no gaps then, as it would be read.
func TestLateBias(t *testing.T) {
	r := open1(t, limit.Limit{})
	s := matmul(4, 8, 6, Dense("f32", 8, 6))
	s.Op.Tensors[2] = tensor{Type: "f32", Dims: []int64{1, 6}, Strides: []int64{6, atExecution}}
	p := r.kernel(s)
	src, weights, dst := r.filled(1, Dense("f32", 4, 8)), r.filled(2, Dense("f32", 8, 6)), r.memory(Dense("f32", 4, 6))
	for _, gap := range []int64{1, 2} {
		bias := r.filled(3, tensor{Type: "f32", Dims: []int64{1, 6}, Strides: []int64{6, gap}})
		err := r.Execute(bg, p, Arg{Src, src}, Arg{Weights, weights}, Arg{Bias, bias}, Arg{Dst, dst})
		if gap > 1 {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("a gap: %v, want ErrInvalid", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want := product(Of[float32](src), Of[float32](weights), 4, 8, 6)
		for i := range want {
			want[i] += float64(Of[float32](bias)[i%6])
		}
		near(t, "product", Of[float32](dst), want, 1e-5)
	}
}
