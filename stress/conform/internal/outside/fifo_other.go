//go:build !unix

package outside

import "errors"

func mkfifo(string, uint32) error { return errors.ErrUnsupported }
