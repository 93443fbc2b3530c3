// Package shapegroups holds what is known of shapes: the comparable Shape that
// names a group, the bucketing that maps an asked shape to the compiled one,
// and the order in which waiting requests are best served.
//
// Package advice replays a recorded stream of shapes and says what it would gain by
// another policy, capacity or bucketing.
//
// Everything here is pure: no goroutine, clock, log or channel. A Shape, a
// Bucketing and every function are safe for concurrent use; a Queue belongs to
// one goroutine. Bad input is a *fault.Error that unwraps to ErrInvalid and
// says what would be right.
package shapegroups
