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
	"unsafe"

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
	must(t, f.Mkdir("e"))
	if err := f.Exchange("d/x", "e"); err == nil { // not every file system can
		must(t, f.SyncDir("d/x"))
		must(t, f.Exchange("e", "d/x"))
	} else if !errors.Is(err, errors.ErrUnsupported) {
		t.Error("exchange:", err)
	}
	if err := f.Exchange("d/x", "d/y"); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errors.ErrUnsupported) {
		t.Error("exchanged with nothing:", err)
	}
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
	must(t, vfs.WriteNew(f, "own", false))
	for what, err := range map[string]error{
		"removed": f.Remove("up/secret"), "removed all": f.RemoveAll("up/secret"), "made a folder": f.Mkdir("up/new"),
		"moved out": f.Rename("own", "up/new"), "moved in": f.Rename("up/secret", "new"),
		"linked out": f.Link("own", "up/new"), "linked in": f.Link("up/secret", "new"), "synced": f.SyncDir("up"),
	} {
		if err == nil {
			t.Error(what, "through a link")
		}
	}
	if _, err := f.Lstat("up/secret"); err == nil {
		t.Error("looked through a link")
	}
	must(t, f.RemoveAll("up"))
	if _, err := os.Stat(outside + "/secret"); err != nil {
		t.Error("removed through a link:", err)
	}
}

// P13: the folder is held: what takes its path, or that of a folder above it, is not
// looked at until the folder was removed.
func TestRootIsHeld(t *testing.T) {
	f, dir := root(t)
	must(t, f.Mkdir("."))
	must(t, vfs.WriteNew(f, "x", false, []byte("mine")))
	above := filepath.Dir(dir)
	must(t, os.Rename(above, above+"-away"))
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(dir+"/x", []byte("theirs"), 0o600))
	read := func() string { text, _ := vfs.ReadFile(f, "x", 10); return string(text) }
	if read() != "mine" {
		t.Error("another folder was read")
	}
	must(t, f.RemoveAll("x"))
	must(t, vfs.WriteNew(f, "y", false))
	if _, err := os.Stat(dir + "/x"); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll(above+"-away"))
	if err := vfs.WriteNew(f, "z", false); !errors.Is(err, fs.ErrNotExist) || read() != "" {
		t.Error("wrote into another folder:", err)
	}
	if _, err := f.Lstat("."); err != nil || read() != "theirs" {
		t.Error(err, read())
	}
	must(t, os.RemoveAll(dir))
	if _, err := f.Lstat("."); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	must(t, f.Mkdir("."))
	must(t, vfs.WriteNew(f, "z", false))
}

// P13: what another user owns or can write is not opened.
func TestUnsafe(t *testing.T) {
	f, dir := root(t)
	must(t, f.Mkdir("."))
	must(t, f.Mkdir("d"))
	must(t, vfs.WriteNew(f, "d/x", false))
	field := func(name string) string {
		_, err := f.ReadDir(name)
		if name != "d" {
			var file vfs.File
			if file, err = f.Open(name); err == nil {
				must(t, file.Close())
			}
			if file, again := f.Update(name); again == nil {
				must(t, errors.Join(err, file.Close()))
			}
		}
		if unsafe := new(vfs.Unsafe); errors.As(err, &unsafe) {
			return unsafe.Field
		}
		return fmt.Sprint(err)
	}
	for _, name := range []string{"d", "d/x"} {
		must(t, os.Chmod(dir+"/"+name, 0o720))
		if got := field(name); got != "mode" {
			t.Errorf("%s that others can write: %s", name, got)
		}
		must(t, os.Chmod(dir+"/"+name, 0o755))
		if got := field(name); got != "<nil>" {
			t.Errorf("%s that others can read: %s", name, got)
		}
		if os.Geteuid() != 0 {
			continue
		}
		must(t, os.Chown(dir+"/"+name, 12345, -1))
		if got := field(name); got != "owner" {
			t.Errorf("%s of another user: %s", name, got)
		}
		must(t, os.Chown(dir+"/"+name, 0, -1))
	}
	if os.Geteuid() == 0 { // in that user's own folder root takes it
		must(t, os.Chown(dir+"/d/x", 12345, -1))
		must(t, os.Chown(dir, 12345, -1))
		f = vfs.Dir(dir)
		if got := field("d/x"); got != "<nil>" {
			t.Error("in a folder of that user:", got)
		}
	}
}

