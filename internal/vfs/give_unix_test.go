//go:build unix

package vfs

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// P13: root gives the folder that it has made to the user, and none that the user has put in its
// place: one that has something of root's in it, or belongs to another.
func TestGivesNoFolderOfRoots(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	const nobody, another = 65534, 65533
	path := t.TempDir()
	dir, err := unix.Open(path, folderOnly, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for _, name := range []string{"made", "full/x", "foreign", "used/x"} {
		if err := os.MkdirAll(path+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chown(path+"/foreign", another, -1), os.Chown(path+"/used/x", nobody, -1)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{"made": nobody, "used": nobody, "full": 0, "foreign": another} {
		err := give(dir, name, nobody)
		info, e := os.Lstat(path + "/" + name)
		if e != nil {
			t.Fatal(e)
		}
		unsafe := new(Unsafe)
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != want || errors.As(err, &unsafe) != (want != nobody) {
			t.Errorf("%s belongs to user %d, want %d: %v", name, owner, want, err)
		}
	}
}
