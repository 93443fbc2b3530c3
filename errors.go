package kiln

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

// Errors of every room (SPEC R3), found with errors.Is.
var (
	ErrInvalid     = fault.ErrInvalid     // mend the argument; nothing was changed
	ErrClosed      = fault.ErrClosed      // open a new one
	ErrCycle       = fault.ErrCycle       // break the circle: of creators, or of a Free that closes its room
	ErrGoexit      = fault.ErrGoexit      // mend the creator
	ErrAbandoned   = fault.ErrAbandoned   // ask again
	ErrSize        = fault.ErrSize        // declare what is delivered
	ErrUnsupported = fault.ErrUnsupported // use another backend or go without
	ErrRefused     = fault.ErrRefused     // see the reason
	ErrTooLarge    = fault.ErrTooLarge    // raise the capacity or make it smaller
	ErrOverloaded  = fault.ErrOverloaded  // back off and try again
	ErrDeviceLost  = fault.ErrDeviceLost  // try again once the device is ready
	ErrUnavailable = fault.ErrUnavailable // install what the text names
	ErrIO          = fault.ErrIO          // see the cause; the cache went on without
	ErrNotFound    = fault.ErrNotFound    // nothing of this name
)

// What was closed, and what to do.
var (
	errClosed  error = &fault.Error{Op: "kiln", Err: fmt.Errorf("the runtime is %w: open one with kiln.Open", ErrClosed)}
	errSession       = fmt.Errorf("the session is %w: open another one", ErrClosed)
	errGroup         = fmt.Errorf("kiln: the group is %w: ask its session for another one", ErrClosed)
)

// What no call of the package gave answers like what was closed.
var (
	errNoRuntime error = &fault.Error{Op: "kiln", Err: fmt.Errorf("the runtime is nil or zero, and so %w: want one that kiln.Open gave", ErrClosed)}
	errNoSession       = fmt.Errorf("the session is nil or zero, and so %w: want one that Runtime.Session gave", ErrClosed)
)

// Error has the operation, key and backend of an error, and the reason and
// field of a refusal.
type Error = fault.Error

// PanicError is what a creator's panic becomes.
type PanicError = fault.PanicError

// Reason says why something was a miss or was rejected (SPEC R1). Package fault has
// the constants.
type Reason = fault.Reason
