package primitive

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/canon"
)

// format is the first field of every encoding; it grows with any change of the
// meaning of a tag.
const format = 1

// Tags of the outermost fields. They are part of what is on disk.
const (
	tagFormat canon.Tag = iota + 1
	tagKind
	tagOp
	tagAttr
	tagImpl
	tagHints
	tagEngine
	tagRuntime
	tagDevice
	tagContext
	tagThreads
	tagSkip
	tagScratchpad
	tagInputs

	// Behind a key in memory: the producer of the artefact, and that it is a descriptor.
	tagProducer
	tagForm
)

// Inside a group fields are tagged by their place; the elements of a list all
// have tag 1.
const element canon.Tag = 1

var (
	listOf = func(inside canon.Schema) canon.Schema { return canon.Schema{element: {Inside: inside}} }
	fields = func(names ...string) canon.Schema {
		s := canon.Schema{}
		for i, n := range names {
			s[canon.Tag(i+1)] = canon.Name{Text: n}
		}
		return s
	}
	within = func(s canon.Schema, tag canon.Tag, inside canon.Schema) canon.Schema {
		s[tag] = canon.Name{Text: s[tag].Text, Inside: inside}
		return s
	}

	tensorSchema = within(within(fields("type", "dims", "strides", "blocks", "offset", "strided", "layout"), 3, listOf(nil)), 4, listOf(fields("dim", "size")))
	paramSchema  = within(fields("name", "ints", "floats", "text"), 3, listOf(nil))
	quantSchema  = fields("arg", "mask", "groups", "type")
	postOpSchema = within(within(fields("kind", "algorithm", "alpha", "beta", "scale", "zero_point", "type", "mask", "source", "params"),
		9, tensorSchema), 10, listOf(paramSchema))
	opSchema   = within(within(fields("direction", "algorithm", "params", "tensors"), 3, listOf(paramSchema)), 4, listOf(tensorSchema))
	attrSchema = within(within(within(within(
		fields("fpmath", "fpmath_ints", "accumulation", "deterministic", "scales", "zero_points", "post_ops", "rounding"),
		5, listOf(quantSchema)), 6, listOf(quantSchema)), 7, listOf(postOpSchema)), 8, listOf(fields("arg", "mode")))

	schema = canon.Schema{
		tagFormat: {Text: "format"}, tagKind: {Text: "kind"}, tagOp: {Text: "op", Inside: opSchema}, tagAttr: {Text: "attr", Inside: attrSchema},
		tagImpl: {Text: "impl"}, tagHints: {Text: "hints", Inside: listOf(tensorSchema)}, tagEngine: {Text: "engine"},
		tagRuntime: {Text: "runtime"}, tagDevice: {Text: "device"}, tagContext: {Text: "context"}, tagThreads: {Text: "threads"},
		tagSkip: {Text: "skip"}, tagScratchpad: {Text: "scratchpad"}, tagInputs: {Text: "inputs", Inside: listOf(fields("name", "digest"))},
		tagProducer: {Text: "producer"}, tagForm: {Text: "form"},
	}
)

func (s *Spec) append(dst []byte, whole bool) ([]byte, error) {
	if err := s.check(); err != nil {
		return dst, err
	}
	b := canon.AppendUint(dst, tagFormat, format)
	b = canon.AppendString(b, tagKind, s.Kind)
	b = s.Op.append(b, tagOp)
	b = s.Attr.append(b, tagAttr)
	b = canon.AppendInt(b, tagImpl, int64(s.Impl))
	b = appendTensors(b, tagHints, s.Hints)
	b = canon.AppendString(b, tagEngine, s.Engine)
	b = canon.AppendString(b, tagRuntime, s.Runtime)
	if whole {
		b = canon.AppendString(b, tagDevice, s.Device)
		b = canon.AppendString(b, tagContext, s.Context)
	}
	b = canon.AppendInt(b, tagThreads, int64(s.Threads))
	b = canon.AppendInts(b, tagSkip, asSet(s.Skip))
	b = canon.AppendString(b, tagScratchpad, s.Scratchpad)
	b = canon.AppendGroup(b, tagInputs, len(s.Inputs))
	for i := range s.Inputs {
		b = canon.AppendGroup(b, element, 2)
		b = canon.AppendString(b, 1, s.Inputs[i].Name)
		b = canon.AppendString(b, 2, s.Inputs[i].Digest)
	}
	return b, nil
}

