//go:build unix

package tensorfile

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// toRead opens a file without waiting: a pipe in its place has perhaps no writer ever.
const toRead = os.O_RDONLY | unix.O_NONBLOCK

// content is the whole file, mapped; an empty one cannot be.
func content(f *os.File, size int) (bytes []byte, mapped bool, err error) {
	if size == 0 {
		return nil, false, nil
	}
	bytes, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
	return bytes, err == nil, err
}

func unmap(bytes []byte) error { return unix.Munmap(bytes) }

// discard gives the pages of some bytes back; if it cannot, they only stay in memory.
func discard(bytes []byte, begin, end int64) {
	begin -= begin % int64(os.Getpagesize())
	_ = unix.Madvise(bytes[begin:end], unix.MADV_DONTNEED)
}

// young has the states of files that were opened too soon after their last change. They
// never get a stamp in this process, so that whoever opens such a file later calls it the same.
var young sync.Map

// stampBefore is the stamp of a file that was last changed before a time, else empty.
// Nobody but the system sets the time of the last change of content or name.
func stampBefore(now time.Time, f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ""
	}
	return stampOf(now, &st)
}

// stampOf is stampBefore of a file in that state. A change at a whole second is that of an image
// which is only read, as squashfs: whoever builds one sets its times, and its inodes are counted,
// so that two images may have all of this in common.
func stampOf(now time.Time, st *unix.Stat_t) string {
	changed := time.Unix(st.Ctim.Unix())
	if changed.Nanosecond() == 0 {
		return ""
	}
	stamp := fmt.Sprint(st.Ino, st.Size, st.Mtim, st.Ctim)
	if !changed.Before(now) {
		young.Store(stamp, true)
	}
	if _, was := young.Load(stamp); was {
		return ""
	}
	return stamp
}
