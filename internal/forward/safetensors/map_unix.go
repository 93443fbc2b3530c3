//go:build unix

package safetensors

import (
	"os"

	"golang.org/x/sys/unix"
)

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
