// Package self finds the file that this code is in: the executable of the process, or the
// shared library that a program in C has loaded. What is compiled by the code fits that
// file, and that file says what may be started as a child.
//
// The functions are safe for concurrent use.
package self

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Child is the name of the program that stands beside a library and is started in its place.
const Child = "kiln-child"

const executable = "/proc/self/exe" // also where the file has been replaced

// Loaded reports whether this code is a library: main of the process, and its arguments, are
// another program's then. A library is in a file of its own, or was initialised on a thread
// of its own. What the build says of itself is not asked: not every build says it.
var Loaded = sync.OnceValue(func() bool {
	m, _ := file()
	return !first || m != mapping{}
})

// file is the file that this code is in: the zero mapping where that is the executable, or,
// for what C has not loaded, not known.
func file() (mapping, error) {
	m, err := code()
	if err == nil {
		var own string
		if own, err = os.Readlink(executable); err == nil && strings.ReplaceAll(own, "\n", newLine) != m.path {
			return m, nil
		}
	}
	if first {
		err = nil
	}
	return mapping{}, err
}

// Open opens the file that this code is in: of an executable on Linux the one that runs,
// even where another has taken its place on the disk since. Of a library that was replaced
// it is an error.
func Open() (io.ReadCloser, error) {
	m, err := file()
	switch {
	case err != nil:
		return nil, err
	case m != mapping{}:
		return m.open()
	}
	f, err := os.Open(executable)
	if err == nil {
		return f, nil
	}
	path, other := os.Executable()
	if other == nil {
		if f, other = os.Open(path); other == nil {
			return f, nil
		}
	}
	return nil, errors.Join(err, other)
}

// Start is the program to start as a child: the executable that runs, or for a library the
// program Child beside the file that it is in. A library must not start the executable: its
// main is another's.
func Start() (string, error) {
	if !Loaded() {
		return executable, nil
	}
	m, err := code()
	if err != nil {
		return "", err
	}
	return beside(m.where())
}

func beside(library string) (string, error) {
	path := filepath.Join(filepath.Dir(library), Child)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("put %s into the folder of %s: %w", Child, filepath.Base(library), err)
	}
	if err := trusted(path, library); err != nil {
		return "", fmt.Errorf("%s is not started: %w", path, err)
	}
	return path, nil
}

// mapping is a file in the memory of this process, its path as /proc/self/maps has it.
type mapping struct {
	path, device string
	inode        uint64
}

// newLine is how the system writes a new line there. A backslash is a backslash, so that these
// may be four characters of a path, too.
const newLine = `\012`

// where is the path of the file: of both that the text may mean the one with the file that is in
// memory.
func (m mapping) where() string {
	if strings.Contains(m.path, newLine) {
		path := strings.ReplaceAll(m.path, newLine, "\n")
		if f, err := m.openAt(path); err == nil {
			_ = f.Close()
			return path
		}
	}
	return m.path
}

func (m mapping) open() (io.ReadCloser, error) { return m.openAt(m.where()) }

// find is the mapping that has address in a text of the form of /proc/self/maps.
func find(maps string, address uint64) (mapping, error) {
	for line := range strings.Lines(maps) {
		var first, last, offset, inode uint64
		var rights, device string
		n, err := fmt.Sscanf(line, "%x-%x %s %x %s %d", &first, &last, &rights, &offset, &device, &inode)
		if err != nil || n < 6 || address < first || address >= last {
			continue
		}
		_, path, _ := strings.Cut(line, "/")
		if path = strings.TrimSuffix(path, "\n"); path == "" || inode == 0 {
			break
		}
		return mapping{path: "/" + path, device: device, inode: inode}, nil
	}
	return mapping{}, errors.New("the file that Kiln's code was loaded from is not known")
}
