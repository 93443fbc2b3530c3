// Package flight is one computation in progress for a key, and those who wait
// for it. It serves every room: a room keeps the map from keys to flights (at
// most one a key, SPEC F1), this package keeps the waiting, the leaving, the
// cancellation and the detection of circles.
//
// # Life of a flight
//
// A room makes a flight for a key (New), enters it in its map, and has the
// creator run on a goroutine of its own with Context. Everybody who wants the
// value joins (Join; the one who caused the flight by Start) and waits (Wait).
// Finish, called once, wakes them. When the last of them leaves before that,
// the flight is deserted: its context ends and it takes no new waiters; who
// comes then waits for its end (WaitEnd) and starts another.
//
// INVARIANT: a value given to Finish is released by its release function only
// after every waiter has been through Wait's take, so that taking a lease
// cannot fail, whatever was evicted meanwhile.
//
// # Circles
//
// The context of a flight carries its identity. A wait under a context with an
// identity is an edge of one process-wide graph, whichever rooms the two ends
// belong to; the wait that would close a circle is answered with ErrCycle
// (SPEC F5). Callers without an identity cost nothing.
package flight
