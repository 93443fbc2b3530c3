package cuda

import (
	_ "embed"
	"math/bits"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

//go:embed ops.cu
var operations string

var _ ops.Library = backend{}

// What ops.cu is written for.
const (
	panel = 32 // columns of a weight's panels, and of a tile of few rows
	few   = 16 // so many rows of a product or an attention are few: a tile has 8 of them
	side  = 64 // rows and columns of a product's tile of more
	tall  = 32 // rows of an attention's tile of more

	mostWidth = 256 // of a head of an attention: 8 numbers for each lane

	productBlock = 256 // threads
	rowBlock     = 128 // of a warp for each row
	mostBlocks   = 1 << 15
)

var sources general.Sources

// Source implements ops.Library. One program serves every shape of a kind and its flags,
// but for products where there is cuBLAS: those have a program for each class of shapes.
// The source is to be read only.
func (b backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Check(op, panel); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Kind == ops.Attention && op.Dims[2] > mostWidth {
		return gpuexec.Source{}, failure("source", fault.ErrUnsupported, "%s: a head of at most %d numbers", op, mostWidth)
	}
	program := general.Program(op)
	if b.cublas() != nil && (op.Kind == ops.MatMul || op.Kind == ops.BatchMatMul && !op.MaskK) {
		program = classOf(op)
	}
	return sources.Of(program, func() (gpuexec.Source, error) {
		code := general.Code(op, Language, operations)
		if program != general.Program(op) {
			code.Defines[classMacro] = program.String()
		}
		code.Options, code.Block = []string{"-fmad=false"}, gpuexec.Size{block(op)}
		return code.Source(general.Params(op, panel)...)
	})
}

// classOf is the shapes that have one choice between cuBLAS and the kernel: rows to the next
// power of two with a weight's own sizes, and in batches all sizes so.
func classOf(op ops.Op) ops.Op {
	class := general.Program(op)
	class.Dims = op.Dims
	if op.Kind == ops.BatchMatMul {
		class.Dims[0], class.Dims[1] = op.Dims[0]*op.Dims[1], 1
	}
	for i := range op.Kind.Dims() {
		if op.Kind == ops.BatchMatMul || i == 0 {
			class.Dims[i] = 1 << bits.Len64(uint64(class.Dims[i]-1))
		}
	}
	return class
}

// block is the threads of a block.
func block(op ops.Op) int {
	switch op.Kind {
	case ops.MatMul, ops.BatchMatMul, ops.Attention:
		return productBlock
	}
	return rowBlock
}

// Launch implements ops.Library: a block for each tile of a product or an attention, a warp
// for each row of what else there is. Kernels go on with what is left where there are more.
func (backend) Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg) {
	d := op.Dims
	var grid gpuexec.Size
	switch op.Kind {
	case ops.MatMul:
		grid = tiles(d[0], d[2])
	case ops.BatchMatMul:
		grid = tiles(d[2], d[4])
		grid[2] = blocks(d[0]*d[1], 1)
	case ops.Attention:
		grid = gpuexec.Size{blocks(d[0], tall), blocks(d[1], 1)}
		if d[0] <= few {
			grid[0] = blocks(d[0], 8)
		}
	case ops.Softmax, ops.Reorder:
		grid[0] = blocks(d[0]*d[1]*d[2], rowBlock/32)
	case ops.GELU, ops.Tanh:
		grid[0] = blocks(d[0]*d[1], 4*rowBlock)
	default:
		grid[0] = blocks(d[0], rowBlock/32)
	}
	return grid, general.Values(op)
}

// blocks is how many blocks take n things, so many each, at most as many as go on with more.
func blocks(n, each int64) int { return int(min(general.Parts(n, each), mostBlocks)) }

// tiles is the blocks of a product.
func tiles(rows, columns int64) gpuexec.Size {
	if rows <= few {
		return gpuexec.Size{blocks(rows, 8), blocks(columns, panel)}
	}
	return gpuexec.Size{blocks(rows, side), blocks(columns, side)}
}

// Prepare implements ops.Library.
func (backend) Prepare(op ops.Op) (ops.Prepared, error) {
	return general.Panels(op, panel, "cuda panels of 32")
}
