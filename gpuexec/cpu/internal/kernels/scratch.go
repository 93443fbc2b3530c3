package kernels

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// scratch is a private directory that says for how long its process lives.
type scratch struct {
	dir  string
	life *os.File // locked; nil where the system has no such locks
}

const scratchPrefix = "kiln-kernels-"

// newScratch makes one, in memory where that is possible, and takes away what
// processes that were killed have left beside it.
func newScratch(parent string) (*scratch, error) {
	if parent == "" {
		if s, err := newScratch(sharedMemory); err == nil {
			return s, nil
		}
		parent = os.TempDir()
	}
	dir, err := os.MkdirTemp(parent, scratchPrefix)
	if err != nil {
		return nil, err
	}
	s := &scratch{dir: dir}
	if s.life, err = hold(dir); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	sweep(parent)
	return s, nil
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	if s.life != nil {
		err = errors.Join(err, s.life.Close())
	}
	return err
}

// sweep passes over what it may not look at: it belongs to somebody else.
func sweep(parent string) {
	const young = time.Minute // it may not be held yet
	left, _ := filepath.Glob(filepath.Join(parent, scratchPrefix+"*"))
	for _, dir := range left {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < young {
			continue
		}
		if life, err := hold(dir); err == nil && life != nil {
			_ = (&scratch{dir, life}).remove()
		}
	}
}
