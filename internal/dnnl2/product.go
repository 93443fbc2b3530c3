package dnnl2

import "github.com/kiln-cache/kiln/fault"

// ErrUnavailable says that the library is not installed or not of version 2;
// its text names the package to install.
var ErrUnavailable = fault.ErrUnavailable

const soname = "libdnnl.so.2"

func unavailable(cause error) error {
	return &fault.Error{Op: "dnnl2: open " + soname + " (Debian package libdnnl2)", Err: &absent{cause}}
}

// absent is ErrUnavailable with what the loader said.
type absent struct{ cause error }

func (e *absent) Error() string   { return fault.ErrUnavailable.Error() + ": " + e.cause.Error() }
func (e *absent) Unwrap() []error { return []error{fault.ErrUnavailable, e.cause} }
