//go:build unix

package dl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// E2: of the installed names the first is taken that opens, one behind another that does not
// too. A path is its file alone, from the root and without links, and a name without a folder
// is left as it is. What is no file is not given to the loader.
func TestFirst(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := errors.Join(os.WriteFile("libfile.so.1", nil, 0o600), os.Symlink("libfile.so.1", "liblink.so"), syscall.Mkfifo("libpipe.so", 0o600)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "libfile.so.1")
	for _, c := range []struct {
		path, takes string // takes: what open takes
		asked       []string
		why         string
	}{
		{"", "libnew.so", []string{"libnew.so"}, ""},
		{"", "libold.so", []string{"libnew.so", "libold.so"}, ""},
		{"", "", []string{"libnew.so", "libold.so"}, "no libnew.so; no libold.so"},
		{"libfile.so.1", "libfile.so.1", []string{"libfile.so.1"}, ""},
		{"./liblink.so", file, []string{file}, ""},
		{file, "libold.so", []string{file}, "no " + file},
		{"./libpipe.so", "", nil, "no file"},
		{dir, "", nil, "no file"},
		{"./libnone.so", "", nil, "no such file"},
	} {
		var asked []string
		err := First(c.path, []string{"libnew.so", "libold.so"}, func(name string) error {
			if asked = append(asked, name); name != c.takes {
				return errors.New("no " + name)
			}
			return nil
		})
		if !slices.Equal(asked, c.asked) {
			t.Errorf("%q: %q was asked for, want %q", c.path, asked, c.asked)
		}
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q: %v, want %q", c.path, err, c.why)
		}
	}
}
