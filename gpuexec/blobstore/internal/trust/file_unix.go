//go:build unix

package trust

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
)

// stamp tells one state of the file from another. The time of the last change of
// any kind is in it since that of the content can be set to what it was.
type stamp struct {
	device, inode     uint64
	size              int64
	modified, changed unix.Timespec
}

func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return stamp{}, err
	}
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// read gives the content of the file at a path, if it is a plain one that only
// its owner can write, and this is oneself or root (as SPEC P13, P14 for what the
// list is about).
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for a writer
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrIO, err)
	}
	defer f.Close()
	var st unix.Stat_t
	user := os.Geteuid()
	switch err := unix.Fstat(int(f.Fd()), &st); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", fault.ErrIO, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: the trust list is no plain file", fault.ErrInvalid)
	case st.Mode&0o022 != 0:
		return nil, fmt.Errorf("%w: others can write the trust list (mode %04o): chmod go-w it", fault.ErrRefused, st.Mode&0o777)
	case user > 0 && st.Uid != 0 && int(st.Uid) != user:
		return nil, fmt.Errorf("%w: the trust list belongs to user %d: use one of your own or root's", fault.ErrRefused, st.Uid)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrIO, err)
	}
	if len(text) > most {
		return nil, fmt.Errorf("%w: the trust list has more than %d bytes", fault.ErrInvalid, most)
	}
	return text, nil
}
