//go:build !linux

package drivercache

import (
	"os"
	"runtime"

	"github.com/kiln-cache/kiln/fault"
)

func machine() string { return runtime.GOOS }

func enter(string, string, int64) (*os.File, error) { return nil, fault.ErrUnsupported }
