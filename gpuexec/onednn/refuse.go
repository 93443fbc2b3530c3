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
		case weighted && (slot == Bias || slot == DiffBias) && len(t.Strides) > 0 && !gapless(t): // it is read as if it had none
			return failure("describe", fault.ErrUnsupported, "%s: %v with gaps", o.kind, slot)
		case o.kind == "eltwise" && len(t.Dims) > 5 && (len(o.spec.Attr.PostOps) > 0 || concrete(t) && !gapless(t)):
			return failure("describe", fault.ErrUnsupported, "eltwise: %v of %d dimensions, with gaps, blocks or post-operations: want at most 5", slot, len(t.Dims))
		case o.kind == "layer_normalization" && slot != Mean && !oneLayout(&list[0], t):
			return failure("describe", fault.ErrUnsupported, "layer_normalization: %v in another layout than %v", slot, slots[0])
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

// spoils is whether an implementation is one of the library's own loops that walks outside of
// its memory: before 3.6 that of a softmax over the last dimension goes from row to row by the
// stride of the dimension before it; that of a concatenation divides by the sizes of a source
// without numbers.
func (i *implementation) spoils() bool {
	list := i.spec.Op.Tensors
	switch i.spec.Kind {
	case "softmax":
		if i.lib.image.newer || !slices.ContainsFunc(list, outOfOrder) {
			return false
		}
	case "concat":
		if !slices.ContainsFunc(list, empty) || empty(list[len(list)-1]) {
			return false
		}
	default:
		return false
	}
	var name *byte
	return i.lib.c.PlanText(i.pd, queryName, 0, &name) == success && strings.HasPrefix(text(name), "ref")
}

// outOfOrder is whether dimensions are not in the order of their strides.
func outOfOrder(t primitive.Tensor) bool {
	return !slices.IsSortedFunc(strides(&t), func(a, b int64) int { return cmp.Compare(b, a) })
}
