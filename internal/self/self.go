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
	"runtime/debug"
	"strings"
	"sync"
)

// Child is the name of the program that stands beside a library and is started in its place.
const Child = "kiln-child"

const executable = "/proc/self/exe" // also where the file has been replaced

// Loaded reports whether this code is a library that a program in another language has
// loaded: main of the process, and its arguments, are not Go's then.
var Loaded = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && loaded(info.Settings)
})

func loaded(settings []debug.BuildSetting) bool {
	for _, s := range settings {
		if s.Key == "-buildmode" {
			return s.Value == "c-shared" || s.Value == "c-archive"
		}
	}
	return false
}

// Open opens the file that this code is in: of an executable on Linux the one that runs,
// even where another has taken its place on the disk since. Of a library that was replaced
// it is an error.
func Open() (io.ReadCloser, error) {
	if Loaded() {
		return openLibrary()
	}
	f, first := os.Open(executable)
	if first == nil {
		return f, nil
	}
	path, err := os.Executable()
	if err == nil {
		if f, err = os.Open(path); err == nil {
			return f, nil
		}
	}
	return nil, errors.Join(first, err)
}

// Start is the program to start as a child: the executable that runs, or for a library the
// program Child beside it. A library must not start the executable: its main is another's.
func Start() (string, error) {
	if !Loaded() {
		return executable, nil
	}
	m, err := library()
	if err != nil {
		return "", err
	}
	return beside(m.path)
}

func beside(library string) (string, error) {
	path := filepath.Join(filepath.Dir(library), Child)
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("there is something that is no file")
	}
	if err != nil {
		return "", fmt.Errorf("put %s into the folder of %s: %w", Child, filepath.Base(library), err)
	}
	return path, nil
}

// mapping is a file in the memory of this process.
type mapping struct {
	path  string
	inode uint64
}

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
		return mapping{path: "/" + path, inode: inode}, nil
	}
	return mapping{}, errors.New("the file that Kiln's code was loaded from is not known")
}
