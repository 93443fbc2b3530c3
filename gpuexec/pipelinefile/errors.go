package pipelinefile

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

// trouble makes an error of a file or stream one of this package.
func trouble(op, path string, err error) error {
	return &fault.Error{Op: op, Key: path, Err: fmt.Errorf("%w: %w", fault.ErrIO, err)}
}
