package onednn

import (
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

var _ ops.Library = (*Backend)(nil)

// Source implements ops.Library. A program is of exact dimensions.
func (*Backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Padded(op, 1); err != nil {
		return gpuexec.Source{}, err
	}
	src := gpuexec.Source{Key: op.String(), Spec: op}
	for _, n := range general.Elements(op, 1) {
		src.Params = append(src.Params, gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: 4 * n})
	}
	return src, nil
}

// Launch implements ops.Library: programs have their dimensions.
func (*Backend) Launch(ops.Op) (gpuexec.Size, []gpuexec.Arg) { return gpuexec.Size{1}, nil }

// Prepare implements ops.Library: a weight in rows, which both forms of a product take. The
// form for any size takes no other layout.
func (*Backend) Prepare(op ops.Op) (ops.Prepared, error) {
	if op.Kind != ops.MatMul {
		return ops.Prepared{}, fault.Invalidf("onednn: prepare", "%s has no weight to prepare", op)
	}
	if err := general.Padded(op, 1); err != nil {
		return ops.Prepared{}, err
	}
	n := op.Dims[1] * op.Dims[2]
	return ops.Prepared{Format: "rows", Bytes: 4 * n, Fill: func(dst []byte, numbers []float32) error {
		if int64(len(dst)) != 4*n || int64(len(numbers)) != n {
			return fault.Invalidf("onednn: prepare", "%d numbers into %d bytes, want %d into %d", len(numbers), len(dst), n, 4*n)
		}
		copy(dst, gpuexec.BytesOf(numbers))
		return nil
	}}, nil
}
