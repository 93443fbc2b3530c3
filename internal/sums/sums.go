// Package sums adds sizes and costs so that no sum wraps (SPEC Q5). Pure.
package sums

import (
	"math"
	"math/bits"
)

// Add is a + b, or the largest number there is. a is at least 0.
func Add[T ~int64](a, b T) T {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Sum is the sum of what was added and not taken off again. It is exact: only what
// Value gives saturates. The zero Sum is 0.
type Sum[T ~int64] struct{ high, low uint64 }

// Add adds n, of at least 0; Sub takes off what was added before.
func (s *Sum[T]) Add(n T) {
	var carry uint64
	s.low, carry = bits.Add64(s.low, uint64(n), 0)
	s.high += carry
}

func (s *Sum[T]) Sub(n T) {
	var borrow uint64
	s.low, borrow = bits.Sub64(s.low, uint64(n), 0)
	s.high -= borrow
}

// Value is the sum, or the largest number there is.
func (s Sum[T]) Value() T {
	if s.high > 0 || s.low > math.MaxInt64 {
		return math.MaxInt64
	}
	return T(s.low)
}
