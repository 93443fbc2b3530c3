//go:build !unix

package vfs

import (
	"fmt"
	"runtime"

	"github.com/kiln-cache/kiln/fault"
)

func machine() (func(root string) FS, error) {
	return nil, fmt.Errorf("%w: on %s no directory is safe to keep code in: its files have no owner and no mode that could be checked", fault.ErrUnsupported, runtime.GOOS)
}
