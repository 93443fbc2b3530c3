package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// E8: NaN, Inf and numbers that overflow in one sequence, or in one head, change no bit of
// another, with every instruction set and widths that fill no panel.
func TestAttentionKeepsSequencesApart(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		rnd := rand.New(rand.NewPCG(1, 4))
		for _, width := range []int64{1, 7, 8, 32, 513} {
			const heads, sequences = 3, 4
			starts := []int32{0, 5, 5, 38, 41}
			op := ops.New(ops.Attention, 41, heads, width, sequences)
			op.Scale = 0.3
			l := newLaunchedOn(t, b, op)
			copy(view(l.args[3]), gpuexec.BytesOf(starts))
			var clean [3][]float32
			for i := range clean {
				list := l.floats(i)
				for j := range list {
					list[j] = float32(rnd.NormFloat64())
				}
				clean[i] = slices.Clone(list)
			}
			all := heads * int(width)
			out := l.floats(4)[:41*all]
			if err := l.run(t, heads*sequences); err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(out)
			for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32} {
				for sequence := range sequences {
					head := sequence % heads
					for i := range clean {
						copy(l.floats(i), clean[i])
						for token := starts[sequence]; token < starts[sequence+1]; token++ {
							for j := range int(width) {
								l.floats(i)[int(token)*all+head*int(width)+j] = bad
							}
						}
					}
					if err := l.run(t, heads*sequences); err != nil {
						t.Fatal(err)
					}
					for i, v := range out {
						token := int32(i / all)
						own := token >= starts[sequence] && token < starts[sequence+1] && i%all/int(width) == head
						if !own && math.Float32bits(v) != math.Float32bits(want[i]) {
							t.Fatalf("width %d, %v in sequence %d, head %d: number %d is %v, was %v", width, bad, sequence, head, i, v, want[i])
						}
						if own && bad != math.MaxFloat32 && v == v {
							t.Fatalf("width %d: %v gave %v", width, bad, v)
						}
					}
				}
			}
		}
	})
}
