//go:build unix && !linux

package vfs

func openBeneath(root, name string, flags int, mode uint32) (int, error) {
	return openChecked(root, name, flags, mode)
}
