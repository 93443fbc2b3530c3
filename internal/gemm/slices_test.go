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
			p := newProduct(t, s, rand.New(rand.NewPCG(8, uint64(rows))), rows, 8*s.width, 2*depth+1, true)
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
