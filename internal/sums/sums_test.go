package sums

import (
	"math"
	"sync"
	"testing"
	"time"
)

// Q5: no sum of sizes or costs wraps, and one that did not fit is right again when
// enough is taken off.
func TestSums(t *testing.T) {
	const most = math.MaxInt64
	for _, c := range [][3]int64{{0, 0, 0}, {1, 2, 3}, {most, 0, most}, {0, most, most}, {most - 1, 1, most}, {most, 1, most}, {most, most, most}, {5, -3, 2}, {most, -most, 0}} {
		if got := Add(c[0], c[1]); got != c[2] {
			t.Errorf("%d + %d = %d, want %d", c[0], c[1], got, c[2])
		}
	}
	var s Sum[time.Duration]
	for range 5 {
		s.Add(most)
	}
	s.Add(7)
	if got := s.Value(); got != most {
		t.Errorf("the sum is %d, want the largest", got)
	}
	for range 5 {
		s.Sub(most)
	}
	if got := s.Value(); got != 7 {
		t.Errorf("what is left is %d, want 7", got)
	}
}

// Q5: a total that many add to is right again when enough is taken off, and where that
// comes before what it is taken off from.
func TestTotal(t *testing.T) {
	const most = math.MaxInt64
	var s Total
	for _, n := range []int64{most, 1, most, most, 7, -9} {
		if got := s.Add(n); got != most {
			t.Errorf("with %d it is %d, want the largest", n, got)
		}
	}
	for _, n := range []int64{-most, -most} {
		s.Add(n)
	}
	if got := s.Add(-most); got != -1 {
		t.Errorf("what is left is %d, want -1", got)
	}
	s.Add(math.MinInt64)
	if got := s.Add(math.MinInt64); got != math.MinInt64 {
		t.Errorf("it is %d, want the smallest", got)
	}
	s.Add(most)
	if got := s.Add(most); got != -3 {
		t.Errorf("it is %d, want -3", got)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				s.Add(most)
				s.Add(-most)
			}
		})
	}
	wg.Wait()
	if got := s.Add(3); got != 0 {
		t.Errorf("after all it is %d, want 0", got)
	}
}
