package gemm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// apart is the set with a call for each tile.
func (s *Set) apart() *Set {
	one := *s
	one.runs = false
	return &one
}

// E8: tiles that one call computes, one below another, have the bits that they have call by
// call; nothing between the rows of C is written.
func TestRuns(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		if !s.runs { // each tile has a call of its own
			return
		}
		rng := rand.New(rand.NewPCG(17, 18))
		for rows := s.maxRows + 1; rows <= 8*s.maxRows; rows++ {
			for _, k := range []int{0, 1, 7, 32, depth + 9} { // the last goes on from C
				p := newProduct(t, s, rng, rows, 2*s.width-rows%2, k, k != 7) // the last panel is ragged or not
				p.run(t, s)
				runs := slices.Clone(p.C)
				for i := range p.C {
					p.C[i] = 7
				}
				p.run(t, s.apart())
				if !slices.EqualFunc(runs, p.C, same) {
					t.Errorf("%d rows of %d: other bits than tile by tile", rows, k)
				}
			}
		}
	})
}

// A call for many tiles leaves out what each call costs. Both ways have the quickest of many
// turns; of short tiles the calls are a third.
func TestRunsSaveCalls(t *testing.T) {
	each(t, func(t *testing.T, s *Set) {
		if !s.runs { // each tile has a call of its own
			return
		}
		p := newProduct(t, s, rand.New(rand.NewPCG(19, 20)), rowsMost, s.width, 4, true)
		took := [2]time.Duration{time.Hour, time.Hour}
		for range 400 {
			for i, way := range []*Set{s, s.apart()} {
				began := time.Now()
				p.run(t, way)
				took[i] = min(took[i], time.Since(began))
			}
		}
		if 10*took[0] > 9*took[1] {
			t.Errorf("%v with one call for all tiles, %v with one for each", took[0], took[1])
		}
	})
}
