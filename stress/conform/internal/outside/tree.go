package outside

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// tree is a copy of a file or folder, by path relative to it ("." is itself).
type tree map[string]node

type node struct {
	mode fs.FileMode
	text []byte // content of a file, target of a link
}

func (f *Files) tree(name string) (t tree, err error) {
	err = f.at(name, func(path string) error {
		t, err = readTree(path)
		return err
	})
	return t, err
}

func readTree(root string) (tree, error) {
	t := tree{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		n, err := readNode(path)
		if err == nil {
			t[rel] = n
		}
		return err
	})
	return t, err
}

func readNode(path string) (node, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return node{}, err
	}
	n := node{mode: info.Mode()}
	switch {
	case n.mode.IsRegular():
		n.text, err = os.ReadFile(path)
	case n.mode&fs.ModeSymlink != 0:
		var target string
		target, err = os.Readlink(path)
		n.text = []byte(target)
	}
	return n, err
}

// single gives the content of a tree that is one file.
func (t tree) single() ([]byte, bool) {
	n := t["."]
	return n.text, n.mode.IsRegular()
}

func (n node) equal(m node) bool { return n.mode == m.mode && bytes.Equal(n.text, m.text) }

func (t tree) equal(u tree) bool { return maps.EqualFunc(t, u, node.equal) }

// restore makes root what the tree says; what is right already is not touched,
// so that open files and times of untouched files stay.
func (t tree) restore(root string) error {
	now, err := readTree(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for rel, n := range now {
		if want, ok := t[rel]; !ok || want.mode.Type() != n.mode.Type() {
			if err := os.RemoveAll(filepath.Join(root, rel)); err != nil {
				return err
			}
			delete(now, rel)
		}
	}
	for _, rel := range slices.Sorted(maps.Keys(t)) {
		n := t[rel]
		path := filepath.Join(root, rel)
		if have, ok := now[rel]; ok && have.equal(n) {
			if _, err := os.Lstat(path); err == nil {
				continue
			}
		}
		if err := n.write(path); err != nil {
			return err
		}
	}
	return nil
}

func (n node) write(path string) error {
	switch n.mode.Type() {
	case fs.ModeDir:
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
	case fs.ModeSymlink:
		_ = os.Remove(path)
		return os.Symlink(string(n.text), path)
	case fs.ModeNamedPipe:
		_ = os.Remove(path)
		return mkfifo(path, uint32(n.mode.Perm()))
	default:
		if err := os.WriteFile(path, n.text, 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(path, n.mode.Perm())
}

// Pristine copies all files on disk and in memory; restore brings them back to
// what they were.
func (f *Files) Pristine() (restore func() error, err error) {
	disk, err := readTree(f.dir)
	if err != nil {
		return nil, outcome(".", err)
	}
	memory, err := readTree(f.memory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, outcome(".", err)
	}
	return func() error {
		return outcome(".", errors.Join(disk.restore(f.dir), memory.restore(f.memory)))
	}, nil
}
