// Package drivercache has drivers keep the caches that they have of their own in a folder
// of ours. What they write is theirs: nobody else reads or verifies it.
package drivercache

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/kiln-cache/kiln/fault"
)

// A driver has a variable for its cache's folder and, if it bounds it, one for the bound.
type driver struct {
	folder, path string
	bound, form  string
	unit         int64 // bytes
}

var drivers = []driver{
	{"mesa", "MESA_SHADER_CACHE_DIR", "MESA_SHADER_CACHE_MAX_SIZE", "%dK", 1 << 10},
	{"pocl", "POCL_CACHE_DIR", "", "", 0},
	{"cuda", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "%d", 1},
	{"nvidia", "__GL_SHADER_DISK_CACHE_PATH", "__GL_SHADER_DISK_CACHE_SIZE", "%d", 1},
}

// used is where the drivers of this process keep their caches: they ask once, when they
// are loaded.
var used struct {
	sync.Mutex
	dir  string
	lock *os.File // shared with all processes that use the folder, until this one ends
}

// Use has the drivers that are loaded from now on keep their caches below a folder of the
// machine's kind in dir, which is made if it is missing, each of at most that many bytes.
// PoCL bounds nothing: its oldest programs go when the first process comes. A variable
// that is set is left as it is, with its bound. A process has one such folder: ErrInvalid for
// another one.
func Use(dir string, most int64, lookup func(name string) (string, bool)) error {
	const op = "drivers' caches"
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, machine())
	used.Lock()
	defer used.Unlock()
	switch used.dir {
	case dir:
		return nil
	case "":
	default:
		return &fault.Error{Op: op, Key: dir, Err: fmt.Errorf("%w: drivers of this process keep theirs in %s", fault.ErrInvalid, used.dir)}
	}
	if used.lock, err = enter(dir, most); err != nil {
		return &fault.Error{Op: op, Key: dir, Err: err}
	}
	used.dir = dir
	for _, d := range drivers {
		if _, set := lookup(d.path); set {
			continue
		}
		folder := filepath.Join(dir, d.folder)
		err := os.Mkdir(folder, 0o700)
		if err != nil && !os.IsExist(err) {
			return &fault.Error{Op: op, Key: folder, Err: err}
		}
		if err := os.Setenv(d.path, folder); err != nil {
			return err
		}
		if _, set := lookup(d.bound); d.bound != "" && !set {
			if err := os.Setenv(d.bound, fmt.Sprintf(d.form, max(1, most/d.unit))); err != nil {
				return err
			}
		}
	}
	return nil
}
