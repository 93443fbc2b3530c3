// Package general is what backends share whose program of an operation serves every
// shape: dimensions are numbers of the launch, behind the tensors.
//
// A launch gives the tensors in the order of package ops, then each of Op.Dims as u32,
// then the epsilon of a layernorm or the scale of a batch_matmul as f32. A program must
// touch nothing where all these numbers are 0: gpuexec.Code.Block runs it so.
//
// Pure: no state, safe for concurrent use.
package general

import (
	"fmt"
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// Check is op.Validate, and ErrUnsupported where a signed 32-bit index does not reach
// each element of each tensor. The weight of a matmul is in panels of that many columns.
func Check(op ops.Op, columns int64) error {
	if err := op.Validate(); err != nil {
		return err
	}
	for _, n := range tensors(op, columns) {
		if n > math.MaxInt32 {
			return &fault.Error{Op: "ops: source", Key: op.String(), Err: fmt.Errorf(
				"%w: a tensor of %d elements, want at most %d", fault.ErrUnsupported, n, math.MaxInt32)}
		}
	}
	return nil
}

// tensors has the number of elements of each tensor of a launch.
func tensors(op ops.Op, columns int64) []int64 {
	d, out := op.Dims, op.Elements()
	switch op.Kind {
	case ops.Gather:
		return []int64{d[0], d[2] * d[1], out}
	case ops.Add:
		return []int64{out, d[2] * d[1], out}
	case ops.LayerNorm:
		return []int64{out, d[1], d[1], out}
	case ops.MatMul:
		weight := d[1] * Parts(d[2], columns) * columns
		if op.Bias {
			return []int64{d[0] * d[1], weight, d[2], out}
		}
		return []int64{d[0] * d[1], weight, out}
	case ops.BatchMatMul:
		each := d[0] * d[1]
		return []int64{each * d[2] * d[3], each * d[3] * d[4], d[0], out}
	case ops.Softmax:
		return []int64{out, d[0], out}
	case ops.Slice:
		return []int64{d[0] * d[1] * d[2], out}
	}
	return []int64{out, out}
}

// Parts is how many parts of a size cover n.
func Parts(n, size int64) int64 { return (n + size - 1) / size }

// Params are the parameters of an operation's program. They say nothing of dimensions.
func Params(op ops.Op) []gpuexec.Param {
	var params []gpuexec.Param
	for range tensors(op, 1) {
		params = append(params, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4})
	}
	for range op.Kind.Dims() {
		params = append(params, gpuexec.Param{Kind: gpuexec.ParamU32})
	}
	if op.Kind == ops.LayerNorm || op.Kind == ops.BatchMatMul {
		params = append(params, gpuexec.Param{Kind: gpuexec.ParamF32})
	}
	return params
}

// Values are the numbers of a launch, behind its tensors. A batch_matmul without a scale
// has the scale 1.
func Values(op ops.Op) []gpuexec.Arg {
	var values []gpuexec.Arg
	for i := range op.Kind.Dims() {
		values = append(values, gpuexec.ValueArg(uint32(op.Dims[i])))
	}
	switch op.Kind {
	case ops.LayerNorm:
		values = append(values, gpuexec.ValueArg(op.Epsilon))
	case ops.BatchMatMul:
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
	bytes := 4 * k * Parts(n, columns) * columns
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
