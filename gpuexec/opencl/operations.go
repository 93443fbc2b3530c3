package opencl

import (
	_ "embed"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

//go:embed ops.cl
var operations string

var _ ops.Library = backend{}

// What ops.cl is written for.
const (
	tileRows = 8
	panel    = 32 // columns of a tile
	tall     = 64 // rows that a group of a batch_matmul or an attention gives
	mostRows = 512

	mostTiles = 1 << 15 // of a matmul, each way
	mostWidth = 1024    // of a head of an attention, whose sums a group keeps
)

var sources general.Sources

// Source implements ops.Library. One program serves every shape of a kind and its flags.
// The source is to be read only.
func (backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Check(op, panel); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Kind == ops.Attention && op.Dims[2] > mostWidth {
		return gpuexec.Source{}, failure("source", fault.ErrUnsupported, "%s: a head of at most %d numbers", op, mostWidth)
	}
	return sources.Of(general.Program(op), func() (gpuexec.Source, error) {
		code := general.Code(op, Language, operations)
		code.Options, code.Block = []string{"-cl-std=CL1.2"}, gpuexec.Size{1}
		return code.Source(general.Params(op, panel)...)
	})
}

// Launch implements ops.Library: a group for each tile of a product and for each row of
// what else there is. Many rows share groups, as PoCL has other code for more of them.
func (backend) Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg) {
	d := op.Dims
	parts := func(n, size int64) int { return int(general.Parts(n, size)) }
	few := func(rows int64) int { return int(min(rows, mostRows)) }
	var grid gpuexec.Size
	switch op.Kind {
	case ops.MatMul:
		grid = gpuexec.Size{min(parts(d[0], tileRows), mostTiles), min(parts(d[2], panel), mostTiles)}
	case ops.BatchMatMul:
		grid = gpuexec.Size{parts(d[4], panel), parts(d[2], tall), few(d[0] * d[1])}
	case ops.Attention:
		grid = gpuexec.Size{min(parts(d[0], tall), mostRows), few(d[1])}
	case ops.Softmax, ops.Reorder:
		grid = gpuexec.Size{few(d[0] * d[1] * d[2])}
	default:
		grid = gpuexec.Size{few(d[0])}
	}
	return grid, general.Values(op)
}

// Prepare implements ops.Library.
func (backend) Prepare(op ops.Op) (ops.Prepared, error) {
	return general.Panels(op, panel, "opencl panels of 32")
}
