package dnnl2

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

const soname = "libdnnl.so.2"

// unavailable says that the library is not installed or not of version 2, and which
// package to install.
func unavailable(cause error) error {
	return &fault.Error{Op: "dnnl2: open " + soname + " (Debian package libdnnl2)", Err: fmt.Errorf("%w: %w", fault.ErrUnavailable, cause)}
}
