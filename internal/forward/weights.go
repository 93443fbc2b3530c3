package forward

import (
	"context"
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/refnet"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
	"github.com/kiln-cache/kiln/internal/forward/weights"
)

// Weights has the tensors of one model: those of the safetensors file that its
// list names, else tensors that are generated from a seed. Models may share it.
// It is safe for concurrent use until Close.
type Weights struct {
	list *List
	set  *weights.Set
}

// OpenWeights opens the weights of a model; the seed is for a list that names no
// file. A file that lacks a tensor of the list, or has one of another shape or
// type, matches fault.ErrInvalid. The caller closes the weights.
func OpenWeights(list *List, seed uint64) (*Weights, error) {
	set, err := weights.Open(list.model, seed)
	if err != nil {
		return nil, err
	}
	return &Weights{list: list, set: set}, nil
}

// WeightsOf has the weights of a model from an open file, which it closes.
// There the kernels of matrix products are the transposed of those of the list, as
// PyTorch keeps them, or turned. name is what errors call the file; else it is OpenWeights.
func WeightsOf(list *List, name string, file *tensorfile.File) (*Weights, error) {
	set, err := weights.Of(list.model, name, file, true)
	if err != nil {
		return nil, err
	}
	return &Weights{list: list, set: set}, nil
}

// Close closes the file, if there is one.
func (w *Weights) Close() error { return w.set.Close() }

// Reference computes requests one by one in float64 with plain loops: what the
// outputs of Run are compared with. It is far slower than Run, and keeps
// every weight in memory until it returns. Each output has the form of
// Answer.Output. It returns ctx's error between two requests.
func (w *Weights) Reference(ctx context.Context, requests [][]int32) ([][]float64, error) {
	net := refnet.New(w.list.model, w.set)
	outputs := make([][]float64, len(requests))
	for i, ids := range requests {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rows, err := net.Forward([][]int32{ids}, []int{len(ids)})
		if err != nil {
			return nil, err
		}
		outputs[i] = rows[0] // of the only request
	}
	return outputs, nil
}

// Difference is how far an output is from its reference.
type Difference struct {
	Absolute float64 // the largest absolute difference of two values
	Relative float64 // Absolute over the largest absolute value of the reference
}

// Compare takes an output and its reference. A value that is not finite makes
// the difference infinite. Outputs of different sizes match fault.ErrInvalid.
func Compare(got []float32, want []float64) (Difference, error) {
	if len(got) != len(want) {
		return Difference{}, fault.Invalidf("forward: compare", "an output of %d values and a reference of %d", len(got), len(want))
	}
	var d Difference
	largest := 0.0
	for i, w := range want {
		diff := math.Abs(float64(got[i]) - w)
		if math.IsNaN(diff) {
			diff = math.Inf(1)
		}
		d.Absolute = max(d.Absolute, diff)
		largest = max(largest, math.Abs(w))
	}
	if d.Absolute > 0 {
		d.Relative = d.Absolute / largest // infinite where the reference is 0
	}
	return d, nil
}
