//go:build unix && !linux

package vfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

func (n *native) Boot() string { return "" }

func (n *native) Notify(string) (Bell, error) { return nil, errors.ErrUnsupported }

const search = unix.O_RDONLY | unix.O_DIRECTORY | always

func openBeneath(dir int, name string, flags int, mode uint32) (int, error) {
	return openWalking(dir, name, flags, mode)
}

func openWhole(path string, flags int) (int, error) { return unix.Open(path, flags, 0) }

func as(int, func() error) (done bool, err error) { return false, nil }

func exchange(int, string, int, string) error { return errors.ErrUnsupported }

func syncAll(int) error { return errors.ErrUnsupported }
