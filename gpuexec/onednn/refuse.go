package onednn

import (
	"cmp"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// inside refuses what the library takes, and then reads or writes outside of the memory that
// it has for it, or in wrong places (SPEC E3).
func (o *operation) inside() error {
	list, slots := o.spec.Op.Tensors, slotsOf(o.spec)
	for i := range o.spec.Attr.Scales {
		if err := within(o.spec, &o.spec.Attr.Scales[i]); err != nil {
			return err
		}
	}
	if err := o.behind(); err != nil {
		return err
	}
	for _, r := range o.spec.Attr.Rounding {
		if r.Mode == "stochastic" {
			return failure("describe", fault.ErrUnsupported, "rounding of %s: stochastic wants a seed at execution, which has no form here", r.Arg)
		}
	}
	for i := range list {
		slot, t := slots[i], &list[i]
		written := slot == DiffSrc || slot == DiffWeights || slot == DiffBias || slot == Dst && !o.backward()
		weighted := o.kind == "inner_product" || o.kind == "convolution"
		switch {
		case (written || weighted) && repeats(t):
			return failure("describe", fault.ErrUnsupported, "%s: %v with the strides %v, whose numbers share places", o.kind, slot, t.Strides)
		case (weighted || o.kind == "matmul") && (slot == Bias || slot == DiffBias) && len(t.Strides) > 0 && !late(t) && !gapless(t): // it is read as if it had none
			return failure("describe", fault.ErrUnsupported, "%s: %v with gaps", o.kind, slot)
		case o.kind == "eltwise" && len(t.Dims) > 5 && (len(o.spec.Attr.PostOps) > 0 || concrete(t) && !gapless(t)):
			return failure("describe", fault.ErrUnsupported, "eltwise: %v of %d dimensions, with gaps, blocks or post-operations: want at most 5", slot, len(t.Dims))
		case o.kind == "layer_normalization" && slot != Mean && !oneLayout(&list[0], t):
			return failure("describe", fault.ErrUnsupported, "layer_normalization: %v in another layout than %v", slot, slots[0])
		}
	}
	return nil
}

// behind refuses post-operations that the library takes, and then leaves out or refuses each
// execution of.
func (o *operation) behind() error {
	rank := len(o.spec.Op.Tensors[len(o.spec.Op.Tensors)-1].Dims)
	for i := range o.spec.Attr.PostOps {
		p := &o.spec.Attr.PostOps[i]
		product := o.kind == "matmul" || o.kind == "inner_product" || o.kind == "convolution"
		switch {
		case p.Kind == "sum" && (o.kind == "eltwise" || o.kind == "pooling"), p.Kind == "prelu" && !product:
			return failure("attributes", fault.ErrUnsupported, "post-op %s of %s", p.Kind, o.kind)
		case p.Kind == "prelu" && p.Mask>>rank != 0:
			return fault.Invalidf("onednn: attributes", "post-op prelu, mask %#x of %d dimensions", p.Mask, rank)
		}
	}
	return nil
}

// within refuses scales that the library reads as others.
func within(s *primitive.Spec, q *primitive.Quant) error {
	columns := uint64(1) << (len(s.Op.Tensors[0].Dims) - 1)
	switch {
	case s.Kind == "reorder" && cmp.Or(q.Type, "f32") != "f32":
		return failure("attributes", fault.ErrUnsupported, "a reorder with scales of %s: want f32", q.Type)
	case s.Kind == "matmul" && len(q.Groups) == 0 && (q.Arg == "weights" && q.Mask != 0 && q.Mask != columns || q.Arg == "dst" && q.Mask != 0):
		return failure("attributes", fault.ErrUnsupported, "matmul: scales of %s by the mask %#x: want one, of weights also one for each column, or groups", q.Arg, q.Mask)
	}
	return nil
}

// repeats is whether a stride has several numbers in one place.
func repeats(t *primitive.Tensor) bool {
	for i, stride := range t.Strides {
		if stride == 0 && t.Dims[i] != 1 && t.Dims[i] != 0 {
			return true
		}
	}
	return false
}

// gapless is whether the numbers of a tensor lie side by side, without blocks.
func gapless(t *primitive.Tensor) bool {
	count := typeBytes[t.Type]
	for _, size := range t.Dims {
		count *= size
	}
	return t.Layout == "" && len(t.Blocks) == 0 && (count == 0 || reach(t) == count)
}

// oneLayout is whether two tensors of any type are laid out alike, as far as they say.
func oneLayout(a, b *primitive.Tensor) bool {
	like := *b
	like.Type = a.Type
	return !concrete(a) || !concrete(b) || a.Layout != "" || b.Layout != "" || !slices.Equal(a.Dims, b.Dims) || same(a, &like)
}

// spoils is whether an implementation walks outside of its memory, or computes wrong numbers.
func (i *implementation) spoils() bool {
	wrong := i.wrong()
	if wrong == nil {
		return false
	}
	var name *byte
	return i.lib.c.PlanText(i.pd, queryName, 0, &name) == success && wrong(text(name))
}

// wrong says which of a request's implementations are, by their names; nil: none.
func (i *implementation) wrong() func(name string) bool {
	s, newer := i.spec, i.lib.image.newer
	list := s.Op.Tensors
	ref := func(name string) bool { return strings.HasPrefix(name, "ref") }
	others := func(name string) bool { return !ref(name) }
	switch {
	case s.Kind == "softmax" && !newer: // loops go from row to row by the stride of the dimension before it
		turned, channels := slices.ContainsFunc(list, outOfOrder), channelsBeside(s) || scatteredValues(s)
		if !turned && !channels {
			return nil
		}
		return func(name string) bool { return turned && ref(name) || channels && strings.HasPrefix(name, "jit") }
	case s.Kind == "concat" && slices.ContainsFunc(list, empty) && !empty(list[len(list)-1]): // it divides by the sizes of each source
		return ref
	case scatteredValues(s): // they are read as if they lay side by side, in the order of their dimensions
		return others
	case s.Kind == "matmul" && hasValues(s.Attr.PostOps) && !inRows(&list[3]): // they look for a value by the place of a number, as if it were in rows
		return others
	case s.Kind == "matmul" && newer && scattered(&list[1]): // it takes rows of one product for those of the next
		return func(name string) bool { return strings.HasPrefix(name, "brg_matmul") }
	case s.Kind == "eltwise" && newer && slices.ContainsFunc(list, func(t primitive.Tensor) bool { return t.Type == "f16" }):
		return func(name string) bool { return name == "jit:avx" || name == "jit:sse41" } // which have no such type
	}
	if _, is2 := i.lib.b.(*table2); is2 && sumsDiffer(s.Attr.PostOps) { // all are given one scale
		return others
	}
	return nil
}

// channelsBeside is whether a post-operation of a softmax has a value for each index of dimension
// 1, and the softmax goes over another.
func channelsBeside(s *primitive.Spec) bool {
	for i := range s.Op.Params {
		if p := &s.Op.Params[i]; p.Name == "axis" && p.Ints[0] == 1 {
			return false
		}
	}
	return slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool {
		d := p.Source.Dims
		if p.Kind != "binary" || len(d) < 2 || d[1] == 1 {
			return false
		}
		for i, size := range d {
			if i != 1 && size != 1 {
				return false
			}
		}
		return true
	})
}

