// Package kiln computes every compiled kernel, primitive and prepared constant
// of a training or inference process once, finds it in nanoseconds, and holds
// it within its budget.
//
// A Runtime has one artefact cache (compiled things, by content), one cache of
// constant tensors, one executor for each device that is asked for, and any
// number of sessions. A Session is the cache of one predictor, executor or
// tenant: input shape, then name, then artefact. What a server does for a
// request:
//
//	h, err := session.Acquire(ctx, shape)   // the group of the request's shape
//	defer h.Close()
//	for _, op := range model {
//		ref, how, err := session.Artefact(ctx, h, op.Name, sessioncache.Options{}, op.Request)
//		...                             // launch ref.Value()
//	}
//
// # Bounds
//
// Beside the capacities of each room, Config.SessionBytes bounds all sessions
// together, with a floor for each tenant (sessioncache.Config.Floor), and
// Config.MemoryLimit what all rooms hold: above it the cheapest things to make
// again go first, constants last, with one line in the log. Both are off by
// default and cost a hit nothing.
//
// # Restarts
//
// Config.Store, or KILN_STORE_DIR, names a directory in which artefacts that can be
// had as blobs outlive the process, for any number of processes at once. A miss asks
// it before anything is built; what is wrong with it is a miss with a Reason.
//
// # Ordering
//
// What a call has put in is seen by every call that begins after it returned.
// Close closes the sessions first, then the artefacts, the constants and the
// devices, so that whatever is freed still has its device.
//
// # Concurrency
//
// Every exported type is safe for concurrent use. A hit takes no lock, sends no
// message, allocates nothing and reads no clock.
//
// # Failure
//
// Errors are found with errors.Is: the sentinels of this package, the creator's
// own error, or the context's. A cache that cannot keep something is no error.
package kiln
