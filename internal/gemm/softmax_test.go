package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// E8: a row's bits are those of its definition with every set, whatever rows are beside
// it and whatever lies behind them; nothing else is written.
func TestSoftmax(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		rng := rand.New(rand.NewPCG(3, 4))
		for _, n := range []int{1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 63, 64, 100, 512, 1000, callFloats / 3, callFloats + 1} {
			count, stride := 1+rng.IntN(5), s.Padded(n)+rng.IntN(3)
			x := random(rng, (count-1)*stride+s.Padded(n)+1)
			for i := range x {
				x[i] *= 30
			}
			want := make([][]float32, count)
			for r := range count {
				row := x[r*stride:]
				for i := n; i < s.Padded(n); i++ {
					row[i] = float32(math.Inf(-1))
				}
				want[r] = append(want[r], row[:n]...)
				softmaxGeneric(want[r])
			}
			before := append([]float32(nil), x...)
			if err := s.Softmax(x[:len(x)-1], count, stride, n); err != nil {
				t.Fatal(err)
			}
			for i := range x {
				r, j := i/stride, i%stride
				switch {
				case i < len(x)-1 && j < n && !same(x[i], want[r][j]):
					t.Fatalf("%d rows of %d: number %d of row %d is %v, want %v", count, n, j, r, x[i], want[r][j])
				case (i == len(x)-1 || j >= s.Padded(n)) && !same(x[i], before[i]):
					t.Fatalf("%d rows of %d: number %d of row %d was written", count, n, j, r)
				}
			}
		}
	})
}

func BenchmarkSoftmax(b *testing.B) {
	for _, n := range []int{14, 32, 128, 512} {
		for _, s := range Sets() {
			b.Run(fmt.Sprint(s.Name(), "/", n), func(b *testing.B) {
				x := random(rand.New(rand.NewPCG(3, 4)), 14*s.Padded(n))
				for b.Loop() {
					_ = s.Softmax(x, 14, s.Padded(n), n)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/14/float64(n), "ns/element")
			})
		}
	}
}
