package gemm

import (
	"math/rand/v2"
	"testing"
)

// E8: keys are packed as any matrix is, times the scale, with zeros behind them.
func TestPackKeys(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		if s.halves {
			return // see TestHalvesOfEverySet
		}
		rng := rand.New(rand.NewPCG(5, 6))
		for _, k := range []int{0, 1, 7, 8, 16, 32, 33, 64, 72, 136} {
			for _, n := range []int{0, 1, 5, 7, 8, 9, 15, 16, 17, 23, 25, 31, 32, 33, 40, 63, 64, 70} {
				stride := k + rng.IntN(4)
				rows := random(rng, max(0, (n-1)*stride+k))
				want, got := make([]float32, s.PackedLen(k, n)), random(rng, s.PackedLen(k, n))
				if n > 0 && k > 0 {
					if err := s.PackStrided(want, rows, k, n, 1, stride); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.PackKeys(got, rows, k, n, stride, -0.3); err != nil {
					t.Fatal(err)
				}
				for i := range want {
					if v := want[i] * -0.3; got[i] != v {
						t.Fatalf("%d rows of %d: number %d is %v, want %v", n, k, i, got[i], v)
					}
				}
			}
		}
	})
}
