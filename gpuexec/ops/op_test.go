package ops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

func some() []ops.Op {
	norm := ops.New(ops.LayerNorm, 3, 4)
	norm.Epsilon = 1e-12
	matmul := ops.New(ops.MatMul, 2, 3, 4)
	matmul.Bias = true
	rounded := matmul
	rounded.BFloat16 = true
	batch := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5)
	batch.Scale, batch.TransposeB = 0.176777, true
	masked := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5)
	masked.MaskK = true
	scaled := ops.New(ops.Attention, 6, 2, 4, 3)
	scaled.Scale = 0.5
	return []ops.Op{scaled, ops.New(ops.Attention, 6, 2, 4, 3), norm, matmul, rounded, batch, masked, ops.New(ops.MatMul, 2, 3, 4), ops.New(ops.Gather, 5, 6, 7), ops.New(ops.Add, 6, 8, 3),
		ops.New(ops.Softmax, 1, 2, 3, 3), ops.New(ops.Reorder, 1, 2, 3, 4), ops.New(ops.GELU, 2, 3), ops.New(ops.Tanh, 2, 3), ops.New(ops.Slice, 2, 3, 4)}
}

// K1: the text is canonical: equal text means equal operation, and Parse
// reads what String wrote and nothing else.
func TestTextIsCanonical(t *testing.T) {
	seen := make(map[string]ops.Op)
	for _, op := range some() {
		if err := op.Validate(); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		if twin, twice := seen[op.String()]; twice {
			t.Errorf("%v and %v have one text", op, twin)
		}
		seen[op.String()] = op
		if back, err := ops.Parse(op.String()); err != nil || back != op {
			t.Errorf("Parse(%s) = %v, %v", op, back, err)
		}
	}
	for _, text := range []string{"", "matmul", "matmul m=1 k=2", "matmul k=1 m=2 n=3", "matmul m=1 k=2 n=3 ", "matmul m=01 k=2 n=3",
		"matmul m=0 k=2 n=3", "gelu rows=1 width=2 bias", "gelu rows=1 width=2 bfloat16", "matmul m=1 k=2 n=3 bfloat16 bias", "layernorm rows=1 width=2 epsilon=zz", "nothing a=1"} {
		if op, err := ops.Parse(text); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Parse(%q) = %v, %v, want ErrInvalid", text, op, err)
		}
	}
}

// E3: what is no operation is refused.
func TestValidate(t *testing.T) {
	bad := map[string]ops.Op{
		"no kind":           {},
		"too many dims":     ops.New(ops.GELU, 1, 2, 3, 4, 5, 6),
		"extra dim":         ops.New(ops.GELU, 1, 2, 3),
		"zero dim":          ops.New(ops.MatMul, 0, 1, 1),
		"negative dim":      ops.New(ops.MatMul, 1, -1, 1),
		"too large":         ops.New(ops.MatMul, 1<<40, 1<<40, 1<<40),
		"period":            ops.New(ops.Add, 5, 4, 3),
		"no epsilon":        ops.New(ops.LayerNorm, 1, 1),
		"bias on softmax":   {Kind: ops.Softmax, Dims: [5]int64{1, 1, 1, 1}, Bias: true},
		"mask on attention": {Kind: ops.Attention, Dims: [5]int64{1, 1, 1, 1}, MaskK: true},
		"scale on gelu":     {Kind: ops.GELU, Dims: [5]int64{1, 1}, Scale: 2},
	}
	words := map[string]string{
		"no kind":       "unknown operation kind 0",
		"too many dims": "gelu takes 2 dimensions (rows, width), got 6",
		"extra dim":     "gelu takes 2 dimensions (rows, width), got 3",
		"zero dim":      "matmul takes 3 dimensions (m, k, n): m is 0, want at least 1",
	}
	for name, op := range bad {
		if err := op.Validate(); !errors.Is(err, fault.ErrInvalid) || !strings.HasSuffix(err.Error(), words[name]) {
			t.Errorf("%s: %v, want ErrInvalid: ... %s", name, err, words[name])
		}
	}
}

// E3: the bound is of each tensor, not of the product of all dimensions.
func TestValidateBoundsEachTensor(t *testing.T) {
	const most = 1 << 40
	norm := ops.New(ops.LayerNorm, 1<<20, 1<<20)
	norm.Epsilon = 1e-5
	for _, op := range []ops.Op{ // the largest tensor, or each, is at the bound
		ops.New(ops.Add, 1<<20, 1<<20, 1<<20), ops.New(ops.Gather, 1<<20, 1<<20, 30522), ops.New(ops.Gather, 1, 1<<20, 1<<20), norm,
		ops.New(ops.MatMul, 1<<20, 1<<20, 1<<20), ops.New(ops.MatMul, most, 1, 1), ops.New(ops.MatMul, 1, most, 1), ops.New(ops.MatMul, 1, 1, most),
		ops.New(ops.BatchMatMul, 4, 4, 1<<18, 1<<18, 1<<18), ops.New(ops.BatchMatMul, most, 1, 1, 1, 1), ops.New(ops.BatchMatMul, 1, 1, 1, most, 1),
		ops.New(ops.Attention, 1<<20, 1<<10, 1<<10, 1<<30),
		ops.New(ops.Softmax, 1<<10, 1<<10, 1<<10, 1<<10), ops.New(ops.Reorder, 1<<10, 1<<10, 1<<10, 1<<10),
		ops.New(ops.GELU, 1<<20, 1<<20), ops.New(ops.Tanh, most, 1), ops.New(ops.Slice, 1<<10, 1<<10, 1<<20),
	} {
		if err := op.Validate(); err != nil {
			t.Error(err)
		}
		for i := range op.Kind.Dims() {
			larger := op
			larger.Dims[i] *= 2
			counts := op.Kind != ops.Add || i != 2 // its period does not divide the rows then
			if op.Kind == ops.Gather {             // one of rows and entries is far below the bound
				counts = i == 1 || (i == 0) == (op.Dims[0] > 1)
			}
			if counts && larger.Validate() == nil {
				t.Errorf("%s is valid", larger)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, op := range some() {
		f.Add(op.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		if op, err := ops.Parse(text); err == nil && op.String() != text {
			t.Errorf("%q was read as %q", text, op)
		}
	})
}

// The text is part of keys in stores, and made for every kernel of a new shape.
func TestTextStaysAsItIs(t *testing.T) {
	scaled := ops.New(ops.BatchMatMul, 1, 2, 3, 4, 5)
	scaled.Scale, scaled.Epsilon, scaled.TransposeB, scaled.MaskK = -0.5, 1e-12, true, true
	const want = "batch_matmul batch=1 heads=2 m=3 k=4 n=5 epsilon=2b8cbccc scale=bf000000 transpose_b mask_k"
	if got := scaled.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if n := testing.AllocsPerRun(10, func() { _ = scaled.String() }); n > 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}
