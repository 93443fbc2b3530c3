package onednn

import (
	"errors"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

// errLibrary is an error of the library that means nothing more.
var errLibrary = errors.New("the library failed")

// install is what to do where nothing was found.
const install = "install oneDNN (Debian: libdnnl2, or libdnnl3.6 from Debian 13 on; PyPI: onednn-cpu-gomp)"

// failure is an error of this backend at an operation of it.
func failure(op string, sentinel error, format string, args ...any) *fault.Error {
	return &fault.Error{Op: "onednn: " + op, Backend: Name, Err: fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)}
}

func unavailable(cause error) error {
	return failure("open", fault.ErrUnavailable, "%v: %s, or name its file in KILN_ONEDNN_LIBRARY (a program: in Config.Path)", cause, install)
}

// A status is what a call of the library answered, if that is no success.
type status struct {
	call, name string
	code       int32
}

func (s *status) Error() string {
	return fmt.Sprintf("%v: %s: %s (status %d)", s.kind(), s.call, s.name, s.code)
}

func (s *status) Unwrap() error { return s.kind() }

func (s *status) kind() error {
	switch s.code {
	case outOfMemory:
		return fault.ErrTooLarge
	case invalidArguments:
		return fault.ErrInvalid
	case unimplemented:
		return fault.ErrUnsupported
	}
	return errLibrary
}

// status is the error that a code means; nil for success.
func (c *common) status(call string, code int32) error {
	if code == success {
		return nil
	}
	return &status{call, text(c.StatusName(code)), code}
}

// answered tells whether an error is one of these answers of the library.
func answered(err error, codes ...int32) bool {
	s, ok := errors.AsType[*status](err)
	for _, code := range codes {
		if ok && s.code == code {
			return true
		}
	}
	return false
}
