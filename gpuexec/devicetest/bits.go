package devicetest

import (
	"math/rand/v2"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// bits: E8: what a row gives does not depend on the rows beside it, nor what a
// request gives on the padding behind it.
func (d *desk) bits(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		for _, op := range randomOps(rnd) {
			switch op.Kind {
			case ops.MatMul, ops.LayerNorm, ops.GELU, ops.Tanh:
				d.alone(t, rnd, op)
			case ops.Softmax, ops.BatchMatMul:
				d.padded(t, rnd, op)
			}
		}
	}
}

// alone runs some rows of an operation by themselves.
func (d *desk) alone(t *testing.T, rnd *rand.Rand, op ops.Op) {
	t.Helper()
	in := randomTensors(rnd, op)
	rows, width := op.Dims[0], op.Dims[1]
	outWidth := op.Elements() / rows
	from := rnd.Int64N(rows)
	part := op
	part.Dims[0] = 1 + rnd.Int64N(rows-from)
	few := tensors{floats: append([][]float32{in.floats[0][from*width : (from+part.Dims[0])*width]}, in.floats[1:]...)}
	sameBits(t, op.String()+" and some rows of it", d.run(t, part, few, false), d.run(t, op, in, false),
		func(i int) (int, bool) { return int(from*outWidth) + i, true })
}

// padded runs one request of a batch with exactly its tokens.
func (d *desk) padded(t *testing.T, rnd *rand.Rand, op ops.Op) {
	t.Helper()
	in := randomTensors(rnd, op)
	item := rnd.Int64N(op.Dims[0])
	length := int64(in.lengths[item])
	exact := op
	exact.Dims[0] = 1
	few := tensors{lengths: []int32{int32(length)}}
	heads := op.Dims[1]
	var columns, stored int64 // of the output
	cut := func(list []float32, rows, width, keepRows, keepWidth int64) []float32 {
		var out []float32
		for block := item * heads; block < (item+1)*heads; block++ {
			for row := range keepRows {
				at := (block*rows + row) * width
				out = append(out, list[at:at+keepWidth]...)
			}
		}
		return out
	}
	tokens := op.Dims[2]
	switch {
	case op.Kind == ops.Softmax:
		exact.Dims[2], exact.Dims[3] = length, length
		few.floats = [][]float32{cut(in.floats[0], tokens, tokens, length, length)}
		columns, stored = length, tokens
	case op.MaskK:
		width := op.Dims[4]
		exact.Dims[2], exact.Dims[3] = length, length
		few.floats = [][]float32{cut(in.floats[0], tokens, tokens, length, length), cut(in.floats[1], tokens, width, length, width)}
		columns, stored = width, width
	default:
		width := op.Dims[3]
		exact.Dims[2], exact.Dims[4] = length, length
		few.floats = [][]float32{cut(in.floats[0], tokens, width, length, width), cut(in.floats[1], tokens, width, length, width)}
		columns, stored = length, tokens
	}
	sameBits(t, exact.String()+" and padded as "+op.String(), d.run(t, exact, few, false), d.run(t, op, in, false), func(i int) (int, bool) {
		at := int64(i)
		column, row, head := at%columns, at/columns%length, at/columns/length
		return int(((item*heads+head)*tokens+row)*stored + column), true
	})
}
