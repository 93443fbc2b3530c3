// Package hostlock makes processes of one host, or of several that share a file
// system, agree by files alone: who changes a directory now (Directory), who
// builds a key (Leases), and who was killed by a driver (Marks).
//
// # Liveness
//
// Nobody is believed to live or to be dead by process id or by the wall clock.
// A holder changes its file at least every third of the lease time; whoever
// waits and sees no change for the whole lease time, on its own monotonic clock,
// goes past it. Where the file system has advisory locks, the holder also keeps
// one on its file, so that the end of its process shows at once.
//
// # Fencing
//
// To go past a holder is to create the next generation, a file whose name is a
// number one higher; creating is atomic, so there is one winner. A holder that
// wakes up finds the higher number and knows that it has been passed over. What
// it does until it looks must be harmless, which is the affair of the user: in
// the store, publishing is one rename, and counts are redone by whoever was
// passed over.
//
// # Concurrency
//
// Leases and Marks are safe for concurrent use; a Directory is used by one
// goroutine at a time. Timers here are the runtime's, never an injected clock.
package hostlock
