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
