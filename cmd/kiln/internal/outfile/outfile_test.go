package outfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/outfile"
	"github.com/kiln-cache/kiln/internal/fault"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// alone checks that the folder holds one file of this text and mode.
func alone(t *testing.T, path, want string, mode os.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("mode %v, %v", info.Mode(), err)
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
