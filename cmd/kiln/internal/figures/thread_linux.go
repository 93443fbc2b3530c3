package figures

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the processor time that the calling thread has had.
func threadTime() (time.Duration, bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err == nil
}

// threadPreempted is how often the calling thread lost its core to another one
// while it wanted to run.
func threadPreempted() int64 {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &used) // of this thread, into memory of ours: it cannot fail
	return int64(used.Nivcsw)                     // 32 bits wide where int is
}
