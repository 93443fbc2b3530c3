package vfs

import "golang.org/x/sys/unix"

// openBeneath opens a name below root without following any link in one step.
func openBeneath(root, name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, root+"/"+name, &how)
	if err == unix.ENOSYS || err == unix.EPERM { // old kernel, or a sandbox that does not know the call
		return openChecked(root, name, flags, mode)
	}
	return fd, err
}
