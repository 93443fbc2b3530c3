// Package crashfs is a file system in memory that can lose power, for tests. A clone
// of it keeps everything that was synced, and each other change of a name and each
// other sector of a write with a probability of its own.
//
// A rename takes place in both folders or in neither, as in journalling file systems.
// The sync of a folder makes every change of its names durable. The sync of a file
// makes its content durable, not its name.
//
// Safe for concurrent use. The idea of cloning a crash state by probability and
// seed is pebble's.
package crashfs
