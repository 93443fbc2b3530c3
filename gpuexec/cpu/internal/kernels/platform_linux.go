package kernels

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
)

// DefaultMemoryBytes is the memory an engine reserves if its config says
// nothing. Pages count only once they are touched.
const DefaultMemoryBytes = MaxBufferBytes

// reserve maps size bytes of zeros that take no memory until they are touched
// and never move. It asks for huge pages: weights of 90 MB in small ones are more than a
// processor keeps addresses of, and a short text reads all of them.
func reserve(size uint64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, &fault.Error{Op: "kernels: reserve memory", Backend: "cpu", Err: because(fault.ErrUnavailable, err)}
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // where the system has none, small ones do
	return b, nil
}

func release(b []byte) error { return unix.Munmap(b) }

// discard gives whole pages within b back to the system; they read as zero.
func discard(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

// sharedMemory is a directory in memory.
const sharedMemory = "/dev/shm"

// hold locks a directory until the file is closed or the process ends. It fails
// if another holds it.
func hold(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
