//go:build !linux

package figures

import "time"

// threadTime is not to be had.
func threadTime() (time.Duration, bool) { return 0, false }
