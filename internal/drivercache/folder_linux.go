package drivercache

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// machine names the kind of machine: a driver may make code for just its processor.
func machine() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // without it the architecture is all that is known
	h := sha256.New()
	for line := range strings.Lines(string(text)) {
		switch name, _, _ := strings.Cut(line, ":"); strings.TrimSpace(name) {
		case "model name", "flags", "Features":
			fmt.Fprint(h, line)
		case "": // the next processor
			return fmt.Sprintf("%s-%x", runtime.GOARCH, h.Sum(nil)[:6])
		}
	}
	return fmt.Sprintf("%s-%x", runtime.GOARCH, h.Sum(nil)[:6])
}

// enter makes the folder and shares its lock. Who has it alone first bounds what has no
// bound of its own: nobody reads there.
func enter(dir string, most int64) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		err = bound(filepath.Join(dir, "pocl"), most)
	}
	shared := unix.EINTR
	for shared == unix.EINTR { // by a signal of the runtime
		shared, _ = unix.Flock(int(f.Fd()), unix.LOCK_SH).(unix.Errno)
	}
	if shared != 0 {
		err = errors.Join(err, shared)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// program is what PoCL keeps of one: a folder within one of two digits.
type program struct {
	path  string
	bytes int64
	used  int64 // nanoseconds since 1970
}

// bound removes PoCL's oldest programs until the rest has at most that many bytes, and
// the files that it leaves at each start.
func bound(dir string, most int64) error {
	left, err := filepath.Glob(filepath.Join(dir, "tempfile*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	paths, err := filepath.Glob(filepath.Join(dir, "??", "*"))
	if err != nil {
		return err
	}
	var programs []program
	total := int64(0)
	for _, path := range paths {
		p := program{path: path}
		err := filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			p.bytes += info.Size()
			p.used = max(p.used, info.ModTime().UnixNano())
			return nil
		})
		if err != nil {
			return err
		}
		total += p.bytes
		programs = append(programs, p)
	}
	slices.SortFunc(programs, func(a, b program) int { return cmp.Compare(a.used, b.used) })
	for _, p := range programs {
		if total <= most {
			break
		}
		if err := os.RemoveAll(p.path); err != nil {
			return err
		}
		total -= p.bytes
	}
	return nil
}
