//go:build unix

package trust

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// stamp tells one state of the file from another. It has the time of the last change
// of any kind, since the time of the content can be set back.
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

// read gives the content of a plain file that belongs to this user or to root and
// that nobody else can write, as SPEC P13 and P14 have it for the stores.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for a writer
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrIO, err)
	}
	defer f.Close()
	var st unix.Stat_t
	switch err := unix.Fstat(int(f.Fd()), &st); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", fault.ErrIO, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: the trust list is not a plain file", fault.ErrInvalid)
	case st.Mode&0o022 != 0:
		return nil, fmt.Errorf("%w: others can write the trust list (mode %04o): chmod go-w it", fault.ErrRefused, st.Mode&0o777)
	case !vfs.Believes(env.Process(), st.Uid):
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
