package onednn

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// Slot is an argument of an execution.
type Slot int32

// The arguments of operations. A sum and a concatenation have Source(i).
const (
	Src         Slot = 1
	Src1        Slot = 2 // the second of a binary operation
	Dst         Slot = 17
	Weights     Slot = 33
	Bias        Slot = 41
	Mean        Slot = 49
	Variance    Slot = 50
	Scale       Slot = 51
	Shift       Slot = 52
	Workspace   Slot = 64
	DiffSrc     Slot = 129
	DiffDst     Slot = 145
	DiffWeights Slot = 161
	DiffBias    Slot = 169
	DiffScale   Slot = 255
	DiffShift   Slot = 256
)

const (
	scratchpad  Slot = 80
	sourceSlots Slot = 1 << 10
	scaleSlots  Slot = 1 << 12
	zeroSlots   Slot = 1 << 13
	postOpSlots Slot = 1 << 15
)

// Source is source number i, from 0, of a sum or a concatenation.
func Source(i int) Slot { return sourceSlots + Slot(i) }

// ScalesOf is where the scales of an argument go.
func ScalesOf(s Slot) Slot { return scaleSlots | s }

// ZeroPointsOf is where the zero points of an argument go.
func ZeroPointsOf(s Slot) Slot { return zeroSlots | s }

// PostOpSource is the further tensor of the post-operation of that place, from 0.
func PostOpSource(i int) Slot { return postOpSlots*Slot(i+1) | Src1 }

// PostOpWeights is the same for a prelu.
func PostOpWeights(i int) Slot { return postOpSlots*Slot(i+1) | Weights }

var slotNames = map[Slot]string{
	Src: "src", Src1: "src_1", Dst: "dst", Weights: "weights", Bias: "bias", Mean: "mean", Variance: "variance", Scale: "scale", Shift: "shift",
	Workspace: "workspace", DiffSrc: "diff_src", DiffDst: "diff_dst", DiffWeights: "diff_weights", DiffBias: "diff_bias",
	DiffScale: "diff_scale", DiffShift: "diff_shift",
}

func (s Slot) String() string {
	switch {
	case s >= postOpSlots:
		return fmt.Sprintf("%v of post-op %d", s%postOpSlots, s/postOpSlots-1)
	case s >= zeroSlots:
		return "zero points of " + (s &^ zeroSlots).String()
	case s >= scaleSlots:
		return "scales of " + (s &^ scaleSlots).String()
	case s >= sourceSlots:
		return fmt.Sprintf("source %d", s-sourceSlots)
	}
	if name := slotNames[s]; name != "" {
		return name
	}
	return fmt.Sprintf("argument %d", int32(s))
}

// slotNamed is the argument that an attribute names.
func slotNamed(name string) (Slot, error) {
	for s, n := range slotNames {
		if n == name {
			return s, nil
		}
	}
	if number, ok := strings.CutPrefix(name, "source_"); ok {
		if i, err := strconv.Atoi(number); err == nil && i >= 0 && i < int(scaleSlots-sourceSlots) && strconv.Itoa(i) == number {
			return Source(i), nil
		}
	}
	return 0, fault.Invalidf("onednn: attributes", "argument %q: want one such as src, weights or dst", name)
}

// form says which arguments an operation's tensors are, in their order.
type form struct {
	slots    []Slot
	optional Slot // may be left out, by a Tensor without a type; 0 = none
	params   []string
	alg      bool // there is an algorithm to name
}

var convolution = []string{"strides", "dilates", "padding_l", "padding_r"}

// elsewhere are the kinds of oneDNN that have no form here.
var elsewhere = []string{"batch_normalization", "deconvolution", "group_normalization", "lrn", "prelu", "resampling", "rnn", "shuffle"}

// formOf is the form of a kind in a direction.
func formOf(kind string, prop int32) (form, bool) {
	back, data := prop >= backward, prop == backwardData
	switch kind {
	case "matmul":
		return form{slots: []Slot{Src, Weights, Bias, Dst}, optional: Bias}, !back
	case "binary":
		return form{slots: []Slot{Src, Src1, Dst}, alg: true}, !back
	case "reduction":
		return form{slots: []Slot{Src, Dst}, params: []string{"p", "epsilon"}, alg: true}, !back
	case "reorder":
		return form{slots: []Slot{Src, Dst}}, !back
	case "sum":
		return form{params: []string{"scales"}}, !back
	case "concat":
		return form{params: []string{"axis"}}, !back
	case "inner_product", "convolution":
		f := form{slots: []Slot{Src, Weights, Bias, Dst}, optional: Bias}
		switch {
		case data:
			f = form{slots: []Slot{DiffSrc, Weights, DiffDst}}
		case back:
			f = form{slots: []Slot{Src, DiffWeights, DiffBias, DiffDst}, optional: DiffBias}
		}
		if kind == "convolution" {
			f.params, f.alg = convolution, true
		}
		return f, prop != backward
	case "eltwise":
		if back {
			return form{slots: []Slot{DiffSrc, DiffDst, Src}, params: []string{"alpha", "beta"}, alg: true}, prop != backwardWeights
		}
		return form{slots: []Slot{Src, Dst}, params: []string{"alpha", "beta"}, alg: true}, true
	case "softmax":
		if back {
			return form{slots: []Slot{DiffSrc, DiffDst, Dst}, params: []string{"axis"}, alg: true}, prop != backwardWeights
		}
		return form{slots: []Slot{Src, Dst}, params: []string{"axis"}, alg: true}, true
	case "pooling":
		f := form{slots: []Slot{Src, Dst}, params: append([]string{"kernel"}, convolution...), alg: true}
		if back {
			f.slots = []Slot{DiffSrc, DiffDst}
		}
		return f, prop != backwardWeights
	case "layer_normalization":
		f := form{slots: []Slot{Src, Dst, Mean}, optional: Mean, params: []string{"epsilon", "global_stats", "scale", "shift"}}
		if back {
			f.slots = []Slot{DiffSrc, DiffDst, Src, Mean}
		}
		return f, prop != backwardWeights
	}
	return form{}, false
}

// slotsOf says which arguments the tensors of a request are.
func slotsOf(s *primitive.Spec) []Slot {
	f, _ := formOf(s.Kind, directions[s.Op.Direction])
	switch {
	case len(f.slots) == 0: // the sources, and the destination last
		for i := range len(s.Op.Tensors) - 1 {
			f.slots = append(f.slots, Source(i))
		}
		return append(f.slots, Dst)
	case fromDst[s.Op.Algorithm] != 0 && f.slots[len(f.slots)-1] == Src:
		f.slots[len(f.slots)-1] = Dst // what the backward form reads
	}
	return f.slots
}
