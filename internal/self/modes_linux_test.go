//go:build cgo

package self

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	said, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, said)
	}
	return string(said)
}

// P12, E2: however the code was built, and without the build's words for it, the file that it
// is in is found, and a library starts the program beside that file: never its host, be it in
// the file of its host.
func TestEachBuildMode(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs")
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	mute, err := filepath.Abs("testdata/mute.sh")
	must(t, err)
	build := func(to string, more ...string) {
		t.Helper()
		run(t, "go", append(append([]string{"build", "-o", in(to), "-toolexec=sh " + mute}, more...), "./testdata/where")...)
	}
	build("exe")
	build("pie", "-buildmode=pie")
	build("shared.so", "-buildmode=c-shared")
	build("archive.a", "-buildmode=c-archive")
	run(t, "gcc", "-o", in("linked"), "testdata/host.c", in("shared.so"), "-Wl,-rpath,"+dir)
	run(t, "gcc", "-o", in("filled"), "testdata/host.c", in("archive.a"), "-pthread", "-lresolv")
	must(t, os.WriteFile(in(Child), nil, 0o700))
	for program, file := range map[string]string{"exe": "exe", "pie": "pie", "linked": "shared.so", "filled": "filled"} {
		info, err := os.Stat(in(file))
		must(t, err)
		library, starts := program == "linked" || program == "filled", executable
		if library {
			starts = in(Child)
		}
		if got, want := run(t, in(program)), fmt.Sprintln(library, info.Size(), nil, starts); got != want {
			t.Errorf("%s says %swant %s", program, got, want)
		}
		t.Setenv("REPLACED", in(file))
		got, want := run(t, in(program)), fmt.Sprintln(library, info.Size(), nil, starts)
		if program == "linked" { // what is on the disk is not what runs
			want = fmt.Sprintf("true 0 the file that Kiln's code was loaded from is gone, or was replaced: open %s (deleted): %v %s\n", in(file), syscall.ENOENT, starts)
		}
		if got != want {
			t.Errorf("%s, replaced while it runs, says %swant %s", program, got, want)
		}
		t.Setenv("REPLACED", "")
	}
}

// P12, E2: a plugin of Go's is a library, too: main of its host knows nothing of children.
func TestPlugin(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds programs")
	}
	dir := t.TempDir()
	plugin, host := filepath.Join(dir, "where.so"), filepath.Join(dir, "host")
	run(t, "go", "build", "-buildmode=plugin", "-o", plugin, "./testdata/where")
	run(t, "go", "build", "-o", host, "./testdata/opens")
	child := filepath.Join(dir, Child)
	must(t, os.WriteFile(child, nil, 0o700))
	info, err := os.Stat(plugin)
	must(t, err)
	if got, want := run(t, host, plugin), fmt.Sprintln(true, info.Size(), nil, child); got != want {
		t.Errorf("it says %swant %s", got, want)
	}
}
