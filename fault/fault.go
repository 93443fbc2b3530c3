// Package fault has the errors and the miss reasons of every room: one set, which
// the rooms and package kiln re-export (SPEC R1, R3).
//
// A sentinel, such as ErrClosed, says what kind of trouble there is; errors.Is
// finds it. An *Error wraps a sentinel with the operation, the key and the backend
// that it concerns:
//
//	var e *fault.Error
//	if errors.As(err, &e) && e.Reason == fault.Outdated {
//		log.Print("compiled by another version: ", e.Key)
//	}
//
// All values are immutable and safe for concurrent use.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// The sentinels of SPEC R3. Each comment says what the caller should do.
var (
	ErrInvalid     = errors.New("invalid argument")                  // mend the argument; nothing was changed
	ErrClosed      = errors.New("closed")                            // open a new one
	ErrCycle       = errors.New("would wait for itself")             // break the circle: of creators, or of a Free that closes its room
	ErrGoexit      = errors.New("a creator called runtime.Goexit")   // mend the creator
	ErrAbandoned   = errors.New("abandoned by its owner")            // ask again
	ErrSize        = errors.New("delivered size is not as declared") // declare what is delivered
	ErrUnsupported = errors.New("unsupported here")                  // use another backend or system, or go without
	ErrRefused     = errors.New("refused")                           // see the reason
	ErrTooLarge    = errors.New("can never fit the capacity")        // raise the capacity or make it smaller
	ErrOverloaded  = errors.New("overloaded")                        // back off and try again
	ErrDeviceLost  = errors.New("device lost")                       // try again once the device is ready
	ErrUnavailable = errors.New("unavailable")                       // install what the text names
	ErrIO          = errors.New("input/output error")                // see the cause; the cache went on without
	ErrNotFound    = errors.New("not found")                         // nothing of this name
)

// PanicError carries the panic of a creator. Every waiter gets it, and the process
// lives (SPEC F3).
type PanicError struct {
	Value any    // what was given to panic
	Stack []byte // of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the panic value if it was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Error says which operation failed, and on which key. Err is or wraps a sentinel,
// a context's error, or the creator's own error.
type Error struct {
	Op      string // room and verb, as in "artefacts: get"
	Key     string // in printable form; empty where there is none
	Backend string // of the device; empty where none is concerned
	Reason  Reason // of a refusal; else empty
	Field   string // that the reason concerns; else empty
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Backend != "" {
		b.WriteString(" on " + e.Backend)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, " %s", Printable(e.Key))
	}
	if e.Reason != "" {
		b.WriteString(": " + string(e.Reason))
		if e.Field != "" {
			b.WriteString(" (" + e.Field + ")")
		}
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// ReasonOf is the reason that err carries, and the field that it concerns: those of
// the outermost Error in its chain that has a reason. Both are empty if none has.
func ReasonOf(err error) (reason Reason, field string) {
	var e *Error
	for errors.As(err, &e) {
		if e.Reason != "" {
			return e.Reason, e.Field
		}
		err = e.Err
	}
	return "", ""
}

// Invalidf makes an ErrInvalid of the operation op. The text says what is wrong and
// what would be right.
func Invalidf(op, format string, args ...any) error {
	return &Error{Op: op, Err: fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)}
}

// Printable is a key as people can read it: quoted if it is not plain text, and cut
// if it is long.
func Printable(key string) string {
	const most = 64
	plain := true
	for i := 0; i < len(key) && plain; i++ {
		plain = key[i] > ' ' && key[i] < 0x7f
	}
	if len(key) > most {
		key = key[:most] + "..."
	}
	if plain {
		return key
	}
	return fmt.Sprintf("%q", key)
}

// Wrap adds to err the operation, the key, and a text that says what to do.
func Wrap(op, key, text string, err error) error {
	return &Error{Op: op, Key: key, Err: fmt.Errorf("%s: %w", text, err)}
}
