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

var unsupported = fmt.Errorf("%w: on %s files have no owner and mode that tell who may write a trust list", fault.ErrUnsupported, runtime.GOOS)
