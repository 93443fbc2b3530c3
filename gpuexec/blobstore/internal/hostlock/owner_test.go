//go:build unix

package hostlock_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// robbed is a directory whose files go before they get their names, as often as it says.
type robbed struct {
	vfs.FS
	left int
}

func (r *robbed) Rename(from, to string) error {
	if r.left--; r.left >= 0 {
		return errors.Join(r.FS.Remove(from), r.FS.Rename(from, to))
	}
	return r.FS.Rename(from, to)
}

// P9: who is killed before its file has its name leaves a file that is told as a dead
// owner's, and nothing elsewhere; who loses it to a sweep begins again.
func TestOwnerBeforeItHasItsName(t *testing.T) {
	dir := vfs.Dir(t.TempDir())
	if err := dir.Mkdir("owner"); err != nil {
		t.Fatal(err)
	}
	name := hostlock.Unique()
	cut := hostlock.Owners{FS: &cutOff{dir}, Folder: "owner"}
	if _, err := cut.Enter(name); err == nil {
		t.Fatal("it has its name")
	}
	o := hostlock.Owners{FS: &robbed{dir, 2}, Folder: "owner"}
	living, err := o.Living()
	if err != nil || len(living) != 2 || living["new-"+name] {
		t.Errorf("%v, %v", living, err)
	}
	for name, lives := range living {
		if !lives && name != hostlock.Process(name) {
			if err := o.Forget(name); err != nil {
				t.Error(err)
			}
		}
	}
	owner, err := o.Enter(name)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Leave()
	if living, err = o.Living(); err != nil || len(living) != 2 || !living[name] {
		t.Errorf("%v, %v", living, err)
	}
	if _, err := (hostlock.Owners{FS: &robbed{dir, 99}, Folder: "owner"}).Enter(hostlock.Unique()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want the cause", err)
	}
}

// looked is a directory where somebody else looks whether the owner of the first new file
// lives, and so has its lock, when its maker wants it.
type looked struct {
	vfs.FS
	other *vfs.File
}

func (l looked) Create(name string) (vfs.File, error) {
	f, err := l.FS.Create(name)
	if err == nil && *l.other == nil {
		if *l.other, err = l.FS.Open(name); err == nil {
			_, err = (*l.other).TryLock()
		}
	}
	return f, err
}

// P9: who lives is seen to live, also if a sweep looked at its file before it was locked.
func TestOwnerWhoseFileWasLookedAt(t *testing.T) {
	dir := vfs.Dir(t.TempDir())
	if err := dir.Mkdir("owner"); err != nil {
		t.Fatal(err)
	}
	var other vfs.File
	const name = "feedfacefeedfacefeedface00000001" // of another process
	owner, err := hostlock.Owners{FS: looked{dir, &other}, Folder: "owner"}.Enter(name)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Leave()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	living, err := hostlock.Owners{FS: dir, Folder: "owner"}.Living()
	if err != nil || !living[name] {
		t.Errorf("%v %v: want it among the living", living, err)
	}
}

// cutOff is the directory of a process that dies when it renames a file.
type cutOff struct{ vfs.FS }

func (cutOff) Rename(string, string) error { return errors.New("killed") }
func (cutOff) Remove(string) error         { return errors.New("killed") }
