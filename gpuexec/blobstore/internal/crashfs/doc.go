// Package crashfs is a file system in memory that can lose power: a clone of it
// keeps what was synced, and of everything else each write and each change of a
// name, apart, with a probability. For tests.
//
// A change of names is one operation: a rename takes place in both folders or in
// none, as journalling file systems have it. A folder's sync makes durable every
// change that touches it; a file's sync its content, not its name.
//
// Safe for concurrent use. The idea of cloning a crash state by probability and
// seed is pebble's.
package crashfs