// scatteredValues is whether a post-operation has a tensor with gaps, or one that is smaller than
// the result and whose dimensions are not in their order.
func scatteredValues(s *primitive.Spec) bool {
	return slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool {
		whole := slices.Equal(p.Source.Dims, s.Op.Tensors[len(s.Op.Tensors)-1].Dims)
		return p.Kind == "binary" && len(p.Source.Blocks) == 0 && (!gapless(&p.Source) || !whole && !inRows(&p.Source))
	})
}

// hasValues is whether a post-operation has more than one value.
func hasValues(list []primitive.PostOp) bool {
	return slices.ContainsFunc(list, func(p primitive.PostOp) bool {
		return p.Mask != 0 || slices.ContainsFunc(p.Source.Dims, func(size int64) bool { return size != 1 })
	})
}

// inRows is whether a tensor is in rows without gaps, or may be.
func inRows(t *primitive.Tensor) bool {
	rows := Dense(t.Type, t.Dims...)
	return !concrete(t) || same(t, &rows)
}

// scattered is whether weights of one row each are many, and do not lie side by side.
func scattered(t *primitive.Tensor) bool {
	r := len(t.Dims)
	if r < 3 || t.Dims[r-2] != 1 || len(t.Strides) != r {
		return false
	}
	next := t.Dims[r-1]
	for d := r - 3; d >= 0; d-- {
		if t.Dims[d] != 1 && t.Strides[d] != next {
			return true
		}
		next *= t.Dims[d]
	}
	return false
}

// sumsDiffer is whether there are sums of several scales.
func sumsDiffer(list []primitive.PostOp) bool {
	var first *primitive.PostOp
	for i := range list {
		switch {
		case list[i].Kind != "sum":
		case first == nil:
			first = &list[i]
		case cmp.Or(list[i].Scale, 1) != cmp.Or(first.Scale, 1):
			return true
		}
	}
	return false
}

// outOfOrder is whether dimensions are not in the order of their strides.
func outOfOrder(t primitive.Tensor) bool {
	return !slices.IsSortedFunc(strides(&t), func(a, b int64) int { return cmp.Compare(b, a) })
}
