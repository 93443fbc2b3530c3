package oplist

import (
	"fmt"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Error says what is wrong with a list, where, and what would be right. It
// matches fault.ErrInvalid, and the cause where there is one.
type Error struct {
	File  string
	Line  int    // from 1; 0 where the whole file is meant
	Field string // empty where none is concerned
	Text  string // what is wrong and what would be right
	Cause error  // of a file that cannot be read, else nil
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("oplist: " + e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Field != "" {
		fmt.Fprintf(&b, ": field %q", e.Field)
	}
	b.WriteString(": " + e.Text)
	return b.String()
}

// Unwrap gives fault.ErrInvalid and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{fault.ErrInvalid}
	}
	return []error{fault.ErrInvalid, e.Cause}
}

// fail ends the parsing: Parse gives the error back.
func fail(file string, line int, field, format string, args ...any) {
	panic(&Error{File: file, Line: line, Field: field, Text: fmt.Sprintf(format, args...)})
}

// recoverError takes what fail panicked with; any other panic goes on.
func recoverError(err *error) {
	switch v := recover().(type) {
	case nil:
	case *Error:
		*err = v
	default:
		panic(v)
	}
}