// A lock excludes other openings until it is closed. Who waits for it has it then.
func TestLock(t *testing.T) {
	f, _ := root(t)
	must(t, f.Mkdir("."))
	open := func() vfs.File {
		file, err := f.Update("lock")
		must(t, err)
		return file
	}
	a, b, c := open(), open(), open()
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
	waited := make(chan error)
	go func() { waited <- c.Lock() }()
	must(t, b.Close())
	must(t, <-waited)
	d := open()
	if got, err := d.TryLock(); got || err != nil {
		t.Error("locked twice", err)
	}
	must(t, errors.Join(c.Close(), d.Close()))
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
		{"map", func() error { return mapped(w, "x") }},
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

// mapped maps a file, and unmaps it twice, which is to do nothing.
func mapped(fsys vfs.FS, name string) error {
	f, err := fsys.Open(name)
	if err != nil {
		return err
	}
	content, unmap, err := f.(vfs.Mapper).Map(1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	defer unmap()
	defer unmap()
	if string(content) != "x" {
		return fmt.Errorf("%q is mapped", content)
	}
	return nil
}

// P7: to unmap a file twice takes nothing from who maps one at the same address since.
func TestUnmapTwice(t *testing.T) {
	fsys := vfs.Dir(t.TempDir())
	if err := vfs.WriteNew(fsys, "x", false, []byte("x")); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Open("x")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 100 { // the system may put the second elsewhere
		first, unmap, err := f.(vfs.Mapper).Map(1)
		if err != nil {
			t.Fatal(err)
		}
		at := unsafe.SliceData(first)
		unmap()
		second, unmapSecond, err := f.(vfs.Mapper).Map(1)
		if err != nil {
			t.Fatal(err)
		}
		unmap()
		same := unsafe.SliceData(second) == at
		if second[0] != 'x' { // or it is a fault, which ends the process
			t.Errorf("%q is mapped", second)
		}
		unmapSecond()
		if same {
			return
		}
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

// P13: calls that a Close meets work on the folder or answer fs.ErrClosed, never on what
// has its descriptor or its path later.
func TestCloseAmongCalls(t *testing.T) {
	for range 50 {
		f, dir := root(t)
		must(t, f.Mkdir("."))
		must(t, vfs.WriteNew(f, "x", false, []byte("mine")))
		var start, done sync.WaitGroup
		start.Add(1)
		for range 4 {
			done.Go(func() {
				start.Wait()
				for {
					text, err := vfs.ReadFile(f, "x", 10)
					if errors.Is(err, fs.ErrClosed) {
						return
					}
					if err != nil || string(text) != "mine" {
						t.Error(err)
						return
					}
				}
			})
		}
		start.Done()
		must(t, f.Close())
		other, err := os.Open(dir) // may get the descriptor
		must(t, err)
		done.Wait()
		must(t, other.Close())
		_, err = f.Lstat(".")
		for _, err := range []error{err, f.Mkdir("y"), f.Rename("x", "z"), f.SyncAll(), f.Close()} {
			if !errors.Is(err, fs.ErrClosed) && err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Lstat(dir + "/y"); err == nil {
			t.Error("a closed folder was written")
		}
	}
}

// P8: a bell rings when a file that was open for writing is closed, also by the end of its
// process, and when it is removed; not when it is read or written. Close ends a wait.
func TestBell(t *testing.T) {
	f := vfs.Dir(t.TempDir())
	if err := vfs.WriteNew(f, "a", false, []byte("text")); err != nil {
		t.Fatal(err)
	}
	bell := func() vfs.Bell {
		b, err := f.Notify("a")
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	w, err := f.Update("a")
	if err != nil {
		t.Fatal(err)
	}
	b := bell()
	rung := make(chan error)
	go func() { rung <- b.Wait() }()
	if _, err := vfs.ReadFile(f, "a", 10); err != nil {
		t.Error(err)
	}
	if _, err := w.WriteAt([]byte("more"), 0); err != nil {
		t.Error(err)
	}
	select {
	case err := <-rung:
		t.Error("it rang early:", err)
	default:
	}
	if err := errors.Join(w.Close(), <-rung); err != nil {
		t.Error(err)
	}
	go func() { rung <- b.Wait() }()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := <-rung; err == nil {
		t.Error("a closed bell rang")
	}
	b = bell()
	if err := errors.Join(f.Remove("a"), b.Wait(), b.Close()); err != nil {
		t.Error(err)
	}
	if _, err := f.Notify("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a bell of nothing:", err)
	}
}

// P13: root gives the user in whose directory it works what it makes there, and nothing
// that was there. It opens no file of its own that has another name too: the user may have
// linked it there.
func TestRootGivesAwayWhatItMakesOnly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	const nobody = 65534
	t.Setenv("SUDO_UID", fmt.Sprint(nobody))
	f, dir := root(t)
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.Chown(dir, nobody, nobody))
	must(t, os.WriteFile(dir+"/../roots", []byte("root's"), 0o600))
	must(t, os.Link(dir+"/../roots", dir+"/there"))
	must(t, os.WriteFile(dir+"/alone", []byte("root's"), 0o600))
	must(t, os.Mkdir(dir+"/folder", 0o700))
	for _, open := range []func(string) (vfs.File, error){f.Open, f.Update, f.Append} {
		if _, err := open("there"); !errors.Is(err, fs.ErrPermission) {
			t.Error("a file of root's with two names:", err)
		}
	}
	for _, name := range []string{"alone", "made"} {
		file, err := f.Update(name)
		must(t, err)
		must(t, file.Close())
	}
	if err := f.Mkdir("folder"); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if _, err := f.Create("there"); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	for name, want := range map[string]uint32{"there": 0, "alone": 0, "made": nobody, "folder": 0} {
		info, err := os.Lstat(dir + "/" + name)
		must(t, err)
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != want {
			t.Errorf("%s belongs to user %d, want %d", name, owner, want)
		}
	}
}

// P8: a removal under a condition is in the folder that was there before that was asked.
func TestRemoveIf(t *testing.T) {
	f, _ := root(t)
	must(t, f.Mkdir("."))
	must(t, f.Mkdir("d"))
	must(t, vfs.WriteNew(f, "d/x", false))
	must(t, f.RemoveIf("d/x", func() bool { return false }))
	must(t, f.RemoveIf("d/x", func() bool {
		must(t, f.Rename("d", "old"))
		must(t, f.Mkdir("d"))
		must(t, vfs.WriteNew(f, "d/x", false))
		return true
	}))
	if _, err := f.Lstat("d/x"); err != nil {
		t.Error("of the new folder:", err)
	}
	if _, err := f.Lstat("old/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("of the old folder:", err)
	}
	if err := f.RemoveIf("d/y", func() bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Error("what is not there:", err)
	}
}

// uncloseable is a file system that tells of lost bytes when a file is closed, as NFS does.
type uncloseable struct{ vfs.FS }

func (u uncloseable) Create(name string) (vfs.File, error) {
	f, err := u.FS.Create(name)
	return uncloseableFile{f}, err
}

type uncloseableFile struct{ vfs.File }

func (f uncloseableFile) Close() error { return errors.Join(syscall.EDQUOT, f.File.Close()) }

// P5, P10: what a file system takes, and refuses when the file is closed, was not written.
func TestWrittenWhenItIsClosed(t *testing.T) {
	f, _ := root(t)
	must(t, f.Mkdir("."))
	for _, sync := range []bool{false, true} {
		if err := vfs.WriteNew(uncloseable{f}, fmt.Sprint("file-", sync), sync, []byte("text")); !errors.Is(err, syscall.EDQUOT) {
			t.Errorf("synced: %v: %v", sync, err)
		}
	}
}
