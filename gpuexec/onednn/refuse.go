package onednn

import (
	"cmp"
	"math/bits"
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
		case p.Kind == "sum" && (o.kind == "eltwise" || o.kind == "pooling" || o.kind == "reorder" && p.ZeroPoint != 0), p.Kind == "prelu" && !product:
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
	var name *byte
	return i.lib.c.PlanText(i.pd, queryName, 0, &name) == success && i.wrong(text(name))
}

// list has the tensors, with the layouts that the library chose.
func (i *implementation) list() []primitive.Tensor {
	if i.tensors != nil {
		return i.tensors
	}
	return i.spec.Op.Tensors
}

// wrong is whether an implementation of this name does that for this request. Where most do, the
// library's plain loops do not, whose names begin with ref.
func (i *implementation) wrong(name string) bool {
	s, newer, list := i.spec, i.lib.image.newer, i.list()
	last := &list[len(list)-1]
	_, is2 := i.lib.b.(*table2)
	jit := strings.HasPrefix(name, "jit")
	ref := strings.HasPrefix(name, "ref") || strings.HasPrefix(name, "lnorm_ref")
	if !ref && (i.scatteredValues() || !newer && halves(s) && (is2 || !takesHalves(s, name)) || is2 && sumsDiffer(s.Attr.PostOps)) {
		return true // values are read as if they lay side by side, or were no halves; all sums are given one scale and zero point
	}
	switch s.Kind {
	case "softmax": // a loop of the library's goes from row to row by the stride of the dimension before it
		if ref && alongRows(s, &list[0]) && slices.ContainsFunc(list, outOfOrder) {
			return !newer || hasValues(s.Attr.PostOps) // newer ones take only the values for those in rows
		}
		return jit && (misplaced(s, last, false) || !newer && (channelsBeside(s) || unscaled(s, name, &list[0])))
	case "binary": // bytes are all taken to lie as those of the first tensor
		bytes := slices.ContainsFunc(list, func(t primitive.Tensor) bool { return typeBytes[t.Type] == 1 })
		blocks := slices.ContainsFunc(list, func(t primitive.Tensor) bool { return concrete(&t) && len(t.Blocks) != len(list[0].Blocks) })
		return jit && (misplaced(s, last, is2) || bytes && !oneLayout(&list[0], last) || is2 && blocks)
	case "concat": // it divides by the sizes of each source
		return ref && slices.ContainsFunc(list, empty) && !empty(*last)
	case "matmul":
		if hasValues(s.Attr.PostOps) && !inRows(last) && !(newer && byColumn(s, last)) { // they look for a value by the place of a number, as if it were in rows
			return !ref
		}
		if i.losesTheLast(name, last.Dims[len(last.Dims)-1]) {
			return true
		}
		return newer && scattered(&list[1]) && strings.HasPrefix(name, "brg_matmul") // it takes rows of one product for those of the next
	case "inner_product": // weights of one row are taken to have the order of the source
		if is2 && name == "x64:gemm:jit" && slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool { return p.ZeroPoint != 0 }) {
			return true // it leaves the zero point of a sum out
		}
		return newer && list[1].Dims[0] == 1 && strings.HasPrefix(name, "brg_matmul") && ordersDiffer(&list[0], &list[1])
	case "eltwise": // two have no halves, and the loop of 2.6 leaves post-operations and gaps out
		old := newer && slices.ContainsFunc(list, func(t primitive.Tensor) bool { return t.Type == "f16" })
		return old && (name == "jit:avx" || name == "jit:sse41") || is2 && ref && len(last.Dims) == 1 && (len(s.Attr.PostOps) > 0 || concrete(last) && !gapless(last))
	case "pooling": // values for each number are read by the place of another
		function := slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool { return p.Kind == "eltwise" })
		if is2 && name == "jit:sse41" && function || ref && narrowed(s) {
			return true // 2.6 crashes when it makes this one
		}
		return jit && slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool { return p.Kind == "binary" && !byChannel(&p.Source) })
	case "layer_normalization": // rows are taken to lie side by side, in the order of their dimensions
		return !ref && (concrete(&list[0]) && !gapless(&list[0]) || hasValues(s.Attr.PostOps) && !inRows(&list[0]))
	case "convolution":
		return !ref && i.misreads(name)
	case "reorder": // zero points by a mask are taken for one, which older versions leave out where there are gaps in the result
		gaps := !newer && concrete(last) && len(last.Blocks) == 0 && !gapless(last)
		return scalesDiffer(s, newer, jit) || !jit && copiesAndAdds(s) || slices.ContainsFunc(s.Attr.ZeroPoints, func(q primitive.Quant) bool {
			return jit && gaps || q.Mask != 0 && (jit || q.Arg == "dst")
		})
	}
	return false
}

