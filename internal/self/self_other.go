//go:build !linux

package self

import (
	"errors"
	"io"
)

var errElsewhere = errors.New("the file of a library is known on Linux only")

func library() (mapping, error) { return mapping{}, errElsewhere }

func openLibrary() (io.ReadCloser, error) { return nil, errElsewhere }
