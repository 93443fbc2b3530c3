package outfile_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/outfile"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// holds checks a file's text.
func holds(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v, want %q", path, got, err, want)
	}
}

// alone checks that the folder holds one file of this text and mode.
func alone(t *testing.T, path, want string, mode os.FileMode) {
	t.Helper()
	holds(t, path, want)
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("%v, %v, want mode %v", info, err, mode)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A file is replaced whole, or stays as it was.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, s := range []string{"one", "two"} {
		if err := outfile.Write(path, 0o640, text(s)); err != nil {
			t.Fatal(err)
		}
		alone(t, path, s, 0o640)
	}
	fails := errors.New("fails")
	err := outfile.Write(path, 0o600, func(w io.Writer) error { return errors.Join(text("half")(w), fails) })
	if !errors.Is(err, fails) {
		t.Error(err)
	}
	alone(t, path, "two", 0o640)
	if err := outfile.Write(os.DevNull, 0o600, text("gone")); err != nil {
		t.Error("a device:", err)
	}
}

// A link stays, and what it leads to is replaced or made: whole or not at all.
func TestWriteThroughLinks(t *testing.T) {
	dir, away := t.TempDir(), t.TempDir()
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Skip("no links here:", err)
		}
		return path
	}
	file := filepath.Join(away, "file")
	far := link("far", file)
	link("over", away)
	for _, path := range []string{far, link("twice", "far"), link("near", filepath.Join("over", "file"))} {
		for _, s := range []string{path + " one", path + " two"} {
			if err := errors.Join(outfile.Check(path), outfile.Write(path, 0o640, text(s))); err != nil {
				t.Error(err)
			}
			alone(t, file, s, 0o640)
		}
		fails := errors.New("fails")
		if err := outfile.Write(path, 0o600, func(w io.Writer) error { return errors.Join(text("half")(w), fails) }); !errors.Is(err, fails) {
			t.Error(err)
		}
		alone(t, file, path+" two", 0o640)
		if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more: %v, %v", path, info, err)
		}
	}
	for _, to := range []string{"circle", away, filepath.Join(away, "none", "file")} {
		path := link("circle", to)
		if err := outfile.Check(path); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("a link to %s: %v", to, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// What a process has open is written to as it is, whatever file that leads to;
// its own output goes on behind what it has said.
func TestWriteToWhatIsOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	dir := t.TempDir()
	for _, own := range []bool{false, true} {
		f, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if own {
			was := os.Stdout
			os.Stdout = f
			defer func() { os.Stdout = was }()
		}
		link := filepath.Join(dir, "stdout")
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), link); err != nil {
			t.Fatal(err)
		}
		err = errors.Join(text("before ")(f), outfile.Check(link), outfile.Write(link, 0o600, text("written ")))
		want := "before written "
		if own {
			want += "behind"
			err = errors.Join(err, text("behind")(f))
		}
		if err != nil {
			t.Error(err)
		}
		holds(t, f.Name(), want)
		open, err := f.Stat()
		if named, e := os.Stat(f.Name()); err != nil || e != nil || !os.SameFile(open, named) {
			t.Errorf("the file was replaced: %v, %v", err, e)
		}
		if to, err := os.Readlink(link); err != nil {
			t.Errorf("the link was replaced: %q, %v", to, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

// What Check refuses, Write refuses; Check leaves nothing and changes nothing.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	paths := []string{dir, filepath.Join(dir, "none", "file"), ""}
	if runtime.GOOS == "linux" {
		paths = append(paths, "/proc/file")
	}
	for _, path := range paths {
		if err := outfile.Check(path); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
		if err := outfile.Write(path, 0o600, text("x")); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
	path := filepath.Join(dir, "file")
	if err := outfile.Check(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made: %v", err)
	}
	if err := outfile.Write(path, 0o600, text("as it is")); err != nil {
		t.Fatal(err)
	}
	if err := outfile.Check(path); err != nil {
		t.Error(err)
	}
	alone(t, path, "as it is", 0o600)
}
