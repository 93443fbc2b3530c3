package primitive

import "github.com/kiln-cache/kiln/internal/fault"

// Kinds whose operation descriptor is internal: it is made here from the
// caller's tensors, and there is one implementation to ask for (SPEC D4).
const (
	KindSum     = "sum"
	KindConcat  = "concat"
	KindReorder = "reorder"
)

// internal reports whether only the first valid implementation can be had.
func (s *Spec) internal() bool {
	return s.Kind == KindSum || s.Kind == KindConcat || s.Kind == KindReorder
}

// SetSum makes s the scaled sum of tensors into the last of them. There is one
// scale for each source. The slices are borrowed until s is set anew or dropped;
// setting the same s again and again allocates nothing.
func (s *Spec) SetSum(scales []float64, tensors []Tensor) error {
	if len(scales) == 0 || len(tensors) != len(scales)+1 {
		return fault.Invalidf("primitive: sum", "%d scales and %d tensors: want one scale a source, and the destination behind the sources", len(scales), len(tensors))
	}
	p := s.become(KindSum, "scales", tensors)
	p.Floats = scales
	return nil
}

// SetConcat makes s the concatenation along a dimension of tensors into the last
// of them; the rest as in SetSum.
func (s *Spec) SetConcat(axis int, tensors []Tensor) error {
	if len(tensors) < 2 {
		return fault.Invalidf("primitive: concat", "%d tensors: want the sources and behind them the destination", len(tensors))
	}
	if rank := len(tensors[len(tensors)-1].Dims); axis < 0 || axis >= rank {
		return fault.Invalidf("primitive: concat", "axis %d of a destination of %d dimensions: want 0 or more and less than that", axis, rank)
	}
	p := s.become(KindConcat, "axis", tensors)
	p.Ints = append(p.Ints[:0], int64(axis))
	return nil
}

// SetReorder makes s the copy of one tensor into the layout and type of another;
// the rest as in SetSum.
func (s *Spec) SetReorder(tensors []Tensor) error {
	if len(tensors) != 2 {
		return fault.Invalidf("primitive: reorder", "%d tensors: want the source and the destination", len(tensors))
	}
	s.become(KindReorder, "", tensors)
	return nil
}

// become sets kind and operation and leaves where and how to run as they were.
// It gives the operation's parameter, if it has one.
func (s *Spec) become(kind, param string, tensors []Tensor) *Param {
	own := s.Kind == kind && len(s.Op.Params) == 1 && s.Op.Params[0].Name == param
	if s.Kind = kind; !own {
		s.Op.Params = nil
		if param != "" {
			s.Op.Params = []Param{{Name: param}}
		}
	}
	s.Op = Operation{Params: s.Op.Params, Tensors: tensors}
	if param == "" {
		return nil
	}
	return &s.Op.Params[0]
}
