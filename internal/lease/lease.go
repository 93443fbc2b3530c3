package lease

import "sync/atomic"

// Lease is the right to use one value until End. It stands for one pin. Safe for
// concurrent use, but Value is not to be called beside or after the last End.
type Lease[T any] struct {
	value T
	end   func(T)
	ended atomic.Bool
}

// Init makes a zero Lease one on value. end, called once by End, takes back the
// pin that the lease stands for; a function that serves all leases of a room
// costs no allocation.
func (l *Lease[T]) Init(value T, end func(T)) { l.value, l.end = value, end }

// Value is what the lease is on.
func (l *Lease[T]) Value() T { return l.value }

// Ended reports whether End was called.
func (l *Lease[T]) Ended() bool { return l.ended.Load() }

// End gives the lease back. Ending it again, or ending a zero Lease, does nothing.
func (l *Lease[T]) End() {
	if l.end != nil && !l.ended.Swap(true) {
		l.end(l.value)
	}
}
