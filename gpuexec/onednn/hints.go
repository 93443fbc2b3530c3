package onednn

import (
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// gradientOf is what a backward operation's argument is the gradient of.
var gradientOf = map[Slot]Slot{DiffSrc: Src, DiffDst: Dst, DiffWeights: Weights, DiffBias: Bias}

// fits compares the sizes of hints with those of the backward request that has them: 2.6 would
// take the forward operation's for those of the memory.
func fits(s *primitive.Spec, hints []Slot) error {
	for i, slot := range slotsOf(s) {
		if of, ok := gradientOf[slot]; ok {
			slot = of
		}
		n := slices.Index(hints, slot)
		if n < 0 || absent(&s.Hints[n]) || absent(&s.Op.Tensors[i]) {
			continue
		}
		if want := s.Op.Tensors[i].Dims; !slices.Equal(s.Hints[n].Dims, want) {
			return fault.Invalidf("onednn: describe", "%s, %s: %v is %v in the hints, and %v here", s.Kind, s.Op.Direction, slot, s.Hints[n].Dims, want)
		}
	}
	return nil
}
