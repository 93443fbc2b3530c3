//go:build unix

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is the folder at an absolute path of the machine's file system. The path must
// have no symbolic links: the caller resolves them first. The folder is opened by the
// first call and then held, until Close: what takes its path later is not looked at.
// Lstat and Mkdir of "." open the path again if the folder was removed.
func Dir(root string) FS { return &native{path: filepath.Clean(root)} }

func machine() (func(root string) FS, error) { return Dir, nil }

type native struct {
	path  string
	held  atomic.Pointer[folder]
	ended atomic.Bool // held stays nil
}

// folder is an open folder. It is closed when nobody uses it: the operations under way,
// and the native that holds it. That of a native without Close is when nobody refers to it.
type folder struct {
	fd      int
	owner   uint32
	users   atomic.Int64
	cleanup runtime.Cleanup
}

func (f *folder) enter() bool {
	for n := f.users.Load(); n > 0; n = f.users.Load() {
		if f.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (f *folder) leave() {
	if f.users.Add(-1) == 0 {
		f.cleanup.Stop()
		_ = unix.Close(f.fd) // nothing was written to it
	}
}

func (n *native) Root() string { return n.path }

const always = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK

// folderOnly opens a folder. Nothing else is waited for, so it needs no O_NONBLOCK, with
// which os.NewFile would offer each folder to the poller.
const folderOnly = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW

// root gives the folder that is held. Its leave must follow.
func (n *native) root() (*folder, error) {
	for {
		f := n.held.Load()
		switch {
		case f != nil && f.enter():
			return f, nil
		case f != nil: // another call has closed it since
			continue
		case n.ended.Load():
			return nil, fs.ErrClosed
		}
		f, err := n.openRoot()
		if err != nil {
			return nil, err
		}
		if !n.held.CompareAndSwap(nil, f) {
			f.leave()
			continue
		}
		if n.ended.Load() { // Close may have found nothing yet
			n.drop(f)
		}
	}
}

// drop gives up the folder that is held, if it is that one.
func (n *native) drop(f *folder) {
	if f != nil && n.held.CompareAndSwap(f, nil) {
		f.leave()
	}
}

func (n *native) Close() error {
	n.ended.Store(true)
	n.drop(n.held.Load())
	return nil
}

func (n *native) openRoot() (*folder, error) {
	fd, err := retry(func() (int, error) { return openWhole(n.path, folderOnly) })
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	f := &folder{fd: fd, owner: st.Uid}
	f.users.Store(1)
	f.cleanup = runtime.AddCleanup(f, func(fd int) { _ = unix.Close(fd) }, fd)
	return f, nil
}

// retry makes a call again that a signal has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

func (n *native) open(name string, flags int, mode uint32) (int, *folder, error) {
	root, err := n.root()
	if err != nil {
		return -1, nil, wrap("open", name, err)
	}
	defer root.leave()
	fd, err := retry(func() (int, error) { return openBeneath(root.fd, name, flags, mode) })
	return fd, root, wrap("open", name, err)
}

// in calls do with the folder in which a name lies, and with its last element.
func (n *native) in(op, name string, do func(dir int, last string) error) error {
	last := name[strings.LastIndexByte(name, '/')+1:]
	if last == name {
		root, err := n.root()
		if err == nil {
			err = do(root.fd, last)
			root.leave()
		}
		return wrap(op, name, err)
	}
	dir, _, err := n.open(name[:len(name)-len(last)-1], search, 0)
	if err != nil {
		return err
	}
	err = do(dir, last)
	_ = unix.Close(dir) // it was only looked at
	return wrap(op, name, err)
}

func (n *native) Open(name string) (File, error) { return n.file(name, unix.O_RDONLY) }

func (n *native) Create(name string) (File, error) {
	return n.file(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
}

func (n *native) Update(name string) (File, error) { return n.plain(name, 0) }
func (n *native) Append(name string) (File, error) { return n.plain(name, unix.O_APPEND) }

func (n *native) plain(name string, flags int) (File, error) {
	f, err := n.file(name, unix.O_RDWR|unix.O_CREAT|flags)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Regular() {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}, err, f.Close())
	}
	return f, nil
}

func (n *native) file(name string, flags int) (File, error) {
	owner := -1
	if flags&unix.O_CREAT != 0 {
		owner = n.behalf()
	}
	made := owner >= 0
	if made && flags&unix.O_EXCL == 0 { // only what this call makes is given away
		if f, err := n.file(name, flags&^unix.O_CREAT); !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		f, err := n.file(name, flags|unix.O_EXCL)
		if errors.Is(err, fs.ErrExist) {
			return n.file(name, flags&^unix.O_CREAT)
		}
		return f, err
	}
	var fd int
	var root *folder
	theirs, err := asUser(owner, func() (err error) {
		fd, root, err = n.open(name, flags|always, 0o600)
		return err
	})
	if err == nil && made && !theirs {
		if err = wrap("chown", name, unix.Fchown(fd, int(root.owner), -1)); err != nil {
			_ = unix.Close(fd) // nothing was written to it
		}
	}
	if err != nil {
		return nil, err
	}
	if err := check(fd, name, root); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &file{fd: fd, name: name, appends: flags&unix.O_APPEND != 0}, nil
}

// check refuses an open file or folder that another user owns or can write. Root and
// the user whose directory root has opened may own it. What root makes there it gives to that
// user: a file of root with several names is one that the user has linked there.
func check(fd int, name string, root *folder) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return wrap("fstat", name, err)
	}
	user := os.Geteuid()
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFDIR: // its reader refuses it
	case st.Uid != 0 && int(st.Uid) != user && (user != 0 || st.Uid != root.owner):
		return wrap("open", name, &Unsafe{"owner"})
	case st.Uid != root.owner && st.Mode&unix.S_IFMT == unix.S_IFREG && user == 0 && st.Nlink > 1:
		return wrap("open", name, &Unsafe{"owner"})
	case st.Mode&0o022 != 0:
		return wrap("open", name, &Unsafe{"mode"})
	}
	return nil
}

