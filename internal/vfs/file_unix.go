//go:build unix

package vfs

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// file is a bare descriptor. An os.File registers with the poller, which costs as
// much as reading a small kernel.
type file struct {
	fd      int
	name    string
	appends bool
	locked  atomic.Bool
}

func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], offset+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return done, wrap("read", f.name, err)
		case n == 0:
			return done, io.EOF
		default:
			done += n
		}
	}
	return done, nil
}

func (f *file) WriteAt(p []byte, offset int64) (int, error) {
	done := 0
	for done < len(p) {
		var n int
		var err error
		if f.appends {
			n, err = unix.Write(f.fd, p[done:])
		} else {
			n, err = unix.Pwrite(f.fd, p[done:], offset+int64(done))
		}
		switch {
		case err == unix.EINTR:
		case err != nil:
			return done, wrap("write", f.name, err)
		default:
			done += n
		}
	}
	return done, nil
}

func (f *file) Stat() (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return Info{}, wrap("fstat", f.name, err)
	}
	return infoOf(f.name, &st), nil
}

func (f *file) Sync() error { return wrap("fsync", f.name, unix.Fsync(f.fd)) }

func (f *file) TryLock() (bool, error) {
	err := f.flock(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func (f *file) Lock() error { return f.flock(unix.LOCK_EX) }

func (f *file) flock(how int) error {
	for {
		switch err := unix.Flock(f.fd, how); err {
		case nil:
			f.locked.Store(true)
			return nil
		case unix.EINTR:
		default:
			return wrap("flock", f.name, err)
		}
	}
}

func (f *file) Map(bytes int64) (content []byte, unmap func(), err error) {
	content, err = unix.Mmap(f.fd, 0, int(bytes), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, wrap("map", f.name, err)
	}
	return content, sync.OnceFunc(func() { _ = unix.Munmap(content) }), nil // it gives no error for what Mmap gave
}

// Close gives the lock back itself: a forked process may have a copy of the
// descriptor, and a lock lasts until the last copy is closed.
func (f *file) Close() error {
	if f.locked.Load() {
		_ = unix.Flock(f.fd, unix.LOCK_UN) // closing gives it back as well
	}
	return wrap("close", f.name, unix.Close(f.fd))
}
