// Package outfile writes the files that a command is told to write. Each appears
// whole or not at all, and Check knows before the work whether it can.
//
// What is there already and is neither a file nor a folder, such as /dev/stdout,
// is written to as it is. Safe for concurrent use.
package outfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kiln-cache/kiln/internal/fault"
)

// Check refuses, as fault.ErrInvalid, a path that Write could not write: one
// that is a folder, or whose folder is not there or takes no files.
func Check(path string) error {
	const op = "file"
	if path == "" {
		return fault.Invalidf(op, "no name: name a file")
	}
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return fault.Invalidf(op, "the folder of %q is not there; make it first", path)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		if info.IsDir() {
			return fault.Invalidf(op, "%q is a folder; name a file in it", path)
		}
		return nil
	}
	f, err := temporary(folder)
	if err != nil {
		return fault.Invalidf(op, "%q cannot be written: %w", path, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Write replaces the file by what write writes, with the mode; after an error the
// old one stands.
func Write(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	if err := Check(path); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fault.Invalidf("file", "%q cannot be written: %w", path, err)
		}
		return errors.Join(write(f), f.Close())
	}
	f, err := temporary(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("%w: %w", fault.ErrIO, err)
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

func temporary(folder string) (*os.File, error) { return os.CreateTemp(folder, ".kiln-*") }
