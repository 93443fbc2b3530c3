//go:build !linux

package figures

import "time"

// threadTime is not to be had.
func threadTime() (time.Duration, bool) { return 0, false }

// threadPreempted is not to be had: nothing counts as disturbed.
func threadPreempted() int64 { return 0 }
