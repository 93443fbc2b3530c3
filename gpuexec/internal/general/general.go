// Package general is what backends share whose program of an operation serves every
// shape: dimensions are numbers of the launch, behind the tensors.
//
// A launch gives the tensors in the order of package ops, then each of Op.Dims as u32,
// then the epsilon of a layernorm or the scale of a batch_matmul or attention as f32. A program must
// touch nothing where all these numbers are 0: gpuexec.Code.Block runs it so.
//
// Safe for concurrent use. No state, but for what Sources keeps.
package general

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Check is op.Validate, and ErrUnsupported for weights that are not float32 and where a
// signed 32-bit index does not reach each element of each tensor. The weight of a matmul is in panels of that many columns.
func Check(op ops.Op, columns int64) error {
	if err := op.Validate(); err != nil {
		return err
	}
	if op.BFloat16 {
		return &fault.Error{Op: "ops: source", Key: op.String(), Err: fmt.Errorf("%w: the device has weights of float32 alone", fault.ErrUnsupported)}
	}
	for _, t := range tensors(op, columns) {
		if n := t.elements(op); n > math.MaxInt32 {
			return &fault.Error{Op: "ops: source", Key: op.String(), Err: fmt.Errorf(
				"%w: a tensor of %d elements, want at most %d", fault.ErrUnsupported, n, math.MaxInt32)}
		}
	}
	return nil
}

// Padded is Check for a backend without attention.
func Padded(op ops.Op, columns int64) error {
	if err := Check(op, columns); err != nil || op.Kind != ops.Attention {
		return err
	}
	return &fault.Error{Op: "ops: source", Key: op.String(), Err: fmt.Errorf(
		"%w: the device has none: pad the sequences to one length, for batch_matmul and softmax with their lengths", fault.ErrUnsupported)}
}

// tensor is one of a launch: the places of its dimensions among the operation's.
type tensor struct {
	dims  []int
	round int64 // the last of them counts as the next multiple of it; 0 = as it is
}

func (t tensor) elements(op ops.Op) int64 {
	n := int64(1)
	for i, at := range t.dims {
		d := op.Dims[at]
		if i == len(t.dims)-1 && t.round > 0 {
			d = Parts(d, t.round) * t.round
		}
		n *= d
	}
	return n
}

// tensors has each tensor of a launch.
func tensors(op ops.Op, columns int64) []tensor {
	var all []tensor
	for _, dims := range shapes[op.Kind] {
		all = append(all, tensor{dims: dims})
	}
	if op.Kind == ops.MatMul {
		all[1].round = columns
	}
	if op.Bias {
		all = slices.Insert(all, 2, tensor{dims: []int{2}})
	}
	return all
}

