package onednn

import (
	"slices"

	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// spec is the request of a program's exact form.
func (p *program) spec() primitive.Spec {
	op, d := p.op, p.op.Dims
	rows := d[0]
	s := primitive.Spec{Op: primitive.Operation{Direction: "forward_inference"}}
	param := func(name string, x primitive.Param) {
		x.Name = name
		s.Op.Params = append(s.Op.Params, x)
	}
	switch op.Kind {
	case ops.MatMul:
		return matmulSpec(op, d[0])
	case ops.BatchMatMul:
		tensors := batchTensors(op, d[0]*d[1], d[3])
		return batchSpec(op, tensors)
	case ops.LayerNorm:
		x := Dense("f32", rows, d[1])
		s.Kind, s.Op.Tensors = "layer_normalization", []primitive.Tensor{x, x, {}}
		param("epsilon", primitive.Param{Floats: []float64{float64(op.Epsilon)}})
		param("scale", primitive.Param{})
		param("shift", primitive.Param{})
	case ops.Softmax:
		x := Dense("f32", rows*d[1]*d[2], d[3])
		s.Kind, s.Op.Algorithm, s.Op.Tensors = "softmax", "accurate", []primitive.Tensor{x, x}
		param("axis", primitive.Param{Ints: []int64{1}})
	default:
		x := Dense("f32", rows, d[1])
		s.Kind, s.Op.Algorithm, s.Op.Tensors = "eltwise", "tanh", []primitive.Tensor{x, x}
		if op.Kind == ops.GELU {
			s.Op.Algorithm = "gelu_erf"
		}
	}
	return s
}

// lateSpec is the request of a product's form for any shape. It has the scale as that of an
// argument, where the version has those: a post-operation makes this form a quarter slower.
func (l *Library) lateSpec(op ops.Op) primitive.Spec {
	if op.Kind == ops.MatMul {
		return matmulSpec(op, atExecution)
	}
	tensors := batchTensors(op, 1, 1)
	for i := range tensors {
		t := &tensors[i]
		t.Dims, t.Strides = slices.Repeat([]int64{atExecution}, 3), []int64{atExecution, atExecution, 1}
	}
	if op.TransposeB {
		tensors[1].Strides = []int64{atExecution, 1, atExecution}
	}
	s := batchSpec(op, tensors)
	if _, old := l.b.(*table2); op.Scale != 0 && !old {
		s.Attr = primitive.Attributes{Scales: []primitive.Quant{{Arg: "src"}}}
	}
	return s
}

func matmulSpec(op ops.Op, m int64) primitive.Spec {
	k, n := op.Dims[1], op.Dims[2]
	side := func(width int64) primitive.Tensor {
		return primitive.Tensor{Type: "f32", Dims: []int64{m, width}, Strides: []int64{width, 1}}
	}
	s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []primitive.Tensor{side(k), Dense("f32", k, n), {}, side(n)}}}
	if op.Bias {
		s.Op.Tensors[2] = Dense("f32", 1, n)
	}
	return s
}

// batchTensors are src, weights and dst of a product for so many blocks, which sums over
// the first depth of what is stored.
func batchTensors(op ops.Op, blocks, depth int64) [3]primitive.Tensor {
	m, k, n := op.Dims[2], op.Dims[3], op.Dims[4]
	of := func(dims, strides [3]int64) primitive.Tensor {
		return primitive.Tensor{Type: "f32", Dims: dims[:], Strides: strides[:]}
	}
	weights := of([3]int64{blocks, depth, n}, [3]int64{k * n, n, 1})
	if op.TransposeB {
		weights.Strides = []int64{k * n, 1, k}
	}
	return [3]primitive.Tensor{of([3]int64{blocks, m, depth}, [3]int64{m * k, k, 1}), weights, of([3]int64{blocks, m, n}, [3]int64{m * n, n, 1})}
}

func batchSpec(op ops.Op, t [3]primitive.Tensor) primitive.Spec {
	s := primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []primitive.Tensor{t[0], t[1], {}, t[2]}}}
	if op.Scale != 0 {
		s.Attr.PostOps = []primitive.PostOp{{Kind: "eltwise", Algorithm: "linear", Alpha: float64(op.Scale)}}
	}
	return s
}

// concrete gives a late form's tensors the sizes of the program; a scale has its own.
func (p *program) concrete(tensors []primitive.Tensor) {
	s := p.spec()
	at := 0
	for _, t := range s.Op.Tensors {
		if !absent(&t) {
			tensors[at] = t
			at++
		}
	}
}
