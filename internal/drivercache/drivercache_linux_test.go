package drivercache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
)

// fresh is a process whose drivers keep their caches where they are.
func fresh(t *testing.T) {
	for _, d := range drivers {
		for _, name := range []string{d.path, d.bound} {
			if name != "" {
				t.Setenv(name, "") // which is as good as not set, and is put back
			}
		}
	}
	t.Cleanup(func() {
		if used.lock != nil {
			_ = used.lock.Close()
		}
		used.dir, used.lock = "", nil
	})
}

func value(name string) string {
	text, _ := env.Process()(name)
	return text
}

// A variable that is set is left, with its bound; the others name folders of this machine,
// and a second store is refused.
func TestUse(t *testing.T) {
	fresh(t)
	dir := t.TempDir()
	t.Setenv("CUDA_CACHE_PATH", "mine")
	t.Setenv("__GL_SHADER_DISK_CACHE_SIZE", "7")
	if err := Use(dir, 4<<20, env.Process()); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, ".drivers", machine())
	for name, want := range map[string]string{
		"MESA_SHADER_CACHE_DIR": filepath.Join(at, "mesa"), "MESA_SHADER_CACHE_MAX_SIZE": "4096K", "POCL_CACHE_DIR": filepath.Join(at, "pocl"),
		"CUDA_CACHE_PATH": "mine", "CUDA_CACHE_MAXSIZE": "",
		"__GL_SHADER_DISK_CACHE_PATH": filepath.Join(at, "nvidia"), "__GL_SHADER_DISK_CACHE_SIZE": "7",
	} {
		if got := value(name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
	if err := Use(t.TempDir(), 1, env.Process()); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a second store: %v, want ErrInvalid", err)
	}
	other, err := os.Open(filepath.Join(at, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if flock(other, unix.LOCK_EX) == nil || flock(other, unix.LOCK_SH) != nil {
		t.Error("the lock is not shared")
	}
	if err := os.RemoveAll(at); err != nil {
		t.Fatal(err)
	}
	if err := Use(dir, 1, env.Process()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(at, "pocl")); err != nil {
		t.Errorf("a folder that was removed is not made again: %v", err)
	}
}

// A child that inherits the variables from a process that uses such a folder has its own.
func TestChildHasItsOwnStore(t *testing.T) {
	fresh(t)
	parent := filepath.Join(t.TempDir(), ".drivers", machine())
	t.Setenv("POCL_CACHE_DIR", filepath.Join(parent, "pocl"))
	t.Setenv("MESA_SHADER_CACHE_DIR", filepath.Join(parent, "mesa"))
	t.Setenv("MESA_SHADER_CACHE_MAX_SIZE", "1K")
	dir := t.TempDir()
	if err := Use(dir, 2<<10, env.Process()); err != nil {
		t.Fatal(err)
	}
	if got := value("POCL_CACHE_DIR"); got != filepath.Join(dir, ".drivers", machine(), "pocl") {
		t.Errorf("POCL_CACHE_DIR=%s", got)
	}
	if got := value("MESA_SHADER_CACHE_MAX_SIZE"); got != "2K" {
		t.Errorf("MESA_SHADER_CACHE_MAX_SIZE=%s", got)
	}
}

// P13: what is no folder of this user alone is not used, nothing is removed beyond it, and
// no variable is set.
func TestFoldersOfOthers(t *testing.T) {
	for what, spoil := range map[string]func(dir, machine, pocl, outside string) error{
		"a link in place of the machine's": func(_, machine, _, outside string) error {
			return errors.Join(os.RemoveAll(machine), os.Symlink(outside, machine))
		},
		"a link in place of all": func(dir, machine, _, outside string) error {
			home := filepath.Dir(machine)
			return errors.Join(os.RemoveAll(home), os.Symlink(outside, home))
		},
		"a link in place of a driver's": func(_, _, pocl, outside string) error {
			return errors.Join(os.Remove(pocl), os.Symlink(outside, pocl))
		},
		"a file":             func(_, _, pocl, _ string) error { return errors.Join(os.Remove(pocl), os.WriteFile(pocl, nil, 0o600)) },
		"one that all write": func(_, _, pocl, _ string) error { return os.Chmod(pocl, 0o777) },
		"another user's": func(_, _, pocl, _ string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(pocl, 0o777) // the other way
			}
			return os.Chown(pocl, 65534, 65534)
		},
		"a lock that is a FIFO": func(_, machine, _, _ string) error {
			lock := filepath.Join(machine, "lock")
			return errors.Join(os.WriteFile(filepath.Join(machine, "mesa"), nil, 0o600), syscall.Mkfifo(lock, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			fresh(t)
			dir, outside := t.TempDir(), t.TempDir()
			at := filepath.Join(dir, ".drivers", machine())
			precious := filepath.Join(outside, "pocl", "my", "thesis")
			mine := filepath.Join(outside, "my", "thesis")
			if err := errors.Join(os.MkdirAll(filepath.Join(at, "pocl"), 0o700), os.MkdirAll(precious, 0o700), os.MkdirAll(mine, 0o700),
				os.WriteFile(filepath.Join(precious, "a"), make([]byte, 100), 0o600), os.WriteFile(filepath.Join(mine, "a"), make([]byte, 100), 0o600),
				spoil(dir, at, filepath.Join(at, "pocl"), outside)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := Use(dir, 1, env.Process()); err == nil {
					t.Error("it is used")
				}
			}
			for _, d := range drivers {
				if value(d.path) != "" {
					t.Errorf("%s=%s", d.path, value(d.path))
				}
			}
			for _, path := range []string{filepath.Join(precious, "a"), filepath.Join(mine, "a")} {
				if _, err := os.Stat(path); err != nil {
					t.Errorf("outside: %v", err)
				}
			}
		})
	}
}

// A process that stopped while it cleared the folder up holds nobody up for long.
func TestStoppedCleaner(t *testing.T) {
	fresh(t)
	dir := t.TempDir()
	first, err := enter(dir, filepath.Join(home, machine()), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := flock(first, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := Use(dir, 1, env.Process()); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// The oldest programs go, as soon as nobody else uses the folder. What cannot be removed
// is passed over.
func TestBound(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for i, name := range []string{"AA/old", "AB/middle", "AA/young"} {
		at := filepath.Join(dir, "f", pocl, name, "kernel")
		file := filepath.Join(at, "x.so")
		if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(file, make([]byte, 40<<10), 0o600)); err != nil {
			t.Fatal(err)
		}
		when := now.Add(time.Duration(i-3) * time.Hour)
		for _, path := range []string{file, at, filepath.Dir(at)} {
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f", pocl, "tempfile_a"), nil, 0o600), os.MkdirAll(filepath.Join(dir, "f", pocl, "tempfile_b", "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) {
		for _, pattern := range []string{"??/*", "tempfile*"} {
			paths, _ := filepath.Glob(filepath.Join(dir, "f", pocl, pattern))
			for _, path := range paths {
				names = append(names, filepath.Base(path))
			}
		}
		return names
	}
	check := func(what string, most int64, want ...string) *os.File {
		t.Helper()
		f, err := enter(dir, "f", most)
		if err != nil {
			t.Fatal(err)
		}
		if got := left(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		return f
	}
	first := check("all fit", 1<<30, "old", "young", "middle", "tempfile_b")
	second := check("another process uses the folder", 100<<10, "old", "young", "middle", "tempfile_b")
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	_ = check("two fit", 100<<10, "young", "middle", "tempfile_b").Close()
}

// A process that came second keeps the folder when the first has left it: a third removes
// nothing that it may read.
func TestSecondUserKeepsTheFolder(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "f", pocl, "AA", "one")
	first, err := enter(dir, "f", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	second, err := enter(dir, "f", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Close(), os.MkdirAll(program, 0o700)); err != nil {
		t.Fatal(err)
	}
	third, err := enter(dir, "f", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Errorf("the second process reads there: %v", err)
	}
	if err := errors.Join(second.Close(), third.Close()); err != nil {
		t.Error(err)
	}
}

// The age of a program is that of its newest file, however old its folder is.
func TestBoundGoesByTheNewestFile(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, hours := range map[string][2]time.Duration{"used": {9, 1}, "unused": {5, 5}} { // of the folder, of its file
		at := filepath.Join(dir, "AA", name)
		file := filepath.Join(at, "x.so")
		if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(file, make([]byte, 40<<10), 0o600)); err != nil {
			t.Fatal(err)
		}
		for i, path := range []string{at, file} {
			when := now.Add(-hours[i] * time.Hour)
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	bound(root, ".", 60<<10)
	if left, _ := filepath.Glob(filepath.Join(dir, "AA", "*")); len(left) != 1 || filepath.Base(left[0]) != "used" {
		t.Errorf("%q are left, want what was used last", left)
	}
}

// A bound below a driver's unit is one unit: 0 is no bound to some drivers. And what lies
// there is code that the process runs: it is its user's alone (P13).
func TestSmallBoundAndModes(t *testing.T) {
	fresh(t)
	dir := t.TempDir()
	if err := Use(dir, 5, env.Process()); err != nil {
		t.Fatal(err)
	}
	if got := value("MESA_SHADER_CACHE_MAX_SIZE"); got != "1K" {
		t.Errorf("MESA_SHADER_CACHE_MAX_SIZE=%s, want 1K", got)
	}
	at := filepath.Join(dir, home, machine())
	for _, path := range []string{filepath.Dir(at), at, filepath.Join(at, "mesa"), filepath.Join(at, "pocl"), filepath.Join(at, "lock")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v, want nothing for others", path, info.Mode(), err)
		}
	}
}

// Folders that no process entered for long go when the first process comes, but not those
// that one still uses, and nothing beyond a link (P13).
func TestSweep(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	long := time.Now().Add(-100 * 24 * time.Hour)
	var used *os.File
	for _, name := range []string{"gone", "lately", "used"} {
		at := filepath.Join(dir, home, name)
		if err := errors.Join(os.MkdirAll(filepath.Join(at, "mesa", "x"), 0o700), os.WriteFile(filepath.Join(at, lockFile), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if name != "lately" {
			if err := os.Chtimes(filepath.Join(at, lockFile), long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	used, err := os.Open(filepath.Join(dir, home, "used", lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if err := errors.Join(flock(used, unix.LOCK_SH), os.WriteFile(filepath.Join(outside, lockFile), nil, 0o600), os.Chtimes(filepath.Join(outside, lockFile), long, long),
		os.Symlink(outside, filepath.Join(dir, home, "link"))); err != nil {
		t.Fatal(err)
	}
	for range 2 { // its own is entered again
		lock, err := enter(dir, filepath.Join(home, "mine"), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(lock.Close(), os.Chtimes(filepath.Join(dir, home, "mine", lockFile), long, long)); err != nil {
			t.Fatal(err)
		}
	}
	for name, stays := range map[string]bool{"gone": false, "lately": true, "used": true, "mine": true} {
		if _, err := os.Stat(filepath.Join(dir, home, name)); (err == nil) != stays {
			t.Errorf("%s: %v, stays: want %v", name, err, stays)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, lockFile)); err != nil {
		t.Error(err)
	}
}

// A lock whose file was removed meanwhile guards nothing: the folder is not used.
func TestLockThatWasRemoved(t *testing.T) {
	dir := t.TempDir()
	lock, err := enter(dir, "f", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	name := filepath.Join("f", lockFile)
	if !there(root, name, lock) {
		t.Error("a lock that is there is taken for another's")
	}
	if err := errors.Join(root.Remove(name), root.WriteFile(name, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if there(root, name, lock) {
		t.Error("a lock that was removed is taken for the one that is there")
	}
}
