package primitive

import "slices"

// clone gives a Spec that shares no list with s.
func (s *Spec) clone() Spec {
	c := *s
	c.Op.Params = clones(s.Op.Params, Param.clone)
	c.Op.Tensors = clones(s.Op.Tensors, Tensor.clone)
	c.Attr.Scales = clones(s.Attr.Scales, Quant.clone)
	c.Attr.ZeroPoints = clones(s.Attr.ZeroPoints, Quant.clone)
	c.Attr.PostOps = clones(s.Attr.PostOps, func(v PostOp) PostOp {
		v.Source, v.Params = v.Source.clone(), clones(v.Params, Param.clone)
		return v
	})
	c.Attr.Rounding = slices.Clone(s.Attr.Rounding)
	c.Hints = clones(s.Hints, Tensor.clone)
	c.Skip = slices.Clone(s.Skip)
	c.Inputs = clones(s.Inputs, func(v Input) Input {
		v.Digest = slices.Clone(v.Digest)
		return v
	})
	return c
}

func clones[T any](list []T, clone func(T) T) []T {
	if len(list) == 0 {
		return nil
	}
	copies := make([]T, len(list))
	for i, v := range list {
		copies[i] = clone(v)
	}
	return copies
}

func (p Param) clone() Param {
	p.Ints, p.Floats = slices.Clone(p.Ints), slices.Clone(p.Floats)
	return p
}

func (t Tensor) clone() Tensor {
	t.Dims, t.Strides, t.Blocks = slices.Clone(t.Dims), slices.Clone(t.Strides), slices.Clone(t.Blocks)
	return t
}

func (q Quant) clone() Quant {
	q.Groups = slices.Clone(q.Groups)
	return q
}
