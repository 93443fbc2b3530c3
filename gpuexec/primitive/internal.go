package primitive

import "github.com/kiln-cache/kiln/fault"

// Kinds whose operation descriptor is internal: it is made here from the
// caller's tensors, and there is one implementation to ask for (SPEC D4).
const (
	kindSum     = "sum"
	kindConcat  = "concat"
	kindReorder = "reorder"
)

// internal reports whether only the first valid implementation can be had.
func (s *Spec) internal() bool {
	return s.Kind == kindSum || s.Kind == kindConcat || s.Kind == kindReorder
}

// Sum is the request of the scaled sum of tensors into the last of them, with
// one scale for each source. It borrows both slices. Where and how it is to run
// is left to be set.
func Sum(scales []float64, tensors []Tensor) (Spec, error) {
	if len(scales) == 0 || len(tensors) != len(scales)+1 {
		return Spec{}, fault.Invalidf("primitive: sum", "%d scales and %d tensors: want one scale a source, and the destination behind the sources", len(scales), len(tensors))
	}
	return Spec{Kind: kindSum, Op: Operation{Params: []Param{{Name: "scales", Floats: scales}}, Tensors: tensors}}, nil
}

// Concat is the request of the concatenation along a dimension of tensors into
// the last of them; the rest as in Sum.
func Concat(axis int, tensors []Tensor) (Spec, error) {
	if len(tensors) < 2 {
		return Spec{}, fault.Invalidf("primitive: concat", "%d tensors: want the sources and behind them the destination", len(tensors))
	}
	if rank := len(tensors[len(tensors)-1].Dims); axis < 0 || axis >= rank {
		return Spec{}, fault.Invalidf("primitive: concat", "axis %d of a destination of %d dimensions: want 0 or more and less than that", axis, rank)
	}
	return Spec{Kind: kindConcat, Op: Operation{Params: []Param{{Name: "axis", Ints: []int64{int64(axis)}}}, Tensors: tensors}}, nil
}

// Reorder is the request of the copy of one tensor, the first, into the layout and type of
// another; the rest as in Sum.
func Reorder(tensors []Tensor) (Spec, error) {
	if len(tensors) != 2 {
		return Spec{}, fault.Invalidf("primitive: reorder", "%d tensors: want the source and the destination", len(tensors))
	}
	return Spec{Kind: kindReorder, Op: Operation{Tensors: tensors}}, nil
}