func (s *Spec) check() error {
	if s.Kind == "" {
		return fault.Invalidf("primitive: key", "a spec needs a kind")
	}
	for _, in := range s.Inputs {
		if len(in.Digest) == 0 {
			return &fault.Error{Op: "primitive: key", Key: s.Kind, Reason: fault.KeyRefused, Field: in.Name,
				Err: fmt.Errorf("%w: the content of this input is not known; build without the cache", fault.ErrRefused)}
		}
	}
	a := &s.Attr
	if twice(len(a.Scales), func(i int) string { return a.Scales[i].Arg }) ||
		twice(len(a.ZeroPoints), func(i int) string { return a.ZeroPoints[i].Arg }) ||
		twice(len(a.Rounding), func(i int) string { return a.Rounding[i].Arg }) {
		return fault.Invalidf("primitive: key", "%s: one argument has two scales, zero points or roundings", s.Kind)
	}
	return nil
}

func twice(n int, arg func(int) string) bool {
	for i := range n {
		for j := range i {
			if arg(i) == arg(j) {
				return true
			}
		}
	}
	return false
}

// byArg calls visit with the places of n settings in the order of their
// arguments. Settings are few, so it looks for the next one instead of sorting
// a copy.
func byArg(n int, arg func(int) string, visit func(int)) {
	last := -1
	for range n {
		next := -1
		for i := range n {
			if (last < 0 || arg(i) > arg(last)) && (next < 0 || arg(i) < arg(next)) {
				next = i
			}
		}
		visit(next)
		last = next
	}
}

func (o *Operation) append(b []byte, tag canon.Tag) []byte {
	b = canon.AppendGroup(b, tag, 4)
	b = canon.AppendString(b, 1, o.Direction)
	b = canon.AppendString(b, 2, o.Algorithm)
	b = appendParams(b, 3, o.Params)
	return appendTensors(b, 4, o.Tensors)
}

func appendParams(b []byte, tag canon.Tag, params []Param) []byte {
	b = canon.AppendGroup(b, tag, len(params))
	for i := range params {
		p := &params[i]
		b = canon.AppendGroup(b, element, 4)
		b = canon.AppendString(b, 1, p.Name)
		b = canon.AppendInts(b, 2, p.Ints)
		b = canon.AppendGroup(b, 3, len(p.Floats))
		for _, f := range p.Floats {
			b = canon.AppendFloat(b, element, f)
		}
		b = canon.AppendString(b, 4, p.Text)
	}
	return b
}

func appendTensors(b []byte, tag canon.Tag, tensors []Tensor) []byte {
	b = canon.AppendGroup(b, tag, len(tensors))
	for i := range tensors {
		b = tensors[i].append(b, element)
	}
	return b
}

// append leaves out the strides of dimensions of size 1 (SPEC K3). Which ones
// are missing follows from the dimensions, which come first; the number of all
// strides tells a given layout from one that is the backend's choice.
func (t *Tensor) append(b []byte, tag canon.Tag) []byte {
	n := 6
	if t.Layout != "" {
		n++
	}
	b = canon.AppendGroup(b, tag, n)
	b = canon.AppendString(b, 1, t.Type)
	b = canon.AppendInts(b, 2, t.Dims)
	matter := 0
	for i := range t.Strides {
		if !t.single(i) {
			matter++
		}
	}
	b = canon.AppendInt(b, 6, int64(len(t.Strides)))
	b = canon.AppendGroup(b, 3, matter)
	for i, stride := range t.Strides {
		if !t.single(i) {
			b = canon.AppendInt(b, element, stride)
		}
	}
	b = canon.AppendGroup(b, 4, len(t.Blocks))
	for _, block := range t.Blocks {
		b = canon.AppendGroup(b, element, 2)
		b = canon.AppendInt(b, 1, int64(block.Dim))
		b = canon.AppendInt(b, 2, block.Size)
	}
	b = canon.AppendInt(b, 5, t.Offset)
	if t.Layout != "" { // few have one: the others' keys are as they were before there was any
		b = canon.AppendString(b, 7, t.Layout)
	}
	return b
}

