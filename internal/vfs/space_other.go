//go:build unix && !linux && !darwin && !freebsd

package vfs

import "errors"

func space(int) (free, total int64, err error) { return 0, 0, errors.ErrUnsupported }
