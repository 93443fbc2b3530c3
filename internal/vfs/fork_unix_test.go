//go:build unix

package vfs

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Close gives a lock back also where a forked process has a copy of the descriptor.
func TestCloseUnlocks(t *testing.T) {
	f := Dir(t.TempDir())
	open := func() File {
		file, err := f.Update("lock")
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	a, b := open(), open()
	defer b.Close()
	if got, err := a.TryLock(); !got || err != nil {
		t.Fatal("not locked:", err)
	}
	forked, err := unix.Dup(a.(*file).fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(forked)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := b.TryLock(); !got || err != nil {
		t.Error("still locked after Close:", err)
	}
}