// single tells whether dimension i is there and of size 1.
func (t *Tensor) single(i int) bool { return i < len(t.Dims) && t.Dims[i] == 1 }

func (a *Attributes) append(b []byte, tag canon.Tag) []byte {
	b = canon.AppendGroup(b, tag, 8)
	b = canon.AppendString(b, 1, a.FPMath)
	b = canon.AppendBool(b, 2, a.FPMathInts)
	b = canon.AppendString(b, 3, a.Accumulation)
	b = canon.AppendBool(b, 4, a.Deterministic)
	b = canon.AppendGroup(b, 5, len(a.Scales))
	byArg(len(a.Scales), func(i int) string { return a.Scales[i].Arg }, func(i int) {
		s := &a.Scales[i]
		b = appendQuant(b, s.Arg, s.Mask, s.Groups, s.Type)
	})
	b = canon.AppendGroup(b, 6, len(a.ZeroPoints))
	byArg(len(a.ZeroPoints), func(i int) string { return a.ZeroPoints[i].Arg }, func(i int) {
		z := &a.ZeroPoints[i]
		b = appendQuant(b, z.Arg, z.Mask, z.Groups, z.Type)
	})
	b = canon.AppendGroup(b, 7, len(a.PostOps))
	for i := range a.PostOps {
		b = a.PostOps[i].append(b)
	}
	b = canon.AppendGroup(b, 8, len(a.Rounding))
	byArg(len(a.Rounding), func(i int) string { return a.Rounding[i].Arg }, func(i int) {
		b = canon.AppendGroup(b, element, 2)
		b = canon.AppendString(b, 1, a.Rounding[i].Arg)
		b = canon.AppendString(b, 2, a.Rounding[i].Mode)
	})
	return b
}

func appendQuant(b []byte, arg string, mask uint64, groups []int64, dtype string) []byte {
	b = canon.AppendGroup(b, element, 4)
	b = canon.AppendString(b, 1, arg)
	b = canon.AppendUint(b, 2, mask)
	b = canon.AppendInts(b, 3, groups)
	return canon.AppendString(b, 4, dtype)
}

func (p *PostOp) append(b []byte) []byte {
	b = canon.AppendGroup(b, element, 10)
	b = canon.AppendString(b, 1, p.Kind)
	b = canon.AppendString(b, 2, p.Algorithm)
	b = canon.AppendFloat(b, 3, p.Alpha)
	b = canon.AppendFloat(b, 4, p.Beta)
	b = canon.AppendFloat(b, 5, p.scale())
	b = canon.AppendInt(b, 6, p.ZeroPoint)
	b = canon.AppendString(b, 7, p.Type)
	b = canon.AppendUint(b, 8, p.Mask)
	b = p.Source.append(b, 9)
	return appendParams(b, 10, p.Params)
}

// scale is the scale that is in force: 0 and 1 are one (SPEC K3, K4).
func (p *PostOp) scale() float64 {
	if p.Kind == "sum" || p.Kind == "eltwise" {
		return cmp.Or(p.Scale, 1)
	}
	return p.Scale
}

// asSet is a list whose order and repetitions mean nothing, ascending (SPEC K3): the
// list itself where it is so.
func asSet(list []int) []int {
	for i := range list {
		if i > 0 && list[i-1] >= list[i] {
			return slices.Compact(slices.Sorted(slices.Values(list)))
		}
	}
	return list
}
