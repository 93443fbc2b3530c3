//go:build cgo && linux && (amd64 || arm64)

package nvrtc

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// E2, R3: a library compiles for a program in C, whatever that does with the ends of its
// children, and keeps none of its sockets open. Where the program beside the library is not
// there, or of another build, the error says what to do, and nothing is compiled.
func TestHostInC(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a library")
	}
	compiler := need(t).Path
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	run(t, "go", "build", "-buildmode=c-shared", "-o", in("lib.so"), "./testdata/lib")
	run(t, "gcc", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", in("host"), "testdata/host.c", in("lib.so"), "-Wl,-rpath,"+dir)
	if said := run(t, in("host"), compiler, "default"); !strings.HasPrefix(said, "false ") || !strings.Contains(said, "put kiln-child into the folder of lib.so") {
		t.Errorf("without its program the library says %s", said)
	}
	child := func(more ...string) {
		t.Helper()
		run(t, "go", append(append([]string{"build", "-o", in("kiln-child")}, more...), "../../../../cmd/libkiln/child")...)
	}
	child()
	for _, ends := range []string{"default", "ignore", "nowait", "reap"} {
		if said := run(t, in("host"), compiler, ends); said != "true <nil>\n" {
			t.Errorf("%s: it says %s", ends, said)
		}
	}
	text, err := os.ReadFile("helper.go")
	if err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Abs("helper.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{own: in("helper.go")}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"helper.go": append(text, "\n// of another build\n"...), "overlay": overlay} {
		if err := os.WriteFile(in(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	child("-overlay=" + in("overlay"))
	if said := run(t, in("host"), compiler, "default"); !strings.HasPrefix(said, "false ") || !strings.Contains(said, "kiln-child is of another build") {
		t.Errorf("with the program of another build it says %s", said)
	}
}
