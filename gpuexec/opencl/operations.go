package opencl

import (
	_ "embed"
	"strconv"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

//go:embed ops.cl
var operations string

//go:embed tiled.cl
var products string

var _ ops.Library = backend{}

// What ops.cl is written for.
const (
	panel      = 32  // columns of a tile
	eachUnit   = 32  // groups of a launch, for each unit of the device
	mostGroups = 512 // of a launch

	mostTiles = 1 << 15 // of a product in local memory, each way
	mostWidth = 1024    // of a head of an attention, whose sums a group keeps
)

// What tiled.cl is written for.
const (
	deep = 16 // numbers of k that are in local memory at a time
	each = 32 // numbers of out that an item makes
)

// side is that of the largest square of out that a group of a device of these limits can
// make; 0: of none.
func side(l gpuexec.Limits) int64 {
	for _, s := range [...]int64{64, 32} {
		items, local := int(s*s/each), 4*deep*(s+1+s)
		if items <= l.MaxItems && items <= l.MaxBlock[0] && local <= l.MaxLocal {
			return s
		}
	}
	return 0
}

// variant is what the source of an operation depends on.
type variant struct {
	op   ops.Op // with its flags alone
	side int64  // of the tiles of a product in local memory; 0: as ops.cl has it
}

func (b backend) variant(op ops.Op) variant {
	v := variant{op: general.Program(op)}
	if op.Kind == ops.MatMul || op.Kind == ops.BatchMatMul {
		v.side = b.side()
	}
	return v
}

// source is what a variant is compiled from, whatever the dimensions.
func (v variant) source() (gpuexec.Source, error) {
	code := general.Code(v.op, Language, operations)
	code.Options, code.Block = []string{"-cl-std=CL1.2", "-w"}, gpuexec.Size{1} // PoCL would print warnings where there is no AVX-512
	if v.side > 0 {
		code.Text, code.Block = products, gpuexec.Size{int(v.side * v.side / each)}
		code.Defines["TILE"] = strconv.FormatInt(v.side, 10)
	}
	return code.Source(general.Params(v.op, panel)...)
}

var sources general.Sources // by variant

// Source implements ops.Library. One program serves every shape of a kind and its flags.
// The source is to be read only.
func (b backend) Source(op ops.Op) (gpuexec.Source, error) {
	if err := general.Check(op, panel); err != nil {
		return gpuexec.Source{}, err
	}
	if op.Kind == ops.Attention && op.Dims[2] > mostWidth {
		return gpuexec.Source{}, failure("source", fault.ErrUnsupported, "%s: a head of at most %d numbers", op, mostWidth)
	}
	v := b.variant(op)
	return sources.Of(v, v.source)
}

// Launch implements ops.Library. A program has one grid for every shape, whose groups share
// the work: PoCL before version 6 cannot run it in two grids at once (see grids), and callers of
// several shapes would wait for each other. Products in tiles of local memory are for other drivers.
func (b backend) Launch(op ops.Op) (gpuexec.Size, []gpuexec.Arg) {
	d, side := op.Dims, b.variant(op).side
	tiles := func(n int64) int { return min(int(general.Parts(n, side)), mostTiles) }
	grid := gpuexec.Size{min(eachUnit*b.units(), mostGroups)}
	switch {
	case op.Kind == ops.MatMul && side > 0:
		grid = gpuexec.Size{tiles(d[0]), tiles(d[2]), 1}
	case op.Kind == ops.BatchMatMul && side > 0:
		grid = gpuexec.Size{tiles(d[2]), tiles(d[4]), int(min(d[0]*d[1], mostGroups))}
	}
	return grid, general.Values(op)
}

// Prepare implements ops.Library.
func (backend) Prepare(op ops.Op) (ops.Prepared, error) {
	return general.Panels(op, panel, "opencl panels of 32")
}
