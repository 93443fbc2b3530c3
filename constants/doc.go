// Package constants is the cache of constant tensors: weights that are packed,
// reordered or folded for a device are prepared once in a process and shared by
// every computation that uses them, within the device's budget (docs/SPEC.md,
// section 7).
//
// A Cache has one Engine for each engine kind, device index and context. Most
// programs call Engine.Get, which computes a tensor at most once. GetOrAdd is for
// those that compute elsewhere. It has three outcomes: a Lease on a tensor that is
// there; a Promise, by which the caller delivers the tensor with Fulfil, or ends
// with Fail or Abandon; or a Bypass with its reason, after which the caller
// computes for itself alone.
//
// # Ordering
//
// A tensor is resident when Fulfil returns. Setting a capacity flushes before it
// returns: a tensor that was resident is not found any more, and one that was
// being computed will not become resident.
//
// # Concurrency
//
// Every exported type is safe for concurrent use. A hit takes no lock and sends
// no message. Size and Capacity never wait (SPEC T11). Callbacks and free
// functions run on goroutines of the cache, not in a turn of its actor. Callbacks of an
// engine come one at a time, in the order of the removals; one that takes longer than
// 50 ms keeps no other waiting, and so may run beside others.
//
// # Memory
//
// The memory limit of a kiln.Runtime is told of what is resident, and takes back
// tensors that nobody uses. It asks this room last. It is the only case in which
// NoEvict evicts.
//
// # Failure
//
// An owner that fails, panics, is cancelled or abandons gives its reservation
// back. Its waiters get a typed error, unless one of them said that it can compute
// (Options.CanOwn): the first of those becomes the owner in the same turn, so that
// no newcomer takes the room in between. The others that can compute wait on, for that
// owner. An owner inside Get stays the owner until
// its function has returned, also when its context has ended: so no two functions
// compute one key at a time (SPEC F1). Its function is cancelled Config.Linger after its
// caller's context has ended (SPEC F4).
//
// # Testing
//
// state_test.go drives the pure core, model_test.go compares random histories with
// a naive model, hammer_test.go holds the claims above under the race detector.
package constants
