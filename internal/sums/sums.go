// Package sums adds sizes and costs so that no sum wraps (SPEC Q5).
package sums

import (
	"math"
	"math/bits"
	"sync/atomic"
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

// Total is a Sum for many goroutines, in which what is taken off need not have been added
// yet. It is exact once nobody adds. The zero Total is 0. Safe for concurrent use.
type Total struct {
	high atomic.Int64 // how often low wrapped
	low  atomic.Uint64
}

// Add adds n, or takes it off where it is negative, and gives Load.
func (t *Total) Add(n int64) int64 {
	now := t.low.Add(uint64(n))
	before := now - uint64(n)
	switch {
	case n > 0 && now < before:
		t.high.Add(1)
	case n < 0 && now > before:
		t.high.Add(-1)
	}
	return t.Load()
}

// Load is the sum, or the largest or smallest number there is.
func (t *Total) Load() int64 {
	high, low := t.high.Load(), t.low.Load()
	switch {
	case high >= 0 && (high > 0 || low > math.MaxInt64):
		return math.MaxInt64
	case high < 0 && (high < -1 || low <= math.MaxInt64):
		return math.MinInt64
	}
	return int64(low)
}
