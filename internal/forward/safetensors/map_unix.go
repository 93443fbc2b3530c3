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

func discard(bytes []byte) { _ = unix.Madvise(bytes, unix.MADV_DONTNEED) } // else they only stay in memory
