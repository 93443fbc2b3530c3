package gemm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// E8: each number's bits are those of its definition with every set, at any place.
func TestGELU(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(8, 9))
		special := []float32{0, float32(math.Copysign(0, -1)), 6, -6, 5.999999, -7, 1e30, -1e30, 1e-40, float32(math.NaN()),
			float32(math.Inf(1)), float32(math.Inf(-1)), 2, -2}
		for _, n := range []int{0, 1, 7, 8, 9, 15, 16, 17, 33, 1000, callFloats + 100} {
			x := random(rng, n)
			for i := range x {
				if x[i] *= 3; i%5 == 0 {
					x[i] = special[rng.IntN(len(special))]
				}
			}
			got := slices.Repeat([]float32{7}, n+1)
			if err := s.GELU(got[:n], x); err != nil {
				t.Fatal(err)
			}
			again := slices.Clone(x)
			if err := s.GELU(again, again); err != nil || got[n] != 7 {
				t.Fatalf("%v, behind the last is %v", err, got[n])
			}
			for i, v := range x {
				want := gelu(v)
				exact := float64(v) / 2 * (1 + math.Erf(float64(v)/math.Sqrt2))
				switch {
				case !same(got[i], want) || !same(again[i], want):
					t.Fatalf("gelu(%v) is %v, in place %v, want %v", v, got[i], again[i], want)
				case math.Abs(float64(v)) < 1e30 && math.Abs(float64(want)-exact) > 4e-7+1e-7*math.Abs(exact):
					t.Fatalf("gelu(%v) is %v, want %v", v, want, exact)
				}
			}
		}
	})
}

func BenchmarkGELU(b *testing.B) {
	for _, s := range Sets() {
		b.Run(s.Name(), func(b *testing.B) {
			x := random(rand.New(rand.NewPCG(8, 9)), 14*1536)
			dst := make([]float32, len(x))
			for b.Loop() {
				_ = s.GELU(dst, x)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(x)), "ns/element")
		})
	}
}
