package vulkan

import (
	"embed"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

var _ ops.Library = (*Backend)(nil)

// modules are those of the shaders beside them, each for every shape: `make shaders`.
//
//go:embed shaders/*.spv
var modules embed.FS

// Sizes that the shaders have, too.
const (
	panel  = 128 // columns of a weight's panel
	side   = 64  // rows and columns that a group of matmul makes
	corner = 4   // rows and columns that an item of batch_matmul makes
	items  = 64  // of a group, but for matmul
	lanes  = 8   // items of a group on a processor, where they wait for each other
	tall   = 8   // rows that a group of matmul_wide, and one of batch_matmul_wide, makes
	broad  = 32  // columns that these make, rows of batch_matmul_rows, and most of a head of attention_wide without its flag
)

const (
	mostBlocks = 65535   // in one dimension of a grid, on any device
	mostWidth  = 256     // of a head of an attention: 32 for each item
	wideHead   = 64      // of one of attention_wide
	mostTerms  = 1 << 16 // of a sum: Mesa's llvmpipe ends loops after 65,535 turns (grid.glsl)
)

// shader is a module with the flags and the size of groups that it is compiled for.
type shader struct {
	module string
	flags  [2]bool // the specialisation constants from 1 on
	has    int     // of these
	items  int
}

var sources general.Sources // by shader

// wide reports whether an operation is for a shader that reads texels, of 4 elements. What
// it depends on is a model's, not a request's: another length has the same program.
func (b *Backend) wide(op ops.Op) bool {
	d := op.Dims
	switch op.Kind {
	case ops.MatMul:
		return d[1]%4 == 0 && b.processor()
	case ops.BatchMatMul:
		return (op.TransposeB && d[3]%4 == 0 || !op.TransposeB && d[4]%4 == 0) && b.processor()
	case ops.Attention:
		return d[2]%4 == 0 && d[2] <= wideHead && b.processor()
	}
	return false
}

func (b *Backend) shader(op ops.Op) shader {
	s := shader{module: op.Kind.String(), items: items}
	switch op.Kind {
	case ops.LayerNorm, ops.Attention:
		if b.processor() {
			s.items = lanes
		}
		if op.Kind == ops.Attention && b.wide(op) {
			s.module, s.flags, s.has = "attention_wide", [2]bool{op.Dims[2] > broad}, 1
		}
	case ops.Softmax:
		if b.processor() {
			s.module, s.items = "softmax_rows", lanes
		}
	case ops.MatMul:
		if s.items = 128; b.wide(op) {
			s.module, s.items = "matmul_wide", lanes
		}
		if op.Bias {
			s.module += "_bias"
		}
	case ops.BatchMatMul:
		if s.flags, s.has = [2]bool{op.TransposeB, op.MaskK}, 2; b.wide(op) {
			s = shader{module: "batch_matmul_rows", flags: [2]bool{op.MaskK}, has: 1, items: lanes}
			if op.TransposeB {
				s.module = "batch_matmul_wide"
			}
		}
	case ops.GELU, ops.Tanh:
		s.module, s.flags, s.has = "unary", [2]bool{op.Kind == ops.Tanh}, 1
	}
	return s
}

// Source implements ops.Library. Operations that differ in their dimensions, epsilon and
// scale alone have equal sources, but that on a processor some depend on k, n or the width:
// see wide. They are to be read only.
func (b *Backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Check(op, panel); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Kind == ops.Attention && op.Dims[2] > mostWidth {
		return gpuexec.Source{}, &fault.Error{Op: "ops: source", Key: op.String(), Backend: Name,
			Err: fmt.Errorf("%w: a head of %d numbers, want at most %d", fault.ErrUnsupported, op.Dims[2], mostWidth)}
	}
	if n := terms(op); n > mostTerms {
		return gpuexec.Source{}, &fault.Error{Op: "ops: source", Key: op.String(), Backend: Name,
			Err: fmt.Errorf("%w: sums of %d terms, want at most %d", fault.ErrUnsupported, n, mostTerms)}
	}
	s := b.shader(op)
	return sources.Of(s, func() (gpuexec.Source, error) { return s.source(op) })
}

// source is what the shader is compiled from for an operation, whatever its dimensions.
func (s shader) source(op ops.Op) (gpuexec.Source, error) {
	module, err := modules.ReadFile("shaders/" + s.module + ".spv")
	if err != nil {
		return gpuexec.Source{}, err
	}
	code := gpuexec.Code{Language: SPIRV, Entry: "main", Text: string(module), Constants: make(map[uint32][]byte), Block: gpuexec.Size{s.items}}
	for i, set := range s.flags[:s.has] {
		value := uint32(0)
		if set {
			value = 1
		}
		code.Constants[uint32(1+i)] = gpuexec.BytesOf([]uint32{value})
	}
	source, err := code.Source(params(op)...)
	source.Name = s.module
	return source, err
}

// params are the operation's, of whose tensors the last is the output.
func params(op ops.Op) []gpuexec.Param {
	all := general.Params(op, panel)
	last := len(general.Elements(op, panel)) - 1
	for i := range last {
		all[i].ReadOnly = true
	}
	all[last].WriteOnly = true
	return all
}

// terms is how many numbers an operation adds up for one.
func terms(op ops.Op) int64 {
	switch op.Kind {
	case ops.LayerNorm, ops.MatMul:
		return op.Dims[1]
	case ops.BatchMatMul, ops.Softmax:
		return op.Dims[3]
	case ops.Attention: // no more turns than that on 8 items, all loops together
		return 3 * op.Dims[0] * general.Parts(op.Dims[2], 32)
	}
	return 1
}

// Launch implements ops.Library.
func (b *Backend) Launch(op ops.Op) (grid gpuexec.Size, values []gpuexec.Arg) {
	d, size := op.Dims, int64(b.shader(op).items)
	var blocks int64
	switch op.Kind {
	case ops.MatMul:
		blocks = general.Parts(d[0], side) * general.Parts(d[2], side)
		if b.wide(op) {
			blocks = general.Parts(d[0], tall) * general.Parts(d[2], panel)
		}
	case ops.BatchMatMul:
		blocks = general.Parts(d[0]*d[1]*general.Parts(d[2], corner)*general.Parts(d[4], corner), size)
		if b.wide(op) {
			rows := int64(broad)
			if op.TransposeB {
				rows = tall
			}
			blocks = d[0] * d[1] * general.Parts(d[2], rows) * general.Parts(d[4], broad)
		}
	case ops.LayerNorm:
		blocks = d[0]
	case ops.Softmax:
		if blocks = d[0] * d[1] * d[2]; b.processor() {
			blocks = general.Parts(blocks, size)
		}
	case ops.Attention:
		if blocks = d[0] * d[1]; b.wide(op) {
			blocks = general.Parts(d[0], size) * d[1]
		}
	default:
		blocks = general.Parts(op.Elements(), size)
	}
	return gpuexec.Size{int(min(blocks, mostBlocks)), int(general.Parts(blocks, mostBlocks))}, general.Values(op)
}

// Prepare implements ops.Library: weights are in panels.
func (b *Backend) Prepare(op ops.Op) (ops.Prepared, error) {
	return general.Panels(op, panel, "panels of 128 columns")
}
