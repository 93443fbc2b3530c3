package drivercache

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
)

// A variable that is set is left, with its bound; the others name folders of this machine,
// and a second folder is refused.
func TestUse(t *testing.T) {
	dir := t.TempDir()
	for _, d := range drivers {
		t.Setenv(d.path, "before") // so that the test puts back what was there
		if d.bound != "" {
			t.Setenv(d.bound, "before")
		}
	}
	t.Cleanup(func() {
		_ = used.lock.Close()
		used.dir, used.lock = "", nil
	})
	lookup := func(name string) (string, bool) {
		return "", name == "CUDA_CACHE_PATH" || name == "__GL_SHADER_DISK_CACHE_SIZE"
	}
	if err := Use(dir, 4<<20, lookup); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, machine())
	for name, want := range map[string]string{
		"MESA_SHADER_CACHE_DIR": filepath.Join(at, "mesa"), "MESA_SHADER_CACHE_MAX_SIZE": "4096K", "POCL_CACHE_DIR": filepath.Join(at, "pocl"),
		"CUDA_CACHE_PATH": "before", "CUDA_CACHE_MAXSIZE": "before",
		"__GL_SHADER_DISK_CACHE_PATH": filepath.Join(at, "nvidia"), "__GL_SHADER_DISK_CACHE_SIZE": "before",
	} {
		if got, _ := env.Process()(name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
	if err := Use(dir, 1, lookup); err != nil {
		t.Error(err)
	}
	if err := Use(t.TempDir(), 1, lookup); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a second folder: %v, want ErrInvalid", err)
	}
	other, err := os.Open(filepath.Join(at, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil || unix.Flock(int(other.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		t.Error("the lock is not shared")
	}
}

// The oldest programs go, as soon as nobody else uses the folder.
func TestBound(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for i, name := range []string{"AA/old", "AB/middle", "AA/young"} {
		at := filepath.Join(dir, "pocl", name, "kernel")
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
	if err := os.WriteFile(filepath.Join(dir, "pocl", "tempfile_a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) {
		for _, pattern := range []string{"*/*", "tempfile*"} {
			paths, _ := filepath.Glob(filepath.Join(dir, "pocl", pattern))
			for _, path := range paths {
				names = append(names, filepath.Base(path))
			}
		}
		return names
	}
	first, err := enter(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{"old", "young", "middle"}) {
		t.Errorf("%q, want all programs", got)
	}
	second, err := enter(dir, 100<<10)
	if err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) != 3 {
		t.Errorf("%q while another process uses the folder", got)
	}
	for _, f := range []*os.File{first, second} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	third, err := enter(dir, 100<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if got := left(); !slices.Equal(got, []string{"young", "middle"}) {
		t.Errorf("%q, want the younger two", got)
	}
}

// A process that came second keeps the folder when the first has left it: a third removes
// nothing that it may read.
func TestSecondUserKeepsTheFolder(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "pocl", "AA", "one")
	first, err := enter(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	second, err := enter(dir, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Close(), os.MkdirAll(program, 0o700)); err != nil {
		t.Fatal(err)
	}
	third, err := enter(dir, 1)
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
	if err := bound(dir, 60<<10); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "AA", "*")); len(left) != 1 || filepath.Base(left[0]) != "used" {
		t.Errorf("%q are left, want what was used last", left)
	}
}

// A bound below a driver's unit is one unit: 0 is no bound to some drivers. And what lies
// there is code that the process runs: it is its user's alone (P13).
func TestSmallBoundAndModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "drivers")
	for _, d := range drivers {
		t.Setenv(d.path, "before")
		if d.bound != "" {
			t.Setenv(d.bound, "before")
		}
	}
	t.Cleanup(func() {
		_ = used.lock.Close()
		used.dir, used.lock = "", nil
	})
	if err := Use(dir, 5, func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	if got, _ := env.Process()("MESA_SHADER_CACHE_MAX_SIZE"); got != "1K" {
		t.Errorf("MESA_SHADER_CACHE_MAX_SIZE=%s, want 1K", got)
	}
	at := filepath.Join(dir, machine())
	for _, path := range []string{dir, at, filepath.Join(at, "mesa"), filepath.Join(at, "pocl"), filepath.Join(at, "lock")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v, want nothing for others", path, info.Mode(), err)
		}
	}
}
