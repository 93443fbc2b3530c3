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

// End gives the lease back. Ending it again, or ending a zero Lease, does nothing. It
// reports whether it was this call.
func (l *Lease[T]) End() bool {
	if l.end == nil || l.ended.Swap(true) {
		return false
	}
	l.end(l.value)
	return true
}

// Forget lets go of the value, for the one whose End reported true. Value is not to be
// called any more.
func (l *Lease[T]) Forget() {
	var none T
	l.value = none
}
