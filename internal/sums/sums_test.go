package sums

import (
	"math"
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
