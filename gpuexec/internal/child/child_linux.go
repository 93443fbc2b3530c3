package child

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// closeInherited closes what whoever started this process had open without FD_CLOEXEC, such
// as the sockets of a program in C: they must not stay open as long as a child waits. What
// this process has opened by itself has the flag.
func closeInherited() {
	open, _ := os.ReadDir("/proc/self/fd")
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd <= lastPipe {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
