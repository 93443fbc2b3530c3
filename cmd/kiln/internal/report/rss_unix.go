//go:build unix

package report

import (
	"runtime"
	"syscall"
)

// PeakRSS is the most memory that the process held so far, in bytes; 0 unknown.
func PeakRSS() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return int64(u.Maxrss) // bytes there, KiB elsewhere
	}
	return int64(u.Maxrss) << 10
}
