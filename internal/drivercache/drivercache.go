// Package drivercache has drivers keep the caches that they have of their own in a folder
// of ours. What they write is theirs: nobody else reads or verifies it.
package drivercache

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// A driver has a variable for its cache's folder and, if it bounds it, one for the bound.
type driver struct {
	folder, path string
	bound, form  string
	unit         int64 // bytes
}

var drivers = []driver{
	{"mesa", "MESA_SHADER_CACHE_DIR", "MESA_SHADER_CACHE_MAX_SIZE", "%dK", 1 << 10},
	{pocl, "POCL_CACHE_DIR", "", "", 0},
	{"cuda", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "%d", 1},
	{"nvidia", "__GL_SHADER_DISK_CACHE_PATH", "__GL_SHADER_DISK_CACHE_SIZE", "%d", 1},
}

const (
	home = ".drivers" // in the directory of a store: no backend can have the name
	pocl = "pocl"
)

// Keep is Use of the directory of a store of that capacity, "" for none, and a warning where
// it cannot be.
func Keep(dir string, store limit.Limit, lookup func(name string) (string, bool), logger *slog.Logger) {
	if err := Use(dir, share(store), lookup); err != nil {
		logger.Warn("drivers keep their caches where they are", "error", err)
	}
}

// share is how many bytes each driver is given beside a store of that capacity: a tenth, or
// 1 GiB beside one without a bound.
func share(store limit.Limit) int64 {
	if n, counted := store.Value(); counted {
		return n / 10
	}
	return 1 << 30
}

// used is where the drivers of this process keep their caches: they ask once, when they
// are loaded.
var used struct {
	sync.Mutex
	dir  string
	lock *os.File // shared with all processes that use the folder, until this one ends
}

// Use has the drivers that are loaded from now on keep their caches in a folder for this
// kind of machine below dir, the directory of a store, each of at most that many bytes.
// PoCL bounds nothing: its oldest programs go when the first process comes. A variable
// that is set, by another than a parent process that used one of these folders, is left
// as it is, with its bound; lookup reads the process's own. On an error nothing is set: a
// folder is no folder of this user alone, or cannot be written, or another process
// clears it up; or ErrInvalid, as drivers of this process keep theirs elsewhere.
func Use(dir string, most int64, lookup func(name string) (string, bool)) error {
	if dir == "" {
		return failed(dir, fmt.Errorf("%w: there is no store that is written", fault.ErrInvalid))
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return failed(dir, err)
	}
	used.Lock()
	defer used.Unlock()
	if used.dir != "" && used.dir != dir {
		return failed(dir, fmt.Errorf("%w: drivers of this process keep theirs in %s", fault.ErrInvalid, used.dir))
	}
	folder := filepath.Join(home, machine())
	lock, err := enter(dir, folder, most)
	if err != nil {
		return failed(dir, err)
	}
	if used.dir != "" {
		return lock.Close() // whose folders may have been removed meanwhile
	}
	used.dir, used.lock = dir, lock
	for _, d := range drivers {
		set := func(name string) bool {
			value, _ := lookup(name)
			return value != ""
		}
		theirs, _ := lookup(d.path)
		inherited := strings.HasSuffix(theirs, filepath.Join(string(filepath.Separator), folder, d.folder))
		if theirs != "" && !inherited {
			continue
		}
		if err := os.Setenv(d.path, filepath.Join(dir, folder, d.folder)); err != nil {
			return failed(dir, err)
		}
		if d.bound == "" || set(d.bound) && !inherited {
			continue
		}
		if err := os.Setenv(d.bound, fmt.Sprintf(d.form, max(1, most/d.unit))); err != nil {
			return failed(dir, err)
		}
	}
	return nil
}

func failed(dir string, err error) error {
	return &fault.Error{Op: "drivers' caches", Key: dir, Err: err}
}
