//go:build unix

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is the folder at an absolute path of the machine's file system. The path must
// have no symbolic links: the caller resolves them first.
func Dir(root string) FS { return native(filepath.Clean(root)) }

func machine() (func(root string) FS, error) { return Dir, nil }

type native string

func (n native) Root() string { return string(n) }

func (n native) path(name string) string {
	if name == "." {
		return string(n)
	}
	return string(n) + "/" + name
}

const always = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK

func (n native) open(name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := openBeneath(string(n), name, flags|always, mode)
		if err == unix.EINTR {
			continue
		}
		return fd, wrap("open", name, err)
	}
}

func (n native) Open(name string) (File, error) { return n.file(name, unix.O_RDONLY) }

func (n native) Create(name string) (File, error) {
	return n.file(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
}

func (n native) Update(name string) (File, error) {
	f, err := n.file(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Regular() {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}, err, f.Close())
	}
	return f, nil
}

func (n native) file(name string, flags int) (File, error) {
	fd, err := n.open(name, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{fd: fd, name: name}, nil
}

func (n native) ReadDir(name string) ([]Info, error) {
	fd, err := n.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	list := make([]Info, len(entries))
	for i, e := range entries {
		list[i] = Info{Name: e.Name(), Mode: e.Type()}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (n native) Lstat(name string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Lstat(n.path(name), &st); err != nil {
		return Info{}, wrap("lstat", name, err)
	}
	return infoOf(name, &st), nil
}

func (n native) Mkdir(name string) error {
	if name == "." {
		return n.makeRoot()
	}
	return wrap("mkdir", name, unix.Mkdir(n.path(name), 0o700))
}

// makeRoot makes the root and the missing folders above it, and syncs them.
func (n native) makeRoot() error {
	there := filepath.Dir(string(n))
	for {
		if _, err := os.Stat(there); err == nil || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	if err := os.MkdirAll(string(n), 0o700); err != nil {
		return err
	}
	for dir := filepath.Dir(string(n)); ; dir = filepath.Dir(dir) {
		if err := Dir(dir).SyncDir("."); err != nil && !NoSync(err) {
			return err
		}
		if dir == there {
			return nil
		}
	}
}

func (n native) Rename(from, to string) error {
	return wrap("rename", from, unix.Rename(n.path(from), n.path(to)))
}

func (n native) Link(from, to string) error {
	return wrap("link", to, unix.Link(n.path(from), n.path(to)))
}

func (n native) Remove(name string) error    { return os.Remove(n.path(name)) }
func (n native) RemoveAll(name string) error { return os.RemoveAll(n.path(name)) }

func (n native) SyncDir(name string) error {
	fd, err := n.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = unix.Fsync(fd)
	if e := unix.Close(fd); err == nil {
		err = e
	}
	return wrap("fsync", name, err)
}

// file is a bare descriptor. An os.File registers with the poller, which costs as
// much as reading a small kernel.
type file struct {
	fd     int
	name   string
	locked atomic.Bool
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
		n, err := unix.Pwrite(f.fd, p[done:], offset+int64(done))
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
	for {
		switch err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB); err {
		case nil:
			f.locked.Store(true)
			return true, nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return false, nil
		default:
			return false, wrap("flock", f.name, err)
		}
	}
}

// Close gives the lock back itself: a forked process may have a copy of the
// descriptor, and a lock lasts until the last copy is closed.
func (f *file) Close() error {
	if f.locked.Load() {
		_ = unix.Flock(f.fd, unix.LOCK_UN) // closing gives it back as well
	}
	return wrap("close", f.name, unix.Close(f.fd))
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func infoOf(name string, st *unix.Stat_t) Info {
	mode := fs.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFREG:
	default:
		mode |= fs.ModeDevice
	}
	return Info{
		Name: name[strings.LastIndexByte(name, '/')+1:], Mode: mode, Size: st.Size,
		ModTime: time.Unix(st.Mtim.Unix()), Inode: st.Ino, Links: uint64(st.Nlink), Owner: st.Uid,
	}
}

// openChecked looks at each folder of the name before it opens the name, for kernels
// that cannot refuse links in one step.
func openChecked(root, name string, flags int, mode uint32) (int, error) {
	for i := 0; i < len(name); i++ {
		if name[i] != '/' {
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(root+"/"+name[:i], &st); err != nil {
			return -1, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return -1, unix.ENOTDIR
		}
	}
	return unix.Open(root+"/"+name, flags, mode)
}
