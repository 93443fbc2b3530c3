//go:build !linux

package versus

import "time"

var origin = time.Now()

// now reads the wall clock: a thread's processor time has no portable name.
func now() time.Duration { return time.Since(origin) }
