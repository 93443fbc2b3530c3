package outside

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kiln-cache/kiln/fault"
)

// Files are the files of a case: in its directory, in memory (mem:X), or where
// a store keeps a key (S:KEY/kernel.bin). What is in memory lies in a directory
// of this process, whose names no component gets. Safe for concurrent use.
type Files struct {
	// Locate finds the folder in which a component keeps a key; known is false if
	// there is no such component. It is set before the first use; nil knows none.
	Locate func(component, key string) (dir string, known bool, err error)

	dir, memory string
	snapshots   Register[string, tree]
}

func newFiles(dir string) *Files {
	return &Files{dir: dir, memory: fmt.Sprintf("%s-memory-%d", dir, os.Getpid())}
}

// Path gives the place of a FILE; inMemory tells that components get its bytes.
func (f *Files) Path(name string) (path string, inMemory bool, err error) {
	if rest, ok := strings.CutPrefix(name, "mem:"); ok {
		return filepath.Join(f.memory, url.PathEscape(rest)), true, nil
	}
	if component, rest, found := strings.Cut(name, ":"); found && f.Locate != nil {
		key, file := rest, ""
		if slash := strings.LastIndexByte(rest, '/'); slash >= 0 {
			key, file = rest[:slash], rest[slash+1:]
		}
		dir, known, err := f.Locate(component, key)
		if known || err != nil {
			return filepath.Join(dir, file), false, err
		}
	}
	if !filepath.IsLocal(name) {
		return "", false, invalid("file", "%s is not inside the case's directory", name)
	}
	return filepath.Join(f.dir, name), false, nil
}

// at runs do with a FILE's place, and onDisk for what has no meaning in memory. An
// error of the file system gets its sentinel.
func (f *Files) at(name string, do func(path string) error) error {
	path, _, err := f.Path(name)
	if err != nil {
		return err
	}
	return outcome(name, do(path))
}

func (f *Files) onDisk(op, name string, do func(path string) error) error {
	if _, inMemory, _ := f.Path(name); inMemory {
		return invalid(op, "%s has no place on disk", name)
	}
	return f.at(name, do)
}

// Read gives a file's bytes.
func (f *Files) Read(name string) (text []byte, err error) {
	err = f.at(name, func(path string) error {
		text, err = os.ReadFile(path)
		return err
	})
	return text, err
}

// Write replaces a file's bytes in place, folders made on the way. What is
// there and is no regular file goes first: a FIFO would block, a link lead away.
func (f *Files) Write(name string, text []byte) error {
	return f.at(name, func(path string) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
		return os.WriteFile(path, text, 0o600)
	})
}

// Edit changes a file's bytes in place.
func (f *Files) Edit(name string, change func([]byte) ([]byte, error)) error {
	text, err := f.Read(name)
	if err != nil {
		return err
	}
	if text, err = change(text); err != nil {
		return err
	}
	return f.Write(name, text)
}

// Flip turns one bit of a byte; a negative place counts from the end.
func Flip(text []byte, place, bit int) ([]byte, error) {
	if place < 0 {
		place += len(text)
	}
	if place < 0 || place >= len(text) {
		return nil, invalid("flip", "the file has %d bytes", len(text))
	}
	text[place] ^= 1 << bit
	return text, nil
}

// Remove removes a file or a folder with all that is in it.
func (f *Files) Remove(name string) error {
	return f.at(name, func(path string) error {
		if _, err := os.Lstat(path); err != nil {
			return err
		}
		return os.RemoveAll(path)
	})
}

// Mkdir makes a folder with that mode, and those on the way to it.
func (f *Files) Mkdir(name string, mode fs.FileMode) error {
	return f.onDisk("mkdir", name, func(path string) error {
		if err := os.MkdirAll(path, mode|0o700); err != nil {
			return err
		}
		return os.Chmod(path, mode)
	})
}

// Chmod sets the permission bits.
func (f *Files) Chmod(name string, mode fs.FileMode) error {
	return f.onDisk("chmod", name, func(path string) error { return os.Chmod(path, mode) })
}

// make makes something new at a place, folders on the way to it included.
func (f *Files) make(op, name string, mk func(path string) error) error {
	return f.onDisk(op, name, func(path string) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return mk(path)
	})
}

// Symlink makes a link that says target as it stands.
func (f *Files) Symlink(name, target string) error {
	return f.make("symlink", name, func(path string) error { return os.Symlink(target, path) })
}

// Fifo makes a named pipe.
func (f *Files) Fifo(name string) error {
	return f.make("fifo", name, func(path string) error { return mkfifo(path, 0o600) })
}

// Sparse makes a file of that length without content.
func (f *Files) Sparse(name string, length int64) error {
	return f.make("sparse", name, func(path string) error {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(file.Truncate(length), file.Close())
	})
}

// Copy copies a file, or a folder with all that is in it.
func (f *Files) Copy(from, to string) error {
	t, err := f.tree(from)
	if err != nil {
		return err
	}
	if text, single := t.single(); single {
		return f.Write(to, text)
	}
	return f.onDisk("copy", to, t.restore)
}

// Exists tells whether something is there, links not followed.
func (f *Files) Exists(name string) (there bool, err error) {
	err = f.at(name, func(path string) error {
		_, err := os.Lstat(path)
		there = err == nil
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		return err
	})
	return there, err
}

// Mode gives the permission bits.
func (f *Files) Mode(name string) (mode fs.FileMode, err error) {
	err = f.onDisk("mode", name, func(path string) error {
		info, err := os.Lstat(path)
		if err == nil {
			mode = info.Mode().Perm()
		}
		return err
	})
	return mode, err
}

// Count is how many things other than folders are below a folder.
func (f *Files) Count(name string) (n int, err error) {
	err = f.onDisk("files", name, func(path string) error {
		return filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		})
	})
	return n, err
}

// Snapshot remembers a file or folder for Unchanged.
func (f *Files) Snapshot(name string) error {
	t, err := f.tree(name)
	if err == nil {
		f.snapshots.Set(name, t)
	}
	return err
}

// Unchanged tells whether it is as at its last Snapshot.
func (f *Files) Unchanged(name string) (bool, error) {
	before, ok := f.snapshots.Lookup(name)
	if !ok {
		return false, invalid("unchanged", "there is no snapshot of %s", name)
	}
	now, err := f.tree(name)
	if errors.Is(err, fault.ErrNotFound) {
		return false, nil
	}
	return err == nil && now.equal(before), err
}

// outcome gives an error of the file system its sentinel.
func outcome(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &fault.Error{Op: "conform: file", Key: name, Err: fmt.Errorf("%w: %w", fault.ErrNotFound, err)}
	default:
		return &fault.Error{Op: "conform: file", Key: name, Err: fmt.Errorf("%w: %w", fault.ErrIO, err)}
	}
}
