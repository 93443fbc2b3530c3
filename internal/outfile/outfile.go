// Package outfile writes the files that a command is told to write. Each appears
// whole or not at all, and Check knows before the work whether it can.
//
// Links are followed, and stay. A terminal, a pipe or a device, and an open file
// such as /dev/stdout, is written to in place. Safe for concurrent use.
package outfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

const op = "file"

// Check refuses, as fault.ErrInvalid, a path that Write could not write: one
// that is a folder, or whose folder is not there or takes no files.
func Check(path string) error {
	path, open, err := resolve(path)
	if err != nil || open {
		return err
	}
	f, err := temporary(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Write replaces the file by what write writes, with the mode; after an error the
// old one stands.
func Write(path string, mode os.FileMode, write func(io.Writer) error) error {
	path, open, err := resolve(path)
	if err != nil {
		return err
	}
	if open {
		return through(path, write)
	}
	f, err := temporary(path)
	if err != nil {
		return err
	}
	err = write(f)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// resolve follows links to the file that is to be replaced or made. It stops
// before what is open: a device, a pipe, or a link of /proc, whose text may name a
// file that another process has by its descriptor, not by that name.
func resolve(path string) (at string, open bool, err error) {
	if path == "" {
		return "", false, fault.Invalidf(op, "no name: name a file")
	}
	given := path
	for range 40 { // as many as the system follows
		folder, err := filepath.EvalSymlinks(filepath.Dir(path))
		if info, e := os.Stat(folder); err != nil || e != nil || !info.IsDir() {
			return "", false, fault.Invalidf(op, "the folder of %q is not there; make it first", path)
		}
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return path, false, nil
		case err != nil:
			return "", false, fault.Invalidf(op, "%q cannot be written: %w", given, err)
		case info.IsDir():
			return "", false, fault.Invalidf(op, "%q is a folder; name a file in it", given)
		case info.Mode().IsRegular():
			return path, false, nil
		case info.Mode()&os.ModeSymlink == 0 || strings.HasPrefix(folder, "/proc/"):
			return path, true, nil
		}
		if path, err = os.Readlink(path); err != nil {
			return "", false, fault.Invalidf(op, "%q cannot be written: %w", given, err)
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
	}
	return "", false, fault.Invalidf(op, "%q is a link that leads round in a circle; name a file", given)
}

// through writes behind what is there. The output of this process goes on where it
// is: opened anew, a file would be written from its beginning.
func through(path string, write func(io.Writer) error) error {
	info, err := os.Stat(path)
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if own, e := f.Stat(); err == nil && e == nil && os.SameFile(own, info) {
			return write(f)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fault.Invalidf(op, "%q cannot be written: %w", path, err)
	}
	return errors.Join(write(f), f.Close())
}

func temporary(path string) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".kiln-*")
	if err != nil {
		return nil, fault.Invalidf(op, "%q cannot be written: %w", path, err)
	}
	return f, nil
}
