//go:build unix

package figures

import (
	"crypto/sha256"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// bare makes the system calls that a get cannot do without: it opens and lists the
// bucket, and opens, looks at and reads both files, whose contents it hashes.
func bare(dir, bucket, place string) (get func() error, done func() error, err error) {
	root, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	at := int(root.Fd())
	names := make([]byte, 8<<10)
	get = func() error {
		err := opened(at, bucket, unix.O_DIRECTORY, func(fd int) error {
			for {
				if n, err := unix.ReadDirent(fd, names); err != nil || n == 0 {
					return err
				}
			}
		})
		for _, name := range []string{"/key.bin", "/kernel.bin"} {
			err = errors.Join(err, opened(at, place+name, 0, func(fd int) error {
				var st unix.Stat_t
				if err := unix.Fstat(fd, &st); err != nil {
					return err
				}
				text := make([]byte, st.Size)
				head := min(len(text), 64) // what says how much there is to read
				_, err := unix.Pread(fd, text[:head], 0)
				if err == nil && head < len(text) {
					_, err = unix.Pread(fd, text[head:], int64(head))
				}
				_ = sha256.Sum256(text)
				return err
			}))
		}
		return err
	}
	return get, root.Close, nil
}

// opened opens a name below a folder and looks whose it is.
func opened(at int, name string, flags int, do func(fd int) error) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|flags, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = do(fd)
	}
	return errors.Join(err, unix.Close(fd))
}
