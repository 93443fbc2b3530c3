package sessioncache

import "github.com/kiln-cache/kiln/fault"

// Errors of this room, found with errors.Is.
var (
	ErrInvalid  = fault.ErrInvalid  // mend the argument; nothing was changed
	ErrClosed   = fault.ErrClosed   // the session or the group was closed
	ErrTooLarge = fault.ErrTooLarge // larger than the byte capacity; nothing was evicted for it
	ErrNotFound = fault.ErrNotFound // no such name
	ErrCycle    = fault.ErrCycle    // the creators wait for each other
	ErrGoexit   = fault.ErrGoexit   // the creator called runtime.Goexit
)

// PanicError is what a creator's panic becomes.
type PanicError = fault.PanicError

// Error is the form of every error of this room: operation, key and cause.
type Error = fault.Error

const room = "sessioncache: "

// failed wraps err, unless it is nil, with what was done to which key.
func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &fault.Error{Op: room + op, Key: key, Err: err}
}
