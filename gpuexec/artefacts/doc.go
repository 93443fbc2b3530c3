// Package artefacts is the artefact cache: compiled kernels, pipelines,
// primitives and descriptors by their content key, shared by all sessions.
//
// # What it owns
//
// The index of resident artefacts, their exact order of use, their bytes, the
// flights that compute missing ones, and below them the kernel layer, where one
// compiled kernel may serve several artefacts. Under both may lie a Store.
//
// # Ordering
//
// A change that a call makes (a capacity, a release by owner, a close) is
// visible to every call that begins after it returned. Of two uses that do not
// overlap, the later one counts as the more recent, whatever goroutines they
// come from; uses that overlap may be taken in either order.
//
// # Concurrency
//
// Everything exported is safe for concurrent use. A hit walks a published
// table: no lock, no mailbox, no clock and no log. A miss asks the cache's actor
// once and then waits on the flight, never on the actor; creators, store
// accesses and the freeing of artefacts run on goroutines of their own, so no
// call that computes nothing waits for one.
//
// # Capacity
//
// A pending flight takes the place of an entry from its start, so the number of
// entries is within capacity at every instant. A flight that loses its place stays
// joinable; its value becomes resident at its end as a new entry would. A flight loses
// its place to another entry, or when nobody waits for it any more. An artefact that contains
// another one (Request.Part) takes the place of that, and the two are one entry.
//
// # What is told
//
// Config.Listen is told how each call ended, Config.Evicted what had to go and why.
// Stats counts the creators that ran for a key a second time, by reason, and those at
// work, and has the times of all. The log warns of thrash, and of leases that hold,
// beside the capacity, more than the capacity; its debug level has what was opened,
// made and evicted.
//
// # Tenants
//
// AddFloor gives an owner a floor: what it uses has an order of its own, and goes
// for others only while at least the floor is left. The choice of a victim is the
// end of one list; with floors it costs the logarithm of their number. The memory
// limit of a kiln.Runtime is told of every byte from the landing of an artefact to
// its release, and takes back what nobody leases.
//
// Reset, SetCapacity, the end of a floor and Close are sweeps. Sweeps run one after the
// other, in turns that touch a bounded number of artefacts, with other calls between
// the turns. While SetCapacity lowers a capacity, what is there is the bound.
//
// # Failure
//
// A creator's error, panic or Goexit reaches everybody who waited and is not
// kept. Where the driver refuses the blob of a FromBlob, its caller alone learns of
// it. Trouble in the store is a miss with a reason, never an error of a call. Errors
// are *fault.Error around the sentinels of package fault.
//
// # Testing
//
// The core, the type state and what it is made of, is free of channels, clocks,
// contexts and goroutines: testdata/*.txt has its transitions, event by event.
// model_test.go compares the whole cache with a naive one.
package artefacts
