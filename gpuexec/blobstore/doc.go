// Package blobstore is the persistent store of compiled blobs: one directory
// that any number of processes use at once, with read-only bases under it.
//
// # What it owns
//
// The directory's layout (SPEC P2), who may change it now, its accounting and
// eviction, what is set aside, and the host's agreement on who builds a key. The
// format of a file is package frame's, locks and leases are hostlock's, the trust
// list is trust's; the tier of verified blobs in memory, and the order of a miss,
// are in tiers.
//
// # Ordering
//
// What Put acknowledged is found by every Get that begins later, in any process
// of the host, until it is evicted. An entry appears and disappears by one rename
// of its folder, so a reader sees it whole or not at all. Of two that store one
// key, one stays and both succeed.
//
// # Concurrency
//
// A Store is safe for concurrent use. Readers take no lock, neither of the
// process nor of the directory. Writers prepare their files aside and hold the
// directory's lock for a few renames; a holder that stands still is passed over.
//
// On a file system that has no locks worth the name (Config.Shared) there is no
// directory lock: slots are taken by rename alone, every store lists the
// directory again, two writers at once may exceed the capacity by an entry each,
// and heartbeats alone tell who lives.
//
// # Failure
//
// Nothing in the directory is believed before its digest was verified. Trouble is
// a Miss or a refusal with a reason and a counter, and one log line a kind; it is
// never a panic and never an error of the request that led to it. After trouble
// in writing, writing pauses for at most ten minutes.
//
// # Durability
//
// With Full, what Put acknowledged survives a power loss, and what it did not is
// whole or absent. With File a file is whole or gone; with None a power loss may
// leave parts of one. Either is a miss and heals. The journal, size.txt, uses and leases are hints and are not synced.
//
// # Testing
//
// The core (state.go) is pure. Everything else runs on an interface to the file
// system, so that crashfs can lose power after every operation and vfs.Watch can
// fail any.
package blobstore
