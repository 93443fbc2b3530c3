package vfs

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func (n *native) Boot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty where there is none
	return strings.TrimSpace(string(id))
}

// search opens a folder only to reach what lies in it.
const search = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW

// openBeneath opens a name below an open folder without following any link, in one step.
func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := unix.Openat2(dir, name, &how)
	if err == unix.ENOSYS || err == unix.EPERM { // old kernel, or a sandbox that does not know the call
		return openWalking(dir, name, flags, mode)
	}
	return fd, err
}

// as calls do with the rights of a user. done is false where the system does not let it.
func as(user int, do func() error) (done bool, err error) {
	runtime.LockOSThread() // the rights are the thread's
	_, _ = unix.SetfsuidRetUid(user)
	if now, _ := unix.SetfsuidRetUid(-1); now == user { // -1 changes nothing
		done, err = true, do()
	}
	_, _ = unix.SetfsuidRetUid(os.Geteuid())
	if now, _ := unix.SetfsuidRetUid(-1); now == os.Geteuid() {
		runtime.UnlockOSThread()
	} // else the thread ends with its goroutine
	return done, err
}

// openWhole opens an absolute path in the same way.
func openWhole(path string, flags int) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == unix.ENOSYS || err == unix.EPERM {
		return unix.Open(path, flags, 0)
	}
	return fd, err
}

func exchange(inA int, a string, inB int, b string) error {
	err := unix.Renameat2(inA, a, inB, b, unix.RENAME_EXCHANGE)
	if err == unix.EINVAL || err == unix.ENOSYS { // the file system, or the kernel, does not know it
		return errors.ErrUnsupported
	}
	return err
}

// syncAll syncs the file system of an open folder. On one that is not in the list,
// such as FUSE or NFS, the call may return before a server has written anything.
func syncAll(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return unix.Syncfs(fd)
	}
	return errors.ErrUnsupported
}

func (n *native) Notify(name string) (Bell, error) {
	fd, _, err := n.open(name, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, wrap("notify", name, err)
	}
	b := bell{os.NewFile(uintptr(events), name)}
	if _, err := unix.InotifyAddWatch(events, "/proc/self/fd/"+strconv.Itoa(fd), unix.IN_CLOSE_WRITE|unix.IN_DELETE_SELF); err != nil {
		return nil, errors.Join(wrap("notify", name, err), b.Close())
	}
	return b, nil
}

// bell is a file of events. The runtime's poller waits for it, so Close ends Wait.
type bell struct{ *os.File }

func (b bell) Wait() error {
	var events [4 << 10]byte
	_, err := b.Read(events[:])
	return err
}