// misplaced is whether a post-operation has values that are looked for by the place of a number,
// as if it were in another order: those by channel if the batch is not the outermost dimension, or
// a channel has one number, and others that are smaller than the result if it is not in rows. 2.6
// has none in blocks.
func misplaced(s *primitive.Spec, dst *primitive.Tensor, is2 bool) bool {
	several := func(size int64) bool { return size != 1 }
	one := len(dst.Dims) > 2 && !slices.ContainsFunc(dst.Dims[2:], several)
	return slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool {
		switch {
		case p.Kind != "binary":
			return false
		case is2 && len(dst.Blocks) > 0:
			return true
		case slices.Equal(p.Source.Dims, dst.Dims) || !slices.ContainsFunc(p.Source.Dims, several):
			return false
		case byChannel(&p.Source):
			return dst.Dims[0] != 1 && (one || !inRows(dst) && len(dst.Strides) > 0 && dst.Strides[0] < slices.Max(dst.Strides))
		}
		return !inRows(dst)
	})
}

// misreads is whether a convolution takes other values behind it, or another image, than it is given.
func (i *implementation) misreads(name string) bool {
	s, newer, list := i.spec, i.lib.image.newer, i.list()
	_, is2 := i.lib.b.(*table2)
	src, weights, dst := &list[0], &list[1], &list[len(list)-1]
	several := func(size int64) bool { return size != 1 }
	one := !slices.ContainsFunc(dst.Dims[2:], several) // number in each channel
	bytes := strings.HasPrefix(name, "x64:gemm_s8")
	switch {
	case name == "x64:gemm:jit" && !newer: // values for each number are looked for as if they were in rows
		return slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool {
			like := p.Source
			like.Type = dst.Type
			return p.Kind == "binary" && slices.Equal(like.Dims, dst.Dims) && (!same(&like, dst) || is2 && src.Type == "f32" && !(inRows(src) && inRows(dst)))
		})
	case bytes && is2: // of the second image on, values for some numbers of channels
		each := weights.Dims[len(weights.Dims)-len(dst.Dims)]
		return dst.Dims[0] > 1 && !one && (each > 32 || each > 16 && each%2 == 1) && hasValues(s.Attr.PostOps)
	case bytes && newer: // channels are taken for what is in rows
		return one && !slices.ContainsFunc(src.Dims[2:], several) && concrete(&s.Op.Tensors[0])
	case i.losesTheLast(name, dst.Dims[1]):
		return true
	case newer && (strings.HasPrefix(name, "jit_int8") || strings.HasPrefix(name, "jit_uni_int8")): // all have the value of the first channel, where the layout of the result is given
		return one && dst.Dims[0] != 1 && concrete(&s.Op.Tensors[len(list)-1]) && slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool {
			return p.Kind == "binary" && slices.ContainsFunc(p.Source.Dims, several) && byChannel(&p.Source)
		})
	}
	return false
}

// losesTheLast is whether code of 3.13 for AVX2 has at times no values for the last columns or channels,
// as it has where the processor has AVX-512.
func (i *implementation) losesTheLast(name string, columns int64) bool {
	const avx512 = 0x20 // of the library's sets of instructions
	rest := columns%8 != 0 && hasValues(i.spec.Attr.PostOps)
	return rest && i.lib.image.newer && strings.HasPrefix(name, "brg") && strings.HasSuffix(name, "avx2_vnni") && i.lib.c.ISA()&avx512 != 0
}

// copiesAndAdds is whether a reorder of f32 is a copy by a loop that divides what it copies by the scale
// of the result, but not what was there.
func copiesAndAdds(s *primitive.Spec) bool {
	src, dst := &s.Op.Tensors[0], &s.Op.Tensors[1]
	scaled := slices.ContainsFunc(s.Attr.Scales, func(q primitive.Quant) bool { return q.Arg == "dst" })
	masked := slices.ContainsFunc(s.Attr.Scales, func(q primitive.Quant) bool { return q.Mask != 0 })
	gaps := false // but for those between the indices of the first dimension
	if len(src.Strides) > 0 && len(src.Blocks) == 0 && !gapless(src) {
		gaps = !gapless(&primitive.Tensor{Type: src.Type, Dims: src.Dims[1:], Strides: src.Strides[1:]})
	}
	return src.Type == "f32" && same(src, dst) && scaled && !masked && !gaps && len(s.Attr.PostOps) > 0 && len(s.Attr.ZeroPoints) == 0
}

// unscaled is whether a softmax over the channels of blocks leaves the scale of its source out.
func unscaled(s *primitive.Spec, name string, src *primitive.Tensor) bool {
	return len(src.Blocks) > 0 && !strings.Contains(name, "avx512") && slices.ContainsFunc(s.Attr.Scales, func(q primitive.Quant) bool { return q.Arg == "src" })
}

// narrowed is whether the greatest of several numbers goes through bytes of another type, which
// begin with their own least one, to a post-operation.
func narrowed(s *primitive.Spec) bool {
	src, dst := s.Op.Tensors[0].Type, s.Op.Tensors[1].Type
	return s.Op.Algorithm == "max" && len(s.Attr.PostOps) > 0 && typeBytes[dst] == 1 && src != dst
}

