package kernels

import "github.com/kiln-cache/kiln/fault"

// The errors of this package, found with errors.Is.
var (
	ErrInvalid     = fault.ErrInvalid     // mend the argument; nothing ran
	ErrClosed      = fault.ErrClosed      // open or compile anew
	ErrUnsupported = fault.ErrUnsupported // do without blobs, or cut the shape smaller
	ErrRefused     = fault.ErrRefused     // a blob cannot be used: compile
	ErrUnavailable = fault.ErrUnavailable // the text says what the platform lacks
)

// Error carries the reason of a rejection.
type Error = fault.Error
