package forward

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// lower is the device operation of a bound one, with the weights of products as the model has them.
func (m *Model) lower(b oplist.BoundOp) (ops.Op, error) {
	op, err := lower(b)
	op.BFloat16 = m.bfloat16 && op.Kind == ops.MatMul
	return op, err
}

// lower is the device operation of a bound one.
func lower(b oplist.BoundOp) (ops.Op, error) {
	width := int64(b.Dst[len(b.Dst)-1])
	rows := int64(b.Elements()) / width
	switch b.Kind {
	case oplist.Gather:
		return ops.New(ops.Gather, rows, width, int64(b.Weights[0].Shape[0])), nil
	case oplist.Add:
		period := rows
		if len(b.Weights) > 0 { // the first rows of the position table, for each request
			period = int64(b.Dst[len(b.Dst)-2])
		}
		return ops.New(ops.Add, rows, width, period), nil
	case oplist.LayerNorm:
		op := ops.New(ops.LayerNorm, rows, width)
		op.Epsilon = float32(b.Attr.Eps)
		return op, nil
	case oplist.MatMul:
		op := ops.New(ops.MatMul, rows, int64(b.Weights[0].Shape[0]), width)
		op.Bias = len(b.Weights) > 1
		return op, nil
	case oplist.BatchMatMul:
		if len(b.Dst) == 4 {
			return lowerBatch(b), nil
		}
	case oplist.Softmax:
		if d := b.Dst; len(d) == 4 {
			return ops.New(ops.Softmax, int64(d[0]), int64(d[1]), int64(d[2]), int64(d[3])), nil
		}
	case oplist.Reorder:
		if d := b.Src[0]; len(d) == 4 && fmt.Sprint(b.Attr.Perm) == "[0 2 1 3]" {
			return ops.New(ops.Reorder, int64(d[0]), int64(d[1]), int64(d[2]), int64(d[3])), nil
		}
	case oplist.Attention: // of one request, until one says how many there are
		d := b.Dst
		op := ops.New(ops.Attention, int64(d[0]*d[1]), int64(d[2]), int64(d[3]), 1)
		op.Scale = b.Attr.Scale
		return op, nil
	case oplist.Eltwise:
		switch b.Attr.Alg {
		case "gelu":
			return ops.New(ops.GELU, rows, width), nil
		case "tanh":
			return ops.New(ops.Tanh, rows, width), nil
		}
	case oplist.Slice:
		d := b.Src[0]
		return ops.New(ops.Slice, int64(d[0]), int64(d[1]), int64(d[2])), nil
	}
	return ops.Op{}, &fault.Error{Op: "forward: lower", Key: b.Name, Err: fmt.Errorf(
		"%w: line %d: %s with %s and dims %v: no device operation computes it", fault.ErrUnsupported, b.Line, b.Kind, b.Attr.Text, b.Dst)}
}

// lowerBatch is a batched product. The request's length bounds the columns of masked
// scores, and what the product after the softmax sums over.
func lowerBatch(b oplist.BoundOp) ops.Op {
	d, sum := b.Dst, b.Src[0][3]
	op := ops.New(ops.BatchMatMul, int64(d[0]), int64(d[1]), int64(d[2]), int64(sum), int64(d[3]))
	op.TransposeB = b.TransposeB
	op.MaskK = !b.Attr.Mask
	if b.Attr.Scale != 1 {
		op.Scale = b.Attr.Scale
	}
	return op
}