// scalesDiffer is whether a reorder has scales by masks that its implementations do not take: older
// ones refuse every execution with two masks, and machine code takes dimensions that are not next to
// each other for others.
func scalesDiffer(s *primitive.Spec, newer, jit bool) bool {
	seen := uint64(0)
	for i := range s.Attr.Scales {
		mask := s.Attr.Scales[i].Mask
		if mask == 0 {
			continue
		}
		run := mask >> bits.TrailingZeros64(mask)
		if jit && run&(run+1) != 0 || !newer && seen != 0 && seen != mask {
			return true
		}
		seen = mask
	}
	return false
}

// halves is whether a post-operation has values of f16.
func halves(s *primitive.Spec) bool {
	return slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool { return p.Source.Type == "f16" })
}

// takesHalves is whether an implementation of 3.2 reads values of f16 for what they are: those that
// are for a processor with arithmetic of f16, and binary operations, which without one have none.
func takesHalves(s *primitive.Spec, name string) bool {
	return s.Kind == "binary" || strings.HasSuffix(name, "avx512_core_fp16")
}

// ordersDiffer is whether the numbers of one row, which two tensors share, are in several orders.
func ordersDiffer(a, b *primitive.Tensor) bool {
	if len(a.Strides) == 0 || len(b.Strides) == 0 {
		return false
	}
	for i := range a.Dims[1:] {
		for j := range i {
			x, y := cmp.Compare(a.Strides[i+1], a.Strides[j+1]), cmp.Compare(b.Strides[i+1], b.Strides[j+1])
			if x != y && a.Dims[i+1] != 1 && a.Dims[j+1] != 1 {
				return true
			}
		}
	}
	return len(a.Blocks) != len(b.Blocks)
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
		return p.Kind == "binary" && len(p.Source.Dims) > 1 && p.Source.Dims[1] != 1 && byChannel(&p.Source)
	})
}

// byChannel is whether a tensor has one number, or one for each index of dimension 1.
func byChannel(t *primitive.Tensor) bool {
	for i, size := range t.Dims {
		if i != 1 && size != 1 {
			return false
		}
	}
	return true
}

// scatteredValues is whether a post-operation has a tensor with gaps, or in blocks that are not
// those of the result, or one that is smaller than the result and whose dimensions are not in their
// order.
func (i *implementation) scatteredValues() bool {
	list := i.list()
	dst := &list[len(list)-1]
	return slices.ContainsFunc(i.spec.Attr.PostOps, func(p primitive.PostOp) bool {
		if like := p.Source; len(p.Source.Blocks) > 0 {
			like.Type = dst.Type
			return !same(&like, dst)
		}
		return p.Kind == "binary" && (!gapless(&p.Source) || !slices.Equal(p.Source.Dims, dst.Dims) && !inRows(&p.Source))
	})
}

// hasValues is whether a post-operation has more than one value.
func hasValues(list []primitive.PostOp) bool {
	return slices.ContainsFunc(list, func(p primitive.PostOp) bool {
		return p.Mask != 0 || slices.ContainsFunc(p.Source.Dims, func(size int64) bool { return size != 1 })
	})
}

// byColumn is whether all values behind a product of one matrix are for its columns, and it has rows,
// between which there may be gaps.
func byColumn(s *primitive.Spec, dst *primitive.Tensor) bool {
	return len(dst.Dims) == 2 && len(dst.Blocks) == 0 && dst.Layout == "" && dst.Strides[1] == 1 && !slices.ContainsFunc(s.Attr.PostOps, func(p primitive.PostOp) bool {
		return p.Mask != 0 || p.Kind == "binary" && p.Source.Dims[0] != 1
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

// sumsDiffer is whether there are sums of several scales or zero points.
func sumsDiffer(list []primitive.PostOp) bool {
	var first *primitive.PostOp
	for i := range list {
		switch {
		case list[i].Kind != "sum":
		case first == nil:
			first = &list[i]
		case cmp.Or(list[i].Scale, 1) != cmp.Or(first.Scale, 1), list[i].ZeroPoint != first.ZeroPoint:
			return true
		}
	}
	return false
}

// alongRows is whether a softmax goes over numbers that lie side by side with nothing behind them,
// or over one number each.
func alongRows(s *primitive.Spec, src *primitive.Tensor) bool {
	for i := range s.Op.Params {
		if p := &s.Op.Params[i]; p.Name == "axis" {
			axis := p.Ints[0]
			behind := slices.ContainsFunc(src.Dims[axis+1:], func(size int64) bool { return size != 1 })
			return !behind && (src.Dims[axis] == 1 || len(src.Strides) == 0 || src.Strides[axis] == 1)
		}
	}
	return false
}

// outOfOrder is whether dimensions are not in the order of their strides.
func outOfOrder(t primitive.Tensor) bool {
	return !slices.IsSortedFunc(strides(&t), func(a, b int64) int { return cmp.Compare(b, a) })
}
