package devicetest

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// ragged is an attention over sequences of these lengths.
func ragged(lengths []int, heads, width int64) (ops.Op, []int32) {
	starts := []int32{0}
	for _, n := range lengths {
		starts = append(starts, starts[len(starts)-1]+int32(n))
	}
	op := ops.New(ops.Attention, int64(starts[len(lengths)]), heads, width, int64(len(lengths)))
	op.Scale = 0.25
	return op, starts
}

// attention: sequences of any lengths in one batch, each by itself.
func (d *desk) attention(t *testing.T) {
	if _, err := d.lib.Source(ops.New(ops.Attention, 1, 1, 1, 1)); errors.Is(err, fault.ErrUnsupported) {
		t.Skip(err)
	}
	rnd := rand.New(rand.NewPCG(7, 11))
	op, starts := ragged([]int{30, 1, 70}, 2, 32)
	in := randomTensors(rnd, op)
	in.lengths = starts
	d.workers(t, op, in)
	batches := [][]int{{128, 3, 512, 14}, {0, 5, 0, 0, 33, 0}, slices.Repeat([]int{1}, 300)}
	for n := 1; n <= 70; n += 5 {
		batches = append(batches, []int{n, n + 1, n + 2, n + 3, n + 4})
	}
	for i, lengths := range batches {
		op, starts := ragged(lengths, 1+int64(i)%2, []int64{8, 7, 32, 1, 33, 72, 16, 250}[i%8])
		in := randomTensors(rnd, op)
		in.lengths = starts
		d.compare(t, op, in)
	}
	d.anywhere(t, rnd)
	d.splits(t)
	d.starts(t, rnd)
}

// anywhere: E8: a sequence has the same bits alone, and at any place of any batch.
func (d *desk) anywhere(t *testing.T, rnd *rand.Rand) {
	const heads, width = 2, 32
	for _, n := range []int{1, 3, 8, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200} {
		alone, starts := ragged([]int{n}, heads, width)
		in := randomTensors(rnd, alone)
		in.lengths = starts
		want := d.run(t, alone, in, false)
		for range 2 {
			lengths := make([]int, 1+rnd.IntN(5))
			for i := range lengths {
				lengths[i] = rnd.IntN(80)
			}
			place := rnd.IntN(len(lengths))
			lengths[place] = n
			op, starts := ragged(lengths, heads, width)
			many := randomTensors(rnd, op)
			many.lengths = starts
			first := int(starts[place]) * heads * width
			for i, list := range in.floats {
				copy(many.floats[i][first:], list)
			}
			sameBits(t, alone.String()+" and within "+op.String(), want, d.run(t, op, many, false),
				func(i int) (int, bool) { return first + i, true })
		}
	}
}

// splits: E7, K1: one program serves every split of any number of tokens.
func (d *desk) splits(t *testing.T) {
	one, _ := ragged([]int{5}, 2, 32)
	other, _ := ragged([]int{7, 40, 3}, 2, 32)
	a, errA := d.lib.Source(one)
	b, errB := d.lib.Source(other)
	if errA != nil || errB != nil || a.Key != b.Key {
		t.Errorf("%s and %s are programs %s and %s (%v, %v), want one", one, other, a.Key, b.Key, errA, errB)
	}
}

// starts: E3: a list of starts that is none is refused, or gives rows that mean nothing;
// the next launch is right again.
func (d *desk) starts(t *testing.T, rnd *rand.Rand) {
	op, right := ragged([]int{7, 40, 3}, 2, 32)
	in := randomTensors(rnd, op)
	for _, wrong := range [][]int32{{0, 7, 47, 51}, {0, 7, 47, 49}, {1, 7, 47, 50}, {0, 48, 47, 50}, {0, -1, 47, 50}, {-1, 7, 47, 50},
		{50, 0, 0, 50}, {0, math.MaxInt32, math.MinInt32, 50}, {math.MinInt32, math.MaxInt32, math.MinInt32, math.MaxInt32}, {0, 0, 0, 0}} {
		in.lengths = wrong
		if _, err := d.try(t, op, in, false); err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("starts %v: %v, want ErrInvalid or none", wrong, err)
		}
	}
	in.lengths = right
	d.compare(t, op, in)
}
