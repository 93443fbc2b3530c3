//go:build !unix

package main

import "time"

// cpuTime is not told on these systems.
func cpuTime() time.Duration { return 0 }
