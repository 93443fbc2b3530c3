package main

import (
	"fmt"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/measure/incumbent"
)

// request is a problem as our cache is asked for it, with the memory that it borrows.
type request struct {
	primitive.Spec
	tensors [4]primitive.Tensor
	numbers [4][2][4]int64 // sizes and strides of each
	behind  [1]primitive.PostOp
}

// build makes the request of a problem, all of it again.
func (s *request) build(p *incumbent.Problem) *primitive.Spec {
	n := len(p.Tensors)
	for i, t := range p.Tensors {
		to := &s.numbers[i]
		rank := copy(to[0][:], t.Sizes)
		copy(to[1][:], t.Strides)
		s.tensors[i] = primitive.Tensor{Type: "f32", Dims: to[0][:rank], Strides: to[1][:rank]}
	}
	s.Spec = primitive.Spec{Kind: p.Kind, Engine: "cpu", Threads: 1, Scratchpad: "user"}
	switch p.Kind {
	case "matmul":
		if n == 3 { // no bias
			s.tensors[2], s.tensors[3], n = primitive.Tensor{}, s.tensors[2], 4
		}
		if p.Function != "" {
			s.behind[0] = primitive.PostOp{Kind: "eltwise", Algorithm: p.Function, Alpha: p.Alpha}
			s.Attr.PostOps = s.behind[:]
		}
	case "binary":
		s.Op.Algorithm = "add"
	case "eltwise":
		s.Op.Direction, s.Op.Algorithm = "forward_inference", p.Function
	case "softmax":
		s.Op.Direction, s.Op.Algorithm = "forward_inference", "accurate"
		s.Op.Params = []primitive.Param{{Name: "axis", Ints: []int64{int64(len(p.Tensors[0].Sizes)) - 1}}}
	case "layer_normalization":
		s.tensors[n], n = primitive.Tensor{}, n+1 // no statistics
		s.Op.Direction = "forward_inference"
		s.Op.Params = []primitive.Param{{Name: "epsilon", Floats: []float64{p.Alpha}}, {Name: "scale"}, {Name: "shift"}}
	}
	s.Op.Tensors = s.tensors[:n]
	return &s.Spec
}

// namesOf are the problems of a model's names for one request of that many tokens, as often as
// it has them, and how many names it has: some are of operations that oneDNN has no primitive for.
func namesOf(model string, tokens int) (problems []incumbent.Problem, names int, err error) {
	text, known := data.Model(model)
	if !known {
		return nil, 0, fmt.Errorf("no model %s", model)
	}
	list, err := oplist.Parse(model, text)
	if err != nil {
		return nil, 0, err
	}
	all, err := list.At(1, tokens)
	for _, b := range all {
		if p, has := problemOf(b); has {
			problems = append(problems, p)
		}
	}
	return problems, len(all), err
}

// problemOf is the primitive that computes an operation, if there is one.
func problemOf(b oplist.BoundOp) (p incumbent.Problem, has bool) {
	dense := func(sizes []int) incumbent.Tensor {
		var wide []int64
		for _, n := range sizes {
			wide = append(wide, int64(n))
		}
		return incumbent.Dense(wide...)
	}
	dst := dense(b.Dst)
	p.Tensors = []incumbent.Tensor{dense(b.Src[0])}
	switch b.Kind {
	case oplist.MatMul:
		p.Kind, p.Tensors = "matmul", append(p.Tensors, dense(b.Weights[0].Shape))
		if len(b.Weights) > 1 {
			p.Tensors = append(p.Tensors, dense([]int{1, b.Weights[1].Shape[0]}))
		}
	case oplist.BatchMatMul:
		p.Kind, p.Tensors = "matmul", append(p.Tensors, dense(b.Src[1]))
		if b.Attr.Scale != 1 {
			p.Function, p.Alpha = "linear", float64(b.Attr.Scale)
		}
	case oplist.Add:
		p.Kind, p.Tensors = "binary", append(p.Tensors, dense(b.Src[1]))
	case oplist.Eltwise:
		p.Kind, p.Function = "eltwise", map[string]string{"gelu": "gelu_erf", "tanh": "tanh"}[b.Attr.Alg]
	case oplist.Softmax:
		p.Kind = "softmax"
	case oplist.LayerNorm:
		p.Kind, p.Alpha = "layer_normalization", b.Attr.Eps
	case oplist.Reorder: // of the output's sizes, with the input's elements where they lie
		src := incumbent.Tensor{Sizes: dst.Sizes}
		for _, from := range b.Attr.Perm {
			src.Strides = append(src.Strides, p.Tensors[0].Strides[from])
		}
		p.Kind, p.Tensors = "reorder", []incumbent.Tensor{src}
	default:
		return p, false
	}
	p.Tensors = append(p.Tensors, dst)
	return p, true
}
