//go:build race

// Package race tells whether the race detector is on: times and allocations are not the
// program's own then.
package race

const Enabled = true
