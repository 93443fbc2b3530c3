//go:build !unix

package trust

import (
	"fmt"
	"runtime"

	"github.com/kiln-cache/kiln/fault"
)

type stamp struct{}

func stampOf(string) (stamp, error) { return stamp{}, unsupported }

func read(string) ([]byte, error) { return nil, unsupported }

var unsupported = fmt.Errorf("%w: on %s nobody can tell who else may write a trust list", fault.ErrUnsupported, runtime.GOOS)
