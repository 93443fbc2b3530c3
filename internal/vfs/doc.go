// Package vfs is the part of a file system that the stores need, as an interface, so
// that a test can inject faults and take power away.
//
// # Names
//
// A file system has one folder as its root. Names are relative to it and written
// with slashes. The root is held open and all calls go out from it. None follows a
// symbolic link, wherever in the name it stands: it is an error. A FIFO or device is
// opened without blocking. A file to be read, and a folder below the root to be
// listed, must belong to this user or to root and must not be writable by others; the
// error is *Unsafe.
//
// # Concurrency
//
// An FS and a File are safe for concurrent use, by calls that do not read and write
// the same bytes.
//
// # Errors
//
// Errors are those of package syscall in an *fs.PathError, so that errors.Is finds
// fs.ErrNotExist and syscall.ENOSPC alike.
package vfs
