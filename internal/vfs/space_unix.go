//go:build linux || darwin || freebsd

package vfs

import "golang.org/x/sys/unix"

// space is what Free gives for an open folder.
func space(fd int) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}
