// Package hostlock lets processes that share a directory agree by files alone: which
// of them changes the directory now (Directory), which builds a key (Leases), which was
// in a driver when it died (Marks), and which live (Owners). They may run on one host or
// on several that share a file system.
//
// # Liveness
//
// Neither a process id nor a wall clock tells whether a process lives. A holder
// changes its file at least every third of the lease time. A waiter that sees no
// change for the whole lease time, on its own monotonic clock, passes the holder
// over. The holder writes its lease time into the file, so that a waiter with a shorter one
// agrees. Where the file system has advisory locks the holder also keeps one on its
// file, so that the end of its process shows at once, and wakes who waits for a Directory.
//
// # Fencing
//
// To pass a holder over, a waiter creates the next generation: a file whose name is
// the next number. Creating a file is atomic, so one waiter wins. A holder that wakes
// up finds the higher number and knows that it was passed over. What it does until it
// looks must be harmless; the user of this package sees to that. In the store,
// publishing is one rename, and a holder that was passed over counts again.
//
// # Concurrency
//
// Leases, Marks and Owners are safe for concurrent use; a Directory is used by one
// goroutine at a time. Timers here are the runtime's, never an injected clock.
package hostlock
