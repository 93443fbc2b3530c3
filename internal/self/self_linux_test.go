package self

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// P12: the code of this test is found in the executable of the test, by its address.
func TestCodeIsFoundByItsAddress(t *testing.T) {
	m, err := code()
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
	own, err := code()
	if err != nil {
		t.Fatal(err)
	}
	own.path = path
	if f, err := own.open(); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("another file was opened: %v, %v", f, err)
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if f, err := own.open(); err == nil {
		t.Errorf("a pipe was opened: %v", f)
	}
}

// P12: lines of /proc/self/maps, one of them with a blank and a new line in its path.
func TestFind(t *testing.T) {
	const maps = "1000-2000 r--p 00000000 08:01 11 /bin/server\n" +
		"2000-3000 r-xp 00001000 08:02 12 /opt/my\\012libs/libkiln 1.so\n" +
		"3000-4000 rw-p 00000000 00:00 0 \n" +
		"4000-5000 rw-p 00000000 00:00 0 [heap]\n"
	for address, want := range map[uint64]mapping{
		0x1000: {"/bin/server", "08:01", 11}, 0x1fff: {"/bin/server", "08:01", 11}, 0x2000: {`/opt/my\012libs/libkiln 1.so`, "08:02", 12},
		0x3000: {}, 0x4000: {}, 0x5000: {}, 0: {},
	} {
		got, err := find(maps, address)
		if got != want || (err == nil) != (want != mapping{}) {
			t.Errorf("%#x is in %v (%v), want %v", address, got, err, want)
		}
	}
}

// odd are folders that /proc/self/maps calls by one name.
var odd = []string{"a\nb", `a\012b`}

// P12: of two files that have one name there, that in memory is found.
func TestFilesOfOneName(t *testing.T) {
	dir := t.TempDir()
	for _, name := range odd {
		path := filepath.Join(dir, name, "lib.so")
		must(t, os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(name), 0o600))
	}
	for _, name := range odd {
		want := filepath.Join(dir, name, "lib.so")
		f, err := os.Open(want)
		must(t, err)
		bytes, err := syscall.Mmap(int(f.Fd()), 0, 1, syscall.PROT_READ, syscall.MAP_PRIVATE)
		must(t, err, f.Close())
		m, err := at(uint64(uintptr(unsafe.Pointer(&bytes[0]))))
		must(t, err)
		if got := m.where(); got != want {
			t.Errorf("%q is found, want %q", got, want)
		}
		opened, err := m.open()
		must(t, err)
		if text, err := io.ReadAll(opened); string(text) != name || err != nil {
			t.Errorf("of %q, %q is opened, %v", want, text, err)
		}
		must(t, opened.Close(), os.Remove(want))
		if f, err := m.open(); err == nil {
			t.Errorf("of %q, which is gone, %v is opened", want, f)
		}
		must(t, os.WriteFile(want, []byte(name), 0o600), syscall.Munmap(bytes))
	}
}

// P12: an executable is none the less one where maps writes its path in another way.
func TestExecutableInAnOddFolder(t *testing.T) {
	if len(os.Args) > 1 && os.Args[len(os.Args)-1] == "odd" {
		if m, err := file(); Loaded() || m != (mapping{}) || err != nil {
			t.Errorf("it is taken for the library %v, %v", m, err)
		}
		return
	}
	own, err := os.ReadFile(executable)
	must(t, err)
	for _, name := range odd {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, own, 0o700))
		if said, err := exec.Command(path, "-test.run=^TestExecutableInAnOddFolder$", "odd").CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", name, err, said)
		}
	}
}

// E2: a library starts the program beside it, and says what to install where there is none. A
// program that others may have written than the library's owner is not started.
func TestChildStandsBesideTheLibrary(t *testing.T) {
	dir := t.TempDir()
	lib, want := filepath.Join(dir, "libkiln.so"), filepath.Join(dir, Child)
	if err := os.WriteFile(lib, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	starts := func(what, why string) {
		t.Helper()
		path, err := beside(lib)
		if why == "" && (path != want || err != nil) || why != "" && (err == nil || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %q is started (%v), want %q", what, path, err, why)
		}
	}
	starts("there is nothing", "put kiln-child into the folder of libkiln.so")
	must(t, os.Mkdir(want, 0o700))
	starts("a folder", "no file")
	must(t, os.Remove(want), os.WriteFile(want, nil, 0o700))
	starts("a program", "")
	must(t, os.Chmod(want, 0o770))
	starts("a group's", "others may write it who may not write libkiln.so")
	must(t, os.Chmod(lib, 0o660))
	starts("both are a group's", "")
	must(t, os.Chmod(want, 0o702))
	starts("everybody's", "others may write it")
	must(t, os.Chmod(want, 0o700), os.Chmod(dir, 0o777))
	starts("in everybody's folder", "folder")
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	starts("in a folder such as /tmp", "")
	if os.Getuid() == 0 { // who may give files away
		must(t, os.Chown(want, 65534, -1))
		starts("another user's", "user 65534")
		must(t, os.Chown(lib, 65534, -1))
		starts("the library's owner's", "")
		must(t, os.Chown(want, 65534, 65534), os.Chmod(want, 0o770))
		starts("another group's", "others may write it")
		must(t, os.Chmod(want, 0o700), os.Remove(lib))
		starts("another user's, and the library is gone", "user 65534")
	}
	if path, err := Start(); err != nil || path != executable {
		t.Errorf("an executable starts %s (%v), want itself", path, err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
