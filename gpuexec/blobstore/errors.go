package blobstore

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Miss says why a call gives no blob. The zero Miss is a hit.
type Miss struct {
	Reason fault.Reason // empty = a hit
	Field  string       // the field that the reason is about, as "driver" or "key.bin"; empty if there is none
}

// None reports whether it is a hit.
func (m Miss) None() bool { return m.Reason == "" }

// degradedBy is the miss of a file that cannot be read: its owner or mode may be why.
func degradedBy(err error) Miss {
	m := Miss{Reason: fault.Degraded}
	if unsafe := new(vfs.Unsafe); errors.As(err, &unsafe) {
		m.Field = unsafe.Field
	}
	return m
}

func refused(op, backend, key string, miss Miss, err error) error {
	return &fault.Error{Op: op, Backend: backend, Key: key, Reason: miss.Reason, Field: miss.Field,
		Err: fmt.Errorf("%w: %w", fault.ErrRefused, err)}
}

// trouble wraps an error of the file system as fault.ErrIO.
func trouble(op, dir string, err error) error {
	return &fault.Error{Op: op, Key: dir, Err: fmt.Errorf("%w: %w", fault.ErrIO, err)}
}

// kind groups problems: each kind is logged once (SPEC P5).
func kind(op string, err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return op + ": " + errno.Error()
	}
	return op
}

// isGone reports whether the name does not exist: it was removed, or never made.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// isForeign reports whether the name is something that no store makes, as a link.
func isForeign(err error) bool {
	for _, e := range []error{syscall.ELOOP, syscall.ENOTDIR, syscall.ENXIO, syscall.EISDIR, syscall.ENODEV, fs.ErrInvalid, vfs.ErrTooLong} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isTaken reports whether the name exists already.
func isTaken(err error) bool { return errors.Is(err, fs.ErrExist) }
