package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime is the processor time that the calling thread has had; false where
// the system does not tell.
func ThreadTime() (time.Duration, bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err == nil
}

// ProcessTime is ThreadTime of all threads.
func ProcessTime() (time.Duration, bool) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err == nil
}

// ThreadPreempted is how often the calling thread lost its core to another one
// while it wanted to run.
func ThreadPreempted() int64 {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &used) // of this thread, into memory of ours: it cannot fail
	return int64(used.Nivcsw)                     // 32 bits wide where int is
}
