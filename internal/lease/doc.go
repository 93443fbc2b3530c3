// Package lease counts the uses of values, so that each is freed exactly once,
// after its last use, and off the turn of an actor.
//
// A Cell counts the pins on one value: one for the cache that holds it, one for
// each lease or reference. A Lease is one such pin in the hands of a user, who
// ends it as often as he likes. A Bin frees what has lost its last pin where
// freeing would be wrong: in a turn or under a lock. A Claim says whether a value is still
// found by its key when its cache has let go of it.
//
// A room's own Lease, the type that its users see, holds a Lease of this package
// and adds what a user may ask of the value.
package lease
