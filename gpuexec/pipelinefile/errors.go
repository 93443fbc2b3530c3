package pipelinefile

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

// What calls of this package end with, beside the front end's and the driver's
// own errors and the context's; found with errors.Is.
var (
	ErrInvalid     = fault.ErrInvalid     // mend the argument; nothing was changed
	ErrClosed      = fault.ErrClosed      // open another cache
	ErrCycle       = fault.ErrCycle       // a front end asked for the pipeline it was compiling
	ErrGoexit      = fault.ErrGoexit      // mend the front end or driver
	ErrNotFound    = fault.ErrNotFound    // register the shader first
	ErrUnsupported = fault.ErrUnsupported // give the cache a front end, or the request its SPIR-V
	ErrRefused     = fault.ErrRefused     // for drivers: a blob or module that is not taken
	ErrTooLarge    = fault.ErrTooLarge    // raise Config.Limit; an old file is as it was
	ErrIO          = fault.ErrIO          // see the cause; an old file is as it was
)

// The typed errors, found with errors.As.
type (
	Error      = fault.Error
	PanicError = fault.PanicError
)

// trouble makes an error of a file or stream one of this package.
func trouble(op, path string, err error) error {
	return &fault.Error{Op: op, Key: path, Err: fmt.Errorf("%w: %w", ErrIO, err)}
}
