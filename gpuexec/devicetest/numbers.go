package devicetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// lengths: E3: a length below 0 or above what is stored counts as all of it, as no host
// reads what lies in a buffer; with one of 0 softmax and a masked sum give 0.
func (d *desk) lengths(t *testing.T) {
	mixed := ops.New(ops.BatchMatMul, 8, 2, 5, 17, 7)
	mixed.MaskK = true
	square := ops.New(ops.BatchMatMul, 8, 2, 17, 17, 7)
	square.MaskK = true
	rnd := rand.New(rand.NewPCG(7, 8))
	for _, op := range []ops.Op{mixed, square, ops.New(ops.BatchMatMul, 8, 2, 5, 7, 17), ops.New(ops.BatchMatMul, 8, 2, 17, 7, 17),
		ops.New(ops.Softmax, 8, 2, 5, 17), ops.New(ops.Softmax, 8, 2, 17, 17)} {
		in := randomTensors(rnd, op)
		in.lengths = []int32{0, -1, 1, 16, 17, 18, math.MaxInt32, math.MinInt32}
		d.compare(t, op, in)
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

// small: E3: a launch whose tensor is an element short of what the operation says is
// refused before the driver sees it, in whatever way the program gets its dimensions.
func (d *desk) small(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 11))
	biased := ops.New(ops.MatMul, 9, 5, 33)
	biased.Bias = true
	for _, op := range append(randomOps(rnd), biased, ops.New(ops.MatMul, 9, 5, 33)) {
		l, held := d.launch(t, op, randomTensors(rnd, op), false)
		before := d.e.Stats().Launches
		for i, b := range held {
			short := l
			short.Args = slices.Clone(l.Args)
			short.Args[i] = gpuexec.PartArg(b, 0, b.Bytes()-4)
			want := fmt.Sprintf("argument %d has %d bytes, want at least %d", i, b.Bytes()-4, b.Bytes())
			if err := d.e.Submit(background, short); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want ErrInvalid: %s", op, err, want)
			}
		}
		if d.e.Stats().Launches != before {
			t.Errorf("%s: a launch of too small a tensor reached the driver", op)
		}
		if err := d.e.Submit(background, l); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		releaseAll(held)
	}
}
