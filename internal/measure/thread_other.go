//go:build !linux

package measure

import "time"

// ThreadTime is not to be had.
func ThreadTime() (time.Duration, bool) { return 0, false }

// ThreadPreempted is not to be had: nothing counts as disturbed.
func ThreadPreempted() int64 { return 0 }

// ProcessTime is not to be had.
func ProcessTime() (time.Duration, bool) { return 0, false }
