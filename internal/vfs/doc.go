// Package vfs is the little that the stores need of a file system, behind an
// interface, so that faults can be injected and power can fail in a test.
//
// # Names
//
// A file system is rooted at one folder. Names are relative to it, written with
// slashes, and never lead out of it: a symbolic link anywhere in a name is not
// followed but an error, and a FIFO or device is opened without blocking.
//
// # Concurrency
//
// An FS and a File are safe for concurrent use, as far as the calls do not
// concern the same bytes.
//
// # Errors
//
// Errors are those of package syscall, wrapped in *fs.PathError, so errors.Is
// finds fs.ErrNotExist and syscall.ENOSPC alike.
package vfs
