// Package pipelinefile keeps the pipelines of one device alive while they are
// used, and what they were made from in a single file (SPEC section 10).
//
// Three things are kept apart. Live objects are pipelines of the driver, found
// by their full request; they live in this process only. SPIR-V entries are
// what a front end made of a registered shader; the file holds them. The driver
// cache is the driver's own, opaque; its blob is the last part of the file, all
// or nothing. The bytes of the file are package layout's.
//
// # Ordering
//
// What Load and Register did is seen by every Get that begins after they
// returned. A Load that is a miss changed nothing. A build that runs while Clear
// is called serves the callers that wait for it and is not kept.
//
// # Concurrency
//
// A hit takes no lock. One mutex guards the rest of the state and is never held
// while the front end, the driver or the file system works: these run on lent
// goroutines (builds, frees) or on the caller's (Load, Save). Several caches, in
// one process or in several, may save to one file.
//
// # Failure
//
// A file that cannot be used is a miss with a reason (Loaded.Reason), counted
// and logged, never an error. A driver that refuses or cannot deliver its blob
// costs the blob. Save either replaces the whole file or leaves it as it was.
//
// # Testing
//
// Driver and FrontEnd are small enough to fake. Open uses another file system
// where its context carries one (internal/vfs.With); layout.Forge makes files that
// are wrong in one place only.
package pipelinefile
