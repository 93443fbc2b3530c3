package self

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"testing"
)

// P12: the code of this test is found in the executable of the test, by its address.
func TestCodeIsFoundByItsAddress(t *testing.T) {
	m, err := library()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if m.path != own {
		t.Errorf("the code is in %s, want %s", m.path, own)
	}
	f, err := m.open()
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// P12: a file that took the place of the one in memory is not taken for it.
func TestReplacedFileIsNotTheCode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib.so")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := (mapping{path: path, inode: 1}).open(); err == nil {
		_ = f.Close()
		t.Error("another file was opened")
	}
}

// P12: lines of /proc/self/maps, one of them with a blank in its path.
func TestFind(t *testing.T) {
	const maps = "1000-2000 r--p 00000000 08:01 11 /bin/server\n" +
		"2000-3000 r-xp 00001000 08:01 12 /opt/my libs/libkiln.so\n" +
		"3000-4000 rw-p 00000000 00:00 0 \n" +
		"4000-5000 rw-p 00000000 00:00 0 [heap]\n"
	for address, want := range map[uint64]mapping{
		0x1000: {"/bin/server", 11}, 0x1fff: {"/bin/server", 11}, 0x2000: {"/opt/my libs/libkiln.so", 12},
		0x3000: {}, 0x4000: {}, 0x5000: {}, 0: {},
	} {
		got, err := find(maps, address)
		if got != want || (err == nil) != (want != mapping{}) {
			t.Errorf("%#x is in %v (%v), want %v", address, got, err, want)
		}
	}
}

// E2: a library starts the program beside it, and says what to install where there is none.
func TestChildStandsBesideTheLibrary(t *testing.T) {
	dir := t.TempDir()
	if path, err := beside(filepath.Join(dir, "libkiln.so")); err == nil {
		t.Errorf("%s is started, and is not there", path)
	}
	want := filepath.Join(dir, Child)
	if err := os.Mkdir(want, 0o700); err != nil {
		t.Fatal(err)
	}
	if path, err := beside(filepath.Join(dir, "libkiln.so")); err == nil {
		t.Errorf("%s is started, and is a folder", path)
	}
	if err := os.Remove(want); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if path, err := beside(filepath.Join(dir, "libkiln.so")); err != nil || path != want {
		t.Errorf("%s is started (%v), want %s", path, err, want)
	}
	if path, err := Start(); err != nil || path != executable {
		t.Errorf("an executable starts %s (%v), want itself", path, err)
	}
}

// P12: only a build for other languages is a library.
func TestLoaded(t *testing.T) {
	got := make(map[string]bool)
	for _, mode := range []string{"exe", "pie", "c-shared", "c-archive"} {
		got[mode] = loaded([]debug.BuildSetting{{Key: "-compiler", Value: "gc"}, {Key: "-buildmode", Value: mode}})
	}
	want := map[string]bool{"exe": false, "pie": false, "c-shared": true, "c-archive": true}
	if !reflect.DeepEqual(got, want) || loaded(nil) || Loaded() {
		t.Errorf("loaded: %v, want %v", got, want)
	}
}
