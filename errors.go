package kiln

import "github.com/kiln-cache/kiln/fault"

// Errors of every room (SPEC R3), found with errors.Is.
var (
	ErrInvalid     = fault.ErrInvalid     // mend the argument; nothing was changed
	ErrClosed      = fault.ErrClosed      // open a new one
	ErrCycle       = fault.ErrCycle       // break the circle between the creators
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

// Error has the operation, key and backend of an error, and the reason and
// field of a refusal.
type Error = fault.Error

// PanicError is what a creator's panic becomes.
type PanicError = fault.PanicError

// Reason says why something was a miss or was rejected (SPEC R1).
type Reason = fault.Reason

// The reasons (SPEC R1): a closed set.
const (
	ReasonAbsent          = fault.Absent          // nothing is there under this key
	ReasonDisabled        = fault.Disabled        // the cache or the store is off, or the build is not known; then Field says what is missing
	ReasonKeyRefused      = fault.KeyRefused      // the key does not cover all that goes in (Recipe.Unhashable)
	ReasonFormat          = fault.Format          // no file of this format
	ReasonTruncated       = fault.Truncated       // shorter than it says
	ReasonTrailing        = fault.Trailing        // longer than it says
	ReasonTooLarge        = fault.TooLarge        // above what may be read, or kept
	ReasonChecksum        = fault.Checksum        // its digest does not match
	ReasonKeyCollision    = fault.KeyCollision    // it is the value of another key
	ReasonOutdated        = fault.Outdated        // made by another format, library, build, compiler or driver: see Field
	ReasonDeviceMismatch  = fault.DeviceMismatch  // made for another device
	ReasonIncompatible    = fault.Incompatible    // needs instruction sets that are not here
	ReasonSourceChanged   = fault.SourceChanged   // made from another source
	ReasonDriverHeader    = fault.DriverHeader    // the driver's own header says that it does not fit
	ReasonDriverRefused   = fault.DriverRefused   // Load, or the driver, did not take it
	ReasonQuirk           = fault.Quirk           // this driver is known not to bear it
	ReasonUnsigned        = fault.Unsigned        // there is a trust list, and nobody signed it
	ReasonUntrustedSigner = fault.UntrustedSigner // its signer is not on the trust list
	ReasonRevoked         = fault.Revoked         // its signer's key was revoked
	ReasonQuarantined     = fault.Quarantined     // it was set aside before
	ReasonBusy            = fault.Busy            // another process is at work on it
	ReasonDegraded        = fault.Degraded        // the store cannot be read or written
)
