// Package constants is the cache of constant tensors: weights packed, reordered
// or folded for a device are prepared once a process and shared by everybody
// who computes with them, within the device's budget (SPEC section 7).
//
// A Cache has one Engine for each engine kind, device index and context. Asking
// an Engine for a key has three outcomes: a hit, with a Lease; an Owner, who is
// to compute the tensor and must end with Fulfil, Fail or Abandon; or a bypass
// with its reason, after which the caller computes for itself alone.
//
// # Ordering
//
// A tensor is resident when Fulfil returns. Setting a capacity flushes before
// it returns: what was resident is not found any more, and what was being
// computed will not become resident.
//
// # Concurrency
//
// Every exported type is safe for concurrent use. A hit takes no lock and sends
// no message. Size and Capacity never wait (T11). Callbacks and free functions
// run on goroutines of the cache, not in a turn of its actor.
//
// # Memory
//
// The memory limit of a kiln.Runtime is told of what is resident, and takes back
// tensors that nobody uses. It asks this room last. It is the only case in which
// NoEvict evicts.
//
// # Failure
//
// An owner that fails, panics (Get), is cancelled or abandons lets go
// of its reservation; who waits gets a typed error, unless it can compute: then
// one of those is made the owner in the same turn, so that nobody else takes
// the room in between.
//
// # Testing
//
// state_test.go drives the pure core, model_test.go compares random histories
// with a naive model, hammer_test.go holds the claims above under the race
// detector.
package constants
