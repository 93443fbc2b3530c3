package devicetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// outside: E3: a length outside of 1 to what is stored counts as all of it in a
// batch_matmul, as no host reads what lies in a buffer.
func (d *desk) outside(t *testing.T) {
	op := ops.New(ops.BatchMatMul, 3, 2, 18, 18, 4)
	op.MaskK = true
	in := randomTensors(rand.New(rand.NewPCG(7, 8)), op)
	in.lengths = []int32{18, 18, 18}
	whole := d.run(t, op, in, false)
	for _, length := range []int32{0, -1, -18, 19, 24} {
		in.lengths = []int32{length, 18, 18} // of the first item: what lies behind it are the others' numbers
		sameBits(t, fmt.Sprintf("%s with the length %d", op, length), whole, d.run(t, op, in, false), func(i int) (int, bool) { return i, true })
	}
}

// epsilons: K4: a layernorm adds its own epsilon, though one program may serve all.
func (d *desk) epsilons(t *testing.T) {
	for _, epsilon := range []float32{0.5, 1e-12, 1e-3} {
		op := ops.New(ops.LayerNorm, 3, 21)
		op.Epsilon = epsilon
		d.compare(t, op, randomTensors(rand.New(rand.NewPCG(7, 9)), op))
	}
}

// edges: E8: rows and columns at the edges of tiles, of vectors and of what is done at once.
func (d *desk) edges(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 10))
	at := []int64{1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65}
	for _, n := range at {
		for _, m := range []int64{1, 8, 9, 65} {
			product := ops.New(ops.MatMul, m, 3, n)
			product.Bias = true
			scores := ops.New(ops.BatchMatMul, 1, 2, m, 3, n)
			scores.TransposeB, scores.Scale = true, -0.5
			mixed := ops.New(ops.BatchMatMul, 1, 2, m, at[int(m+n)%len(at)], n)
			for _, op := range []ops.Op{product, scores, mixed} {
				in := randomTensors(rnd, op)
				if in.lengths != nil {
					in.lengths = slices.Repeat([]int32{1 << 20}, len(in.lengths)) // all of it
				}
				d.compare(t, op, in)
			}
		}
	}
}
