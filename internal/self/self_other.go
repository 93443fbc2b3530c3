//go:build !linux

package self

import (
	"errors"
	"io"
	"runtime/debug"
)

var errElsewhere = errors.New("the file of a library is known on Linux only")

// first reports whether this code is no library: here, what the build says of itself is all
// that is known.
var first = func() bool {
	info, _ := debug.ReadBuildInfo()
	for i := 0; info != nil && i < len(info.Settings); i++ {
		if s := info.Settings[i]; s.Key == "-buildmode" && (s.Value == "c-shared" || s.Value == "c-archive") {
			return false
		}
	}
	return true
}()

func code() (mapping, error) { return mapping{}, errElsewhere }

func (mapping) openAt(string) (io.ReadCloser, error) { return nil, errElsewhere }

func trusted(string, string) error { return errElsewhere }

// Raised is known on Linux only, where other programs and libraries are started and loaded.
func Raised() bool { return false }
