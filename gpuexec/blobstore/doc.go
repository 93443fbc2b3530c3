// Package blobstore is the persistent store of compiled blobs. A store is one
// directory that any number of processes use at once. Read-only directories
// (bases) can lie under it.
//
//	s, err := blobstore.Open(ctx, blobstore.Config{Dir: dir, Capacity: limit.Of(1 << 30), Identity: identity})
//	blob, claim, miss, err := s.Obtain(ctx, "cpu", key)
//	if claim != nil { // nobody has the blob: this process builds it
//		err = claim.Save(ctx, compiled, cost)
//	}
//
// Most programs do not use this package: package kiln opens a store and asks it.
// Package tiers puts blobs in memory before it.
//
// # Words
//
// A backend names a kind of device, as "cpu". A key is a byte string that says what
// was compiled. An entry is one stored blob with its key. An identity says which
// build of which library, with which compiler and driver, made an entry; an entry
// of another identity is a miss. A bucket is the folder of all keys with one hash,
// a slot one entry's folder in it, and a place its path BACKEND/BUCKET/SLOT.
//
// # Ordering
//
// Every Get that begins after a Put has returned finds the entry, in any process
// of the host, until the entry is evicted. An entry appears and disappears by one
// rename of its folder, so a reader sees all of it or nothing. If two processes
// store one key, one entry stays and both calls succeed.
//
// # Mapping
//
// Package encoder keeps packed weights here. They are verified as any entry, and then mapped
// from its file, so that processes share them: a file of an entry is never written again.
// With Config.Shared nothing is mapped.
//
// # Concurrency
//
// A Store is safe for concurrent use. A reader takes no lock, neither of the
// process nor of the directory. A writer prepares its files in a folder of its own
// and holds the lock of the directory for a few renames. A holder that stands
// still for longer than Config.Lease loses the lock to the next. Nothing holds it for
// longer where there are more or larger entries: the directory is listed and payloads are
// read without it, and many entries are evicted or repaired in turns of some
// milliseconds.
//
// With n entries, an Open costs O(1) and a Put that evicts one O(log n). The first
// change after an Open takes from the index, lease/index, the head, and from the journal
// what came after it, at most 2 MiB; of the entries it reads those that go next, some
// hundred at a time, and one that is set aside is found by its place. The index has what
// was known of uses, too; later ones, of those that go next, are looked up in the files of
// uses. For calls about all entries, for the first eviction under another policy than before,
// and where many of those that go next were used since the index was written, all of it is
// read, O(n): some 100 ms for 100,000 entries, in the call. It is written anew, O(n), by who
// has changed some thousand entries. The directory is listed only
// where no index goes with it: at first, after the machine was started again, and after
// folders were changed by hand. The listing, and the heads of all entries before the
// first eviction after it, are read while no other process waits. Systems other than
// Linux do not tell when they were started: there each Open lists.
//
// Entries are as old, and as recently used, as a sequence says that is kept with the
// index. Clocks do not matter: what is stored later is younger. Where the directory was
// listed the sequence begins with creation times; those after now count as now.
//
// Config.Shared is for a file system without reliable locks. There the directory
// has no lock. A slot is taken by a rename, every call that stores lists the
// directory, and two writers at once may exceed the capacity by one entry each. Processes
// with locks and without them see nothing of each other. So a directory that was opened
// with Config.Shared once is opened so by all from then on, and such an Open is refused while
// a process with locks has the directory open. It sees those of its own host, and of others only
// where locks reach from host to host: where they do not, see to it that nobody has the directory open
// with locks when it is opened with Config.Shared first. To go back to locks, remove lease/shared while
// nobody has it open.
//
// # Failure
//
// Nothing in the directory is believed before its digest has been verified. A
// problem with a file is a Miss or a refusal with a reason. It is counted, and
// logged once for each kind. It never panics and never fails the request that met
// it. After a failed write the store writes nothing for at most ten minutes.
//
// # Durability
//
// With Full, an entry that Put acknowledged survives a loss of power, and any
// other entry is whole or absent. With File, a file is whole or absent. With None,
// a loss of power may leave parts of a file. The store finds such parts by their
// digest: they are misses, and the next Put repairs them. The index, the journal,
// size.txt, uses and leases are hints. They are not synced. Marks of drivers that can
// abort are, whatever the setting, and so is lease/refused: the digests of blobs that one
// refused or died on, which outlast the entries.
//
// One pass of syncs serves all stores that wait. For one store it syncs three names
// before the entry appears and two after. For several it is one call of the system
// that syncs the whole file system (syncfs), where the system has one that can be
// relied on: it costs what writing all that is unwritten there costs, also what other
// programs wrote.
//
// # Systems
//
// A store needs files with an owner and a mode: Linux, macOS and other Unix
// systems. Elsewhere Open answers fault.ErrUnsupported.
//
// # Testing
//
// The core (state.go) is pure. All other code runs on an interface to the file
// system. crashfs loses power after every operation, and vfs.Watch lets any
// operation fail.
package blobstore
