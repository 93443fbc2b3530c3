package blobstore

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Miss says why there is no blob. The zero Miss is a hit.
type Miss struct {
	Reason fault.Reason // empty = a hit
	Field  string       // what the reason is about, where it is about one field of an entry
}

// None reports whether it is a hit.
func (m Miss) None() bool { return m.Reason == "" }

func refused(op, backend, key string, miss Miss, err error) error {
	return &fault.Error{Op: op, Backend: backend, Key: key, Reason: miss.Reason, Field: miss.Field,
		Err: fmt.Errorf("%w: %w", fault.ErrRefused, err)}
}

// trouble makes an error of the file system one of this package.
func trouble(op, dir string, err error) error {
	return &fault.Error{Op: op, Key: dir, Err: fmt.Errorf("%w: %w", fault.ErrIO, err)}
}

// kind is what log lines of trouble are counted by: once per kind (SPEC P5).
func kind(op string, err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return op + ": " + errno.Error()
	}
	return op
}

// isGone: somebody removed it meanwhile, or it never was.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// isForeign: what is there is no file that a store would have made.
func isForeign(err error) bool {
	for _, e := range []error{syscall.ELOOP, syscall.ENOTDIR, syscall.ENXIO, syscall.EISDIR, syscall.ENODEV, fs.ErrInvalid, vfs.ErrTooLong} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isTaken: somebody else made it first.
func isTaken(err error) bool { return errors.Is(err, fs.ErrExist) }
