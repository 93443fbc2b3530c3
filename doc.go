// Package kiln computes every compiled kernel, primitive and prepared constant of
// a training or inference process once, finds it in nanoseconds, and keeps it within
// its budget. What has a blob is found again after a restart.
//
//	rt, err := kiln.Open(kiln.Config{StoreDir: dir})                     // one a process; zero values follow the environment
//	session, err := rt.Session(kiln.SessionConfig{Name: "tenant-a"})     // one a predictor, executor or tenant
//	group, err := session.Group(ctx, []int64{1, 37})                     // one a request: what is cached for this input shape
//	defer group.Close()                                                  // what was seen through it is good until then
//	program, err := kiln.Get(ctx, group, "query", kiln.Recipe[*Program]{ // equal keys are one artefact, for all sessions
//		Key:  "matmul 37x384x384",
//		Make: func(ctx context.Context) (kiln.Made[*Program], error) { … },
//		Load: func(ctx context.Context, blob []byte) (kiln.Made[*Program], error) { … },
//	})
//	program, ok := kiln.Lookup[*Program](group, "query")                 // a hit, or not
//	kernel, err := group.Kernel(ctx, "pooler", executor, source)         // a device's kernel
//
// This package is all that most programs import. It wires rooms together, each
// of which can be used alone: sessioncache (input shape, then name, then value),
// gpuexec/artefacts (compiled things by content), gpuexec/blobstore (the store on
// disk), constants (prepared weights), gpuexec (devices).
//
// # Names and artefacts
//
// A name belongs to one group of one session. Get makes it stand for the artefact
// of a key; many names, in any number of sessions, cost one artefact. Set gives a
// name a value of its own, without a key, and Take moves it out again: what the
// forward pass hands to the backward pass.
//
// # How fast a hit is
//
// A hit takes no lock, sends no message, allocates nothing and reads no clock. In
// rising order of speed: Get (the closures of its recipe are the caller's), Lookup
// by name, LookupID by a name that Session.Intern interned once, and a Ref that
// Refer gave and that its holder keeps over requests.
//
// # How long a value is good
//
// A value that was seen through a group is good until that group is closed,
// whatever is evicted, overwritten or reset meanwhile. Acquire gives a Lease for
// longer. Made.Free runs exactly once, after the last use.
//
// # Bounds
//
// Each session has a capacity in groups and bytes, the artefacts one in entries
// and bytes, the constants one for each device. Config.SessionBytes bounds all
// sessions together, with a Floor for each tenant; Config.MemoryLimit bounds what
// all rooms hold. Both are off by default and cost a hit nothing.
//
// # Restarts
//
// Config.StoreDir, or KILN_STORE_DIR, names a directory in which artefacts outlive
// the process, for any number of processes at once: those whose recipe has a Load
// and whose value has a Blob. A kernel must fit its device; what the program itself
// compiles must fit the running executable (DefaultBackend). What is wrong with a
// stored blob is a miss with a Reason, never an error. Blobs are written off the
// caller's path; Runtime.Close waits for them.
//
// With Config.Record a runtime notes what was asked for. Runtime.Record writes that
// as a manifest, and Runtime.Warm of a later process has it ready before the first
// request.
//
// # Ordering
//
// What a call has put in is seen by every call that begins after it returned.
// Runtime.Close closes the sessions first, then the artefacts, the constants and
// the devices, so that whatever is freed still has its device.
//
// # Concurrency
//
// Every exported type is safe for concurrent use.
//
// # Failure
//
// Errors are found with errors.Is: the sentinels of this package, the error of
// Make, or the context's. A cache that cannot keep something is no error.
// A panic or runtime.Goexit in Make is an error for its callers and no more.
package kiln