func (n *native) ReadDir(name string) ([]Info, error) {
	fd, root, err := n.open(name, folderOnly, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if name != "." { // which its user judges
		if err := check(fd, name, root); err != nil {
			return nil, err
		}
	}
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

func (n *native) Lstat(name string) (Info, error) {
	if name == "." {
		return n.look()
	}
	var st unix.Stat_t
	err := n.in("lstat", name, func(dir int, last string) error {
		return unix.Fstatat(dir, last, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return Info{}, err
	}
	return infoOf(name, &st), nil
}

// look describes the root. If that was removed, it opens what has its path now.
func (n *native) look() (Info, error) {
	var st unix.Stat_t
	for again := false; ; again = true {
		root, err := n.root()
		if err == nil {
			err = unix.Fstat(root.fd, &st)
			root.leave()
		} else if err == unix.EACCES || err == unix.ENOTDIR { // its owner, or what it is, says why
			err = unix.Lstat(n.path, &st)
			return infoOf(".", &st), wrap("lstat", ".", err)
		}
		if again || err != unix.ESTALE && (err != nil || st.Nlink > 0) {
			return infoOf(".", &st), wrap("lstat", ".", err)
		}
		n.drop(root)
	}
}

func (n *native) Chmod(name string, perm fs.FileMode) error {
	fd, _, err := n.open(name, unix.O_RDONLY|always, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return wrap("chmod", name, unix.Fchmod(fd, uint32(perm.Perm())))
}

func (n *native) Mkdir(name string) error {
	if name == "." {
		return n.MakeRoot(nil)
	}
	return n.in("mkdir", name, func(dir int, last string) error { return mkdir(dir, last, n.behalf()) })
}

// mkdir makes a folder for a user; below 0 = for this one.
func mkdir(dir int, name string, user int) error {
	theirs, err := asUser(user, func() error { return unix.Mkdirat(dir, name, 0o700) })
	if err == nil && user >= 0 && !theirs {
		err = give(dir, name, user)
	}
	return err
}

// asUser makes something with the rights of a user, so that it is theirs before others see it.
// What they may not make, or below 0, it makes with this process's.
func asUser(user int, do func() error) (theirs bool, err error) {
	if user >= 0 {
		if done, err := as(user, do); done && !errors.Is(err, fs.ErrPermission) {
			return true, err
		}
	}
	return false, do()
}

// behalf is the user to whom root gives what it makes in the directory of that user, who
// could not use it else; below 0 = there is none.
func (n *native) behalf() int {
	if os.Geteuid() != 0 {
		return -1
	}
	root, err := n.root()
	if err != nil {
		return -1
	}
	defer root.leave()
	if root.owner == 0 {
		return -1
	}
	return int(root.owner)
}

// give gives a folder that root has just made to a user. It follows no link. The user may have
// put another folder of root's in its place since: one that has anything of root's in it stays root's.
func give(dir int, name string, owner int) error {
	fd, err := unix.Openat(dir, name, folderOnly, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	theirs := int(st.Uid) == os.Geteuid()
	for _, inside := range names { // which other processes of root have made, and given, by now
		err := unix.Fstatat(fd, inside, &st, unix.AT_SYMLINK_NOFOLLOW)
		theirs = theirs && (err != nil || int(st.Uid) == owner)
	}
	if !theirs {
		return &Unsafe{"owner"}
	}
	return unix.Fchown(fd, owner, -1)
}

// MakeRoot syncs what it makes, too.
func (n *native) MakeRoot(heir func(owner uint32) bool) error {
	there := filepath.Dir(n.path)
	for {
		if _, err := os.Stat(there); err == nil || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	if err := makeBelow(there, n.path, heir); err != nil {
		return err
	}
	for dir := filepath.Dir(n.path); ; dir = filepath.Dir(dir) {
		above := Dir(dir)
		if err := errors.Join(above.SyncDir("."), above.Close()); err != nil && !NoSync(err) {
			return err
		}
		if dir == there {
			return nil
		}
	}
}

// makeBelow makes the folders of a path below one that is there.
func makeBelow(there, path string, heir func(owner uint32) bool) error {
	var st unix.Stat_t
	dir, err := openWhole(there, search)
	if err == nil {
		err = unix.Fstat(dir, &st)
		defer func() { _ = unix.Close(dir) }() // it was only looked at
	}
	if heir == nil || os.Geteuid() != 0 || err != nil || st.Uid == 0 || !heir(st.Uid) {
		return os.MkdirAll(path, 0o700)
	}
	for name := range strings.SplitSeq(strings.Trim(strings.TrimPrefix(path, there), "/"), "/") {
		err := mkdir(dir, name, int(st.Uid))
		if err != nil && err != unix.EEXIST { // which others have made since
			return wrap("mkdir", path, err)
		}
		below, err := unix.Openat(dir, name, search, 0)
		if err != nil {
			return wrap("open", path, err)
		}
		_ = unix.Close(dir)
		dir = below
	}
	return nil
}

func (n *native) Rename(from, to string) error {
	return n.in("rename", from, func(a int, old string) error {
		return n.in("rename", to, func(b int, new string) error { return unix.Renameat(a, old, b, new) })
	})
}

func (n *native) Exchange(a, b string) error {
	return n.in("exchange", a, func(inA int, lastA string) error {
		return n.in("exchange", b, func(inB int, lastB string) error { return exchange(inA, lastA, inB, lastB) })
	})
}

func (n *native) Link(from, to string) error {
	return n.in("link", from, func(a int, old string) error {
		return n.in("link", to, func(b int, new string) error { return unix.Linkat(a, old, b, new, 0) })
	})
}

func (n *native) Remove(name string) error    { return n.in("remove", name, remove) }
func (n *native) RemoveAll(name string) error { return n.in("remove", name, removeAll) }

func (n *native) RemoveIf(name string, still func() bool) error {
	return n.in("remove", name, func(dir int, last string) error {
		if !still() {
			return nil
		}
		return remove(dir, last)
	})
}

// remove removes a file or an empty folder.
func remove(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return err
	}
	if e := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); e != unix.ENOTDIR {
		return e
	}
	return err
}

// removeAll removes a folder with its content. It follows no link.
func removeAll(dir int, name string) error {
	err := remove(dir, name)
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		if err == unix.ENOENT {
			return nil
		}
		return err
	}
	fd, err := unix.Openat(dir, name, folderOnly, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	for _, inside := range names {
		err = errors.Join(err, removeAll(fd, inside))
	}
	if err != nil {
		return err
	}
	return remove(dir, name)
}

func (n *native) SyncDir(name string) error {
	fd, _, err := n.open(name, folderOnly, 0)
	if err != nil {
		return err
	}
	err = unix.Fsync(fd)
	if e := unix.Close(fd); err == nil {
		err = e
	}
	return wrap("fsync", name, err)
}

func (n *native) SyncAll() error {
	root, err := n.root()
	if err == nil {
		err = syncAll(root.fd)
		root.leave()
	}
	return wrap("syncfs", ".", err)
}

func (n *native) Free() (free, total int64, err error) {
	root, err := n.root()
	if err == nil {
		free, total, err = space(root.fd)
		root.leave()
	}
	return free, total, wrap("statfs", ".", err)
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
		ModTime: time.Unix(st.Mtim.Unix()), Changed: time.Unix(st.Ctim.Unix()), Inode: st.Ino, Links: uint64(st.Nlink), Owner: st.Uid,
	}
}

// openWalking opens one element of the name after the other, for kernels that cannot
// refuse links in one step.
func openWalking(dir int, name string, flags int, mode uint32) (int, error) {
	first, rest, more := strings.Cut(name, "/")
	if !more {
		return unix.Openat(dir, first, flags, mode)
	}
	fd, err := unix.Openat(dir, first, search, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return openWalking(fd, rest, flags, mode)
}
