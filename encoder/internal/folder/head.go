package folder

import (
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// Head makes the score of a pair of its first token's output. Immutable.
type Head struct {
	pooler, poolerBias, classifier, bias []float32 // kernels as [outputs, inputs]
	raw                                  bool
}

// head reads the head of a cross-encoder: a classifier of one label, in a folder that is
// not a pipeline of embeddings.
func (f *Folder) head(c config, n naming, source string, file *tensorfile.File) error {
	if c.score != 1 || f.pooling != "" {
		return nil
	}
	h := &Head{raw: c.raw}
	for _, t := range []struct {
		to    *[]float32
		name  string
		shape []int
	}{
		{&h.pooler, n.prefix + "pooler.dense.weight", []int{c.width, c.width}}, {&h.poolerBias, n.prefix + "pooler.dense.bias", []int{c.width}},
		{&h.classifier, "classifier.weight", []int{1, c.width}}, {&h.bias, "classifier.bias", []int{1}},
	} {
		got, ok := file.Tensor(t.name)
		if got.Turned {
			slices.Reverse(got.Shape)
		}
		if !ok {
			return refuse(fault.ErrInvalid, source, "", "has no tensor %q, though %s says that the model is a classifier", t.name, c.file)
		} else if !slices.Equal(got.Shape, t.shape) {
			return refuse(fault.ErrInvalid, source, "", "has %q with the shape %v, want %v", t.name, got.Shape, t.shape)
		}
		err := file.Floats(t.name, func(values []float32) error {
			*t.to = slices.Clone(values)
			for i := 0; got.Turned && i < len(values); i++ {
				(*t.to)[i] = values[i%t.shape[1]*t.shape[0]+i/t.shape[1]]
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	f.Head = h
	return nil
}

// Score is the score of a pair. Sums are of float64 in one order, so that a pair has the
// same bits wherever it was computed (SPEC E8).
func (h *Head) Score(first []float32) float32 {
	in, pooled := make([]float64, len(first)), make([]float64, len(first))
	for i, v := range first {
		in[i] = float64(v)
	}
	for i := range pooled {
		pooled[i] = math.Tanh(dot(h.pooler[i*len(in):(i+1)*len(in)], in, h.poolerBias[i]))
	}
	score := dot(h.classifier, pooled, h.bias[0])
	if !h.raw {
		score = 1 / (1 + math.Exp(-score))
	}
	return float32(score)
}

func dot(weights []float32, x []float64, bias float32) float64 {
	sum := float64(bias)
	for i, w := range weights {
		sum += float64(float64(w) * x[i]) // rounded apart, on every machine
	}
	return sum
}
