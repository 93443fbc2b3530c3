package cpu

import (
	"unsafe"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/gemm"
)

var _ ops.Library = (*Backend)(nil)

// Source implements ops.Library.
func (b *Backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := b.check(op); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Kind == ops.Attention {
		return attentionSource(op)
	}
	src := gpuexec.Source{Key: op.String(), Spec: op}
	if spec, isKernel := b.kernel(op); isKernel {
		for _, p := range spec.Params() {
			src.Params = append(src.Params, buffer(int64(p.Bytes)))
		}
		return src, nil
	}
	d := op.Dims
	if op.Kind == ops.GELU {
		src.Key += " layout=" + b.set.Layout()
		src.Params = []gpuexec.Param{buffer(4 * op.Elements()), buffer(4 * op.Elements())}
		return src, nil
	}
	if op.Kind == ops.MatMul {
		src.Key += " layout=" + b.setOf(op).Layout()
		src.Params = []gpuexec.Param{buffer(4 * d[0] * d[1]), buffer(b.packedBytes(op))}
		if op.Bias {
			src.Params = append(src.Params, buffer(4*d[2]))
		}
		src.Params = append(src.Params, buffer(4*d[0]*d[2]))
		return src, nil
	}
	each := d[0] * d[1]
	src.Params = []gpuexec.Param{buffer(4 * each * d[2] * d[3]), buffer(4 * each * d[3] * d[4]), buffer(4 * d[0]), buffer(4 * each * d[2] * d[4])}
	return src, nil
}

// check refuses what is no operation, or too large for a kernel.
func (b *Backend) check(op ops.Op) error {
	if err := op.Validate(); err != nil {
		return err
	}
	if spec, isKernel := b.kernel(op); isKernel {
		return spec.Validate()
	}
	return nil
}

// kernel is the WebAssembly kernel of an operation; false for what runs in Go assembly.
func (b *Backend) kernel(op ops.Op) (kernels.Spec, bool) {
	spec, isKernel := kernels.Of(op)
	return spec, isKernel && (op.Kind != ops.GELU || !b.set.HasGELU())
}

func buffer(bytes int64) gpuexec.Param {
	return gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: bytes, Align: 4}
}

func (b *Backend) packedBytes(op ops.Op) int64 {
	return 4 * int64(b.setOf(op).PackedLen(int(op.Dims[1]), int(op.Dims[2])))
}

// setOf is the kernels of a matmul.
func (b *Backend) setOf(op ops.Op) *gemm.Set {
	if op.BFloat16 {
		return b.halves
	}
	return b.set
}

// Launch implements ops.Library: the blocks that a launch is cut into. Programs have
// their dimensions, but for the one of attention.
func (b *Backend) Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg) {
	var values []gpuexec.Arg
	if op.Kind == ops.Attention {
		values = general.Values(op)
	}
	return gpuexec.Size{b.blocks(op)}, values
}

func (b *Backend) blocks(op ops.Op) int {
	d := op.Dims
	switch op.Kind {
	case ops.MatMul:
		return b.set.Blocks(int(d[0]), int(d[2]), int(d[1]))
	case ops.BatchMatMul:
		return int(d[0] * d[1])
	case ops.Attention:
		return int(d[3] * d[1])
	case ops.GELU:
		return int(d[0])
	}
	spec, _ := kernels.Of(op)
	return int(spec.Blocks())
}

// Prepare implements ops.Library: weights are packed into column panels.
func (b *Backend) Prepare(op ops.Op) (ops.Prepared, error) {
	if op.Kind != ops.MatMul {
		return ops.Prepared{}, fault.Invalidf("cpu: prepare", "%s has no weight to prepare", op)
	}
	if err := op.Validate(); err != nil {
		return ops.Prepared{}, err
	}
	k, n := int(op.Dims[1]), int(op.Dims[2])
	fill := func(turned bool) func([]byte, []float32) error {
		return func(dst []byte, weight []float32) error { return b.setOf(op).Pack(floats(dst), weight, k, n, turned) }
	}
	return ops.Prepared{Format: b.setOf(op).Layout(), Bytes: b.packedBytes(op), Fill: fill(false), FillTurned: fill(true)}, nil
}

// floats is the memory of b as float32 numbers. b must be aligned to 4 bytes,
// which every part of the linear memory is that passed a launch's check.
func floats(b []byte) []float32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
