package artefacts

import "github.com/kiln-cache/kiln/fault"

// What calls of this room end with, beside a creator's own errors and the
// context's; found with errors.Is.
var (
	ErrInvalid     = fault.ErrInvalid     // an empty key, no creator, a negative capacity or size
	ErrTooLarge    = fault.ErrTooLarge    // floors above the capacity in bytes
	ErrClosed      = fault.ErrClosed      // the cache was closed
	ErrCycle       = fault.ErrCycle       // a creator asked for its own key
	ErrGoexit      = fault.ErrGoexit      // a creator called runtime.Goexit
	ErrNotFound    = fault.ErrNotFound    // Blob of what is not resident
	ErrUnsupported = fault.ErrUnsupported // the backend cannot give or take blobs
	ErrRefused     = fault.ErrRefused     // the driver refused a blob
)

// The typed errors, found with errors.As.
type (
	Error      = fault.Error
	PanicError = fault.PanicError
)