// shapes has, per kind, the places of each tensor's dimensions.
var shapes = [...][][]int{
	ops.Gather:      {{0}, {2, 1}, {0, 1}},
	ops.Add:         {{0, 1}, {2, 1}, {0, 1}},
	ops.LayerNorm:   {{0, 1}, {1}, {1}, {0, 1}},
	ops.MatMul:      {{0, 1}, {1, 2}, {0, 2}},
	ops.BatchMatMul: {{0, 1, 2, 3}, {0, 1, 3, 4}, {0}, {0, 1, 2, 4}},
	ops.Softmax:     {{0, 1, 2, 3}, {0}, {0, 1, 2, 3}},
	ops.Reorder:     {{0, 1, 2, 3}, {0, 1, 2, 3}},
	ops.GELU:        {{0, 1}, {0, 1}},
	ops.Tanh:        {{0, 1}, {0, 1}},
	ops.Slice:       {{0, 1, 2}, {0, 2}},
	ops.Attention:   {{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {3}, {0, 1, 2}}, // the fourth has one more
}

// Elements is how many numbers each tensor of a launch has.
func Elements(op ops.Op, columns int64) (each []int64) {
	for _, t := range tensors(op, columns) {
		each = append(each, t.elements(op))
	}
	return each
}

// Program is what an operation's program depends on: its kind and its flags.
func Program(op ops.Op) ops.Op {
	return ops.Op{Kind: op.Kind, Bias: op.Bias, TransposeB: op.TransposeB, MaskK: op.MaskK}
}

// Code is an operation's program in a language with macros, in a text that has those of
// all operations: the name of its own and of its flags are defined.
func Code(op ops.Op, language, text string) gpuexec.Code {
	defines := map[string]string{strings.ToUpper(op.Kind.String()): "1"}
	for name, set := range map[string]bool{"BIAS": op.Bias, "TRANSPOSE_B": op.TransposeB, "MASK_K": op.MaskK} {
		if set {
			defines[name] = "1"
		}
	}
	return gpuexec.Code{Language: language, Text: text, Entry: "op_" + op.Kind.String(), Defines: defines}
}

// Sources keeps the source of each program, so that its digest is made once. The zero
// Sources is empty. Sources are to be read only.
type Sources struct{ made sync.Map }

// Of gives the source of a program, by what it depends on.
func (s *Sources) Of(program any, source func() (gpuexec.Source, error)) (gpuexec.Source, error) {
	if made, ok := s.made.Load(program); ok {
		return made.(gpuexec.Source), nil
	}
	made, err := source()
	if err == nil {
		s.made.Store(program, made)
	}
	return made, err
}

// Parts is how many parts of a size cover n.
func Parts(n, size int64) int64 { return (n + size - 1) / size }

// Params are the parameters of an operation's program. They say how large each tensor
// is by the dimensions that a launch gives (SPEC E3), so they are those of every shape.
func Params(op ops.Op, columns int64) []gpuexec.Param {
	var params []gpuexec.Param
	shapes := tensors(op, columns)
	for _, t := range shapes {
		p := gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4, Round: t.round}
		for _, at := range t.dims {
			p.Times = append(p.Times, len(shapes)+at)
		}
		params = append(params, p)
	}
	for range op.Kind.Dims() {
		params = append(params, gpuexec.Param{Kind: gpuexec.ParamU32})
	}
	if op.Kind == ops.LayerNorm || op.Kind == ops.BatchMatMul || op.Kind == ops.Attention {
		params = append(params, gpuexec.Param{Kind: gpuexec.ParamF32})
	}
	return params
}

// Values are the numbers of a launch, behind its tensors. An Op without a scale has the
// scale 1.
func Values(op ops.Op) []gpuexec.Arg {
	dims := op.Kind.Dims()
	values := make([]gpuexec.Arg, 0, len(dims)+1)
	for i := range dims {
		values = append(values, gpuexec.ValueArg(uint32(op.Dims[i])))
	}
	switch op.Kind {
	case ops.LayerNorm:
		values = append(values, gpuexec.ValueArg(op.Epsilon))
	case ops.BatchMatMul, ops.Attention:
		scale := op.Scale
		if scale == 0 {
			scale = 1
		}
		values = append(values, gpuexec.ValueArg(scale))
	}
	return values
}

// Panels prepares the weight of a matmul: panels of that many columns, each with its rows
// one after the other; the last is filled up with zeros. format names that layout.
func Panels(op ops.Op, columns int64, format string) (ops.Prepared, error) {
	if op.Kind != ops.MatMul {
		return ops.Prepared{}, fault.Invalidf("ops: prepare", "%s has no weight to prepare", op)
	}
	if err := Check(op, columns); err != nil {
		return ops.Prepared{}, err
	}
	k, n := op.Dims[1], op.Dims[2]
	bytes := 4 * tensors(op, columns)[1].elements(op)
	return ops.Prepared{Format: format, Bytes: bytes, Fill: func(dst []byte, weight []float32) error {
		if int64(len(dst)) != bytes || int64(len(weight)) != k*n {
			return fault.Invalidf("ops: prepare", "%d numbers into %d bytes, want %d into %d", len(weight), len(dst), k*n, bytes)
		}
		clear(dst)
		for row := range k {
			for first := int64(0); first < n; first += columns {
				copy(dst[4*(first*k+row*columns):], gpuexec.BytesOf(weight[row*n+first:][:min(columns, n-first)]))
			}
		}
		return nil
	}}, nil
}
