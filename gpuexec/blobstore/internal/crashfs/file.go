package crashfs

import (
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// file implements vfs.File.
type file struct {
	fs      *FS
	node    *node
	name    string
	appends bool
}

func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.node.mode.IsDir() {
		return 0, fail("read", f.name, syscall.EISDIR)
	}
	if offset >= int64(len(f.node.content)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.content[offset:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, offset int64) (_ int, err error) {
	f.fs.mu.Lock()
	defer f.fs.did("write", &err)
	if f.appends {
		offset = int64(len(f.node.content))
	}
	w := write{offset, slices.Clone(p)}
	f.node.content = w.apply(f.node.content)
	f.node.writes = append(f.node.writes, w)
	f.node.time = time.Now()
	return len(p), nil
}

func (f *file) Stat() (vfs.Info, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.node.info(f.name), nil
}

func (f *file) Sync() (err error) {
	f.fs.mu.Lock()
	defer f.fs.did("sync", &err)
	f.node.durable, f.node.writes = slices.Clone(f.node.content), nil
	return nil
}

func (f *file) TryLock() (bool, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.node.lock == nil {
		f.node.lock = f
	}
	return f.node.lock == f, nil
}

func (f *file) Lock() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	for f.node.lock != nil && f.node.lock != f {
		f.fs.unlocked.Wait()
	}
	f.node.lock = f
	return nil
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.node.lock == f {
		f.node.lock = nil
		f.fs.unlocked.Broadcast()
	}
	return nil
}
