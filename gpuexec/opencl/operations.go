package opencl

import (
	_ "embed"
	"strings"
	"sync"

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

// sources has the gpuexec.Source of each ops.Op without numbers: a digest is made once.
var sources sync.Map

// Source implements ops.Library. One program serves every shape of a kind and its flags.
// The source is to be read only.
func (backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Check(op, panel); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Kind == ops.Attention && op.Dims[2] > mostWidth {
		return gpuexec.Source{}, failure("source", fault.ErrUnsupported, "%s: a head of at most %d numbers", op, mostWidth)
	}
	kind := ops.Op{Kind: op.Kind, Bias: op.Bias, TransposeB: op.TransposeB, MaskK: op.MaskK}
	if made, ok := sources.Load(kind); ok {
		return made.(gpuexec.Source), nil
	}
	defines := map[string]string{strings.ToUpper(op.Kind.String()): "1"}
	for name, set := range map[string]bool{"BIAS": op.Bias, "TRANSPOSE_B": op.TransposeB, "MASK_K": op.MaskK} {
		if set {
			defines[name] = "1"
		}
	}
	made, err := gpuexec.Code{Language: Language, Text: operations, Entry: "op_" + op.Kind.String(), Options: []string{"-cl-std=CL1.2"},
		Defines: defines, Block: gpuexec.Size{1}}.Source(general.Params(op, panel)...)
	if err == nil {
		sources.Store(kind, made)
	}
	return made, err
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
