package onednn

import (
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// described goes through the list of a request, and describes what is in it.
func (r *rig) described(s *primitive.Spec) (n int, err error) {
	for i, err := range r.Implementations(bg, s) {
		if err != nil {
			return n, err
		}
		if !i.Accepts() {
			continue
		}
		d, err := i.Describe()
		if err != nil {
			return n, err
		}
		d.Free()
		n++
	}
	return n, nil
}

// refused wants an error of that kind.
func (r *rig) refused(s primitive.Spec, want error) {
	r.Helper()
	if n, err := r.described(&s); !errors.Is(err, want) {
		r.Errorf("%s %s with %d tensors: %d implementations, %v: want %v", s.Kind, s.Op.Direction, len(s.Op.Tensors), n, err, want)
	}
}

// E3: too few tensors are an error before anything is read of them.
func TestTooFewTensors(t *testing.T) {
	r := open1(t, limit.Limit{})
	for kind, p := range map[string]param{"convolution": ints("strides", 1, 1), "pooling": ints("kernel", 1, 1), "softmax": ints("axis", 1),
		"concat": ints("axis", 0), "sum": float("scales", 1)} {
		for n := range 2 {
			tensors := []tensor{Dense("f32", 2, 2, 4, 4)}[:n]
			r.refused(spec(kind, "", "", []param{p}, tensors...), fault.ErrInvalid)
		}
	}
}

// E3: a pooling without dimensions to pool over ends the process in the library.
func TestPoolingOverNothing(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, d := range [][]int64{{2}, {2, 2}} {
		r.refused(spec("pooling", "inference", "max", nil, Dense("f32", d...), Dense("f32", d...)), fault.ErrInvalid)
		r.refused(spec("pooling", "inference", "max", []param{ints("kernel", 1, 1)}, Dense("f32", 1, 1, 2, 2), Dense("f32", d...)), fault.ErrInvalid)
	}
}
