//go:build unix

package vfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/kiln-cache/kiln/internal/vfs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func root(t *testing.T) (vfs.FS, string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return vfs.Dir(dir + "/a/b"), dir + "/a/b"
}

// What a store needs of files, once around.
func TestFiles(t *testing.T) {
	f, dir := root(t)
	must(t, f.Mkdir("."))
	must(t, f.Mkdir("."))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
	must(t, f.Mkdir("d"))
	must(t, vfs.WriteNew(f, "d/x", true, []byte("one"), nil, []byte("two")))
	if err := vfs.WriteNew(f, "d/x", false); !errors.Is(err, fs.ErrExist) {
		t.Error("written over:", err)
	}
	text, err := vfs.ReadFile(f, "d/x", 6)
	if string(text) != "onetwo" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if _, err := vfs.ReadFile(f, "d/x", 5); !errors.Is(err, vfs.ErrTooLong) {
		t.Error("too long:", err)
	}
	if _, err := vfs.ReadFile(f, "d", 5); err == nil {
		t.Error("read a folder")
	}
	must(t, f.Link("d/x", "d/y"))
	if err := f.Link("d/x", "d/y"); !errors.Is(err, fs.ErrExist) {
		t.Error("linked over:", err)
	}
	info, err := f.Lstat("d/y")
	must(t, err)
	if info.Name != "y" || info.Links != 2 || info.Size != 6 || !info.Regular() || int(info.Owner) != os.Geteuid() || info.Mode.Perm() != 0o600 {
		t.Errorf("%+v", info)
	}
	must(t, f.Rename("d/y", "d/z"))
	list, err := f.ReadDir("d")
	if err != nil || len(list) != 2 || list[0].Name != "x" || list[1].Name != "z" {
		t.Error(list, err)
	}
	must(t, f.SyncDir("d"))
	if err := f.Remove("d"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Error("removed a folder that is not empty:", err)
	}
	must(t, f.RemoveAll("d"))
	if _, err := f.Lstat("d"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// P4: no link is followed, wherever in a name it stands, and nothing blocks.
func TestNothingIsFollowed(t *testing.T) {
	f, dir := root(t)
	must(t, f.Mkdir("."))
	outside := filepath.Dir(dir)
	must(t, os.WriteFile(outside+"/secret", []byte("x"), 0o600))
	must(t, os.Symlink("..", dir+"/up"))
	must(t, os.Symlink("../secret", dir+"/link"))
	must(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	for _, name := range []string{"link", "up/secret", "up/b/link"} {
		if file, err := f.Open(name); err == nil {
			t.Errorf("%s was opened", name)
			_ = file.Close()
		}
	}
	if _, err := f.Create("up/new"); err == nil {
		t.Error("created outside")
	}
	if _, err := f.ReadDir("up"); err == nil {
		t.Error("listed outside")
	}
	if _, err := f.Update("pipe"); !errors.Is(err, fs.ErrInvalid) {
		t.Error("a FIFO was taken for a file:", err)
	}
	if _, err := vfs.ReadFile(f, "pipe", 10); !errors.Is(err, fs.ErrInvalid) {
		t.Error("a FIFO was read:", err)
	}
	must(t, f.RemoveAll("up"))
	if _, err := os.Stat(outside + "/secret"); err != nil {
		t.Error("removed through a link:", err)
	}
}

// A lock excludes other openings until it is closed.
func TestLock(t *testing.T) {
	f, _ := root(t)
	must(t, f.Mkdir("."))
	open := func() vfs.File {
		file, err := f.Update("lock")
		must(t, err)
		return file
	}
	a, b := open(), open()
	if got, err := a.TryLock(); !got || err != nil {
		t.Error("not locked", err)
	}
	if got, err := b.TryLock(); got || err != nil {
		t.Error("locked twice", err)
	}
	must(t, a.Close())
	if got, err := b.TryLock(); !got || err != nil {
		t.Error("still locked", err)
	}
	must(t, b.Close())
}

// Watch counts each operation and fails those it is told to.
func TestWatch(t *testing.T) {
	f, _ := root(t)
	must(t, f.Mkdir("."))
	counts := map[string]int{}
	failing := ""
	w := vfs.Watch(f, func(op string) error {
		counts[op]++
		if op == failing {
			return syscall.ENOSPC
		}
		return nil
	})
	n := 0
	fresh := func() string { n++; return fmt.Sprint("n", n) }
	must(t, vfs.WriteNew(f, "x", false, []byte("x")))
	must(t, vfs.WriteNew(f, "y", false, []byte("y")))
	for _, c := range []struct {
		op string
		do func() error
	}{
		{"mkdir", func() error { return w.Mkdir(fresh()) }},
		{"write", func() error { return vfs.WriteNew(w, fresh(), false, []byte("x")) }},
		{"sync", func() error { return vfs.WriteNew(w, fresh(), true, []byte("x")) }},
		{"read", func() error { _, err := vfs.ReadFile(w, "x", 9); return err }},
		{"syncdir", func() error { return w.SyncDir(".") }},
		{"rename", func() error { return w.Rename("y", "z") }},
		{"rename", func() error { return w.Link("x", fresh()) }},
		{"open", func() error { _, err := w.ReadDir("."); return err }},
		{"open", func() error { return vfs.WriteNew(w, fresh(), false) }},
	} {
		clear(counts)
		must(t, c.do())
		if counts[c.op] != 1 {
			t.Errorf("%s: counted %v", c.op, counts)
		}
		failing = c.op
		if err := c.do(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", c.op, err)
		}
		failing = ""
	}
}

// Of many who take one name, one gets it; bytes of one file that are not the
// same are written and read at once.
func TestHammer(t *testing.T) {
	const writers, rounds, part = 8, 50, 64
	plain, _ := root(t)
	f := vfs.Watch(plain, func(string) error { return nil })
	must(t, f.Mkdir("."))
	shared, err := f.Create("shared")
	must(t, err)
	defer shared.Close()
	var mu sync.Mutex
	took := make(map[string]int)
	var start, done sync.WaitGroup
	start.Add(1)
	for w := range writers {
		done.Go(func() {
			start.Wait()
			mine := make([]byte, part)
			for n := range rounds {
				for i := range mine {
					mine[i] = byte(w + n)
				}
				name := fmt.Sprint("name", n)
				switch err := vfs.WriteNew(f, name, false, mine); {
				case err == nil:
					mu.Lock()
					took[name]++
					mu.Unlock()
				case !errors.Is(err, fs.ErrExist):
					t.Error(err)
				}
				got := make([]byte, part)
				if _, err := shared.WriteAt(mine, int64(w*part)); err != nil {
					t.Error(err)
				}
				if _, err := shared.ReadAt(got, int64(w*part)); err != nil || string(got) != string(mine) {
					t.Errorf("writer %d, round %d: read %x, %v", w, n, got[0], err)
				}
			}
		})
	}
	start.Done()
	done.Wait()
	for n := range rounds {
		if got := took[fmt.Sprint("name", n)]; got != 1 {
			t.Errorf("name%d was made %d times", n, got)
		}
	}
}
