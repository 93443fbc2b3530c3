package gemm

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// E8: what other goroutines compute at the same time has no part in a product, of
// which slices are copied.
func TestSlicesAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		var users sync.WaitGroup
		for user := range 6 {
			p := newProduct(t, s, rand.New(rand.NewPCG(7, uint64(user))), 40, 8*s.width, 3*depth, true)
			p.LDA = 4 * depth // rows collide
			p.A = random(rand.New(rand.NewPCG(9, uint64(user))), 40*p.LDA)
			p.run(t, s)
			alone := slices.Clone(p.C)
			users.Go(func() {
				for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
					if err := s.Run(&p.Args, 0, s.Blocks(p.M, p.N, p.K)); err != nil {
						t.Error(err)
						return
					}
					if !slices.EqualFunc(p.C, alone, same) {
						t.Error("other bits in company than alone")
						return
					}
				}
			})
		}
		users.Wait()
	})
}

// Copies of slices have room for every block, also for one whose rows were rounded up to
// whole tiles.
func TestSlicesOfManyRows(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		for _, rows := range []int{rowsMost - 1, rowsMost, rowsMost + 1, 2 * rowsMost, 5 * rowsMost} {
			rng := rand.New(rand.NewPCG(8, uint64(rows)))
			p := newProduct(t, s, rng, rows, 8*s.width, depth+1, true)
			p.LDA = 4 * depth // rows collide
			p.A = random(rng, rows*p.LDA)
			p.run(t, s)
			all := slices.Clone(p.C)
			last := p.Args
			last.M, last.A, last.C = 1, p.A[(rows-1)*p.LDA:], make([]float32, p.LDC)
			if err := s.Run(&last, 0, s.Blocks(1, p.N, p.K)); err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(last.C[:p.N], all[(rows-1)*p.LDC:][:p.N], same) {
				t.Errorf("%d rows: the last has other bits alone", rows)
			}
		}
	})
}

// E4: a call of a kernel lasts at most 0.1 ms at 60 GFLOP/s, which AVX2 has at 2 GHz.
func TestCallsAreShort(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		if s.kind == generic { // Go can preempt it
			return
		}
		for m := 1; m <= 3*rowsMost; m++ {
			for k := 1; k <= 4500; k += 17 {
				rows := s.gridOf(m, 8*s.width, k).blockRows
				values := min(k, s.inPlace)
				switch {
				case s.step(rows) > 1:
					rows, values = s.maxRows, depthSideBySide/2
				case s.deep(k):
					values = even(k, s.inPlace)
				}
				if !s.runs {
					rows = min(rows, s.maxRows)
				}
				if flops := 2 * rows * s.width * values; flops > 6e6 {
					t.Fatalf("%d x %d: %d rows of %d values make %d operations", m, k, rows, values, flops)
				}
			}
		}
	})
}
