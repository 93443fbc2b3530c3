package pipelinefile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Temporary files, which lie beside the target so that a rename reaches it.
const (
	tempPrefix = ".kiln-pipelines-"
	tempSuffix = ".tmp"
	tempAge    = time.Hour // after which nobody writes to one any more
)

// target is where a file is to be.
type target struct {
	fs       vfs.FS // the folder
	name     string
	patience time.Duration
}

// target resolves a path. Links on the way and at its end are the user's own and
// are followed, once: what happens to them later is not.
func (c *Cache) target(path string) (target, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return target{}, err
	}
	dir, name := filepath.Split(path)
	if whole, err := filepath.EvalSymlinks(path); err == nil {
		dir, name = filepath.Split(whole)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return target{}, err
	} else if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return target{}, err
	} else if to, err := os.Readlink(filepath.Join(dir, name)); err == nil { // to what is not there yet
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		return c.target(to) // it ends: a circle of links is no fs.ErrNotExist
	}
	if name == "" {
		return target{}, &fs.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}
	if c.noDir != nil {
		return target{}, c.noDir
	}
	return target{c.openDir(filepath.Clean(dir)), name, c.cfg.Patience}, nil
}

// overwrite makes the target what compose gives, whatever was there.
func (t target) overwrite(compose func(*layout.File) ([]byte, error)) error {
	if info, err := t.fs.Lstat(t.name); err == nil && !info.Regular() {
		return noFile(t.name)
	}
	file, err := compose(nil)
	if err != nil {
		return err
	}
	return t.write(file, func(temp string) error { return t.moved(temp, t.fs.Rename(temp, t.name)) })
}

func noFile(name string) error {
	return &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("%w: there is something that is no plain file", fs.ErrInvalid)}
}

// join makes the target the union of what read finds there and what compose adds.
// The lock of the old file itself keeps others that join from doing so at once: it
// needs no lock file, and ends with its holder. Where a file system has no locks
// two that save within the same milliseconds may lose the one's additions.
func (t target) join(ctx context.Context, read func(vfs.File) (*layout.File, error), compose func(*layout.File) ([]byte, error)) error {
	for {
		again, err := t.joinOnce(ctx, read, compose)
		if !again {
			return err
		}
	}
}

// joinOnce reports that it must be done again if the target changed meanwhile.
func (t target) joinOnce(ctx context.Context, read func(vfs.File) (*layout.File, error), compose func(*layout.File) ([]byte, error)) (again bool, err error) {
	held, info, err := t.hold(ctx)
	if err != nil {
		return false, err
	}
	var old *layout.File
	if held != nil {
		defer held.Close() // lets go of the lock
		if old, err = read(held); err != nil {
			return false, err
		}
	}
	file, err := compose(old)
	if err != nil {
		return false, err
	}
	err = t.write(file, func(temp string) (err error) {
		again, err = t.place(temp, held, info)
		return err
	})
	return again, err
}

// place gives a temporary file the target's name: where there was none, or in place of the
// one that is held. It reports that there is another one by now.
func (t target) place(temp string, held vfs.File, info vfs.Info) (again bool, err error) {
	if held != nil && t.is(t.name, info) {
		return t.replace(temp, info)
	}
	if held != nil {
		return true, t.fs.Remove(temp)
	}
	err = t.fs.Link(temp, t.name)
	switch {
	case err == nil:
		err = t.fs.Remove(temp)
		return false, errors.Join(err, t.fs.SyncDir("."))
	case errors.Is(err, fs.ErrExist): // somebody was first
		return true, t.fs.Remove(temp)
	case !cannotLink(err):
		return false, t.moved(temp, err)
	}
	return false, t.moved(temp, t.fs.Rename(temp, t.name))
}

// replace exchanges the names of a temporary file and of the target that was joined with it.
// If it was another file that had the name, since this saver stood still and was passed over,
// that one gets it back: its saver has succeeded. Where names cannot be exchanged the last one
// counts.
func (t target) replace(temp string, joined vfs.Info) (again bool, err error) {
	err = t.fs.Exchange(temp, t.name)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return false, t.moved(temp, t.fs.Rename(temp, t.name))
	case errors.Is(err, fs.ErrNotExist): // the target was removed
		return true, t.fs.Remove(temp)
	case err != nil:
		return false, t.moved(temp, err)
	case t.is(temp, joined):
		return false, t.moved(temp, t.fs.Remove(temp))
	}
	if err := t.fs.Exchange(temp, t.name); err != nil {
		return false, err
	}
	return true, t.fs.Remove(temp)
}

// cannotLink reports that a file system has no second names.
func cannotLink(err error) bool {
	return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EMLINK)
}

// hold opens the target and takes its lock; nil if there is none. A holder that
// stands still is passed over: it will see that the target has changed.
func (t target) hold(ctx context.Context) (vfs.File, vfs.Info, error) {
	var seen uint64 // inode that somebody else has locked
	var since time.Time
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		f, err := t.fs.Open(t.name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, vfs.Info{}, nil
		}
		if err != nil {
			return nil, vfs.Info{}, err
		}
		info, err := f.Stat()
		switch {
		case err != nil:
		case !info.Regular():
			err = noFile(t.name)
		default: // after a stall the patience may have ended as well
			err = ctx.Err()
		}
		if err != nil {
			return nil, info, errors.Join(err, f.Close())
		}
		locked, unlockable := f.TryLock()
		now := time.Now()
		passed := info.Inode == seen && now.Sub(since) > t.patience
		if (locked || unlockable != nil || passed) && t.is(t.name, info) {
			return f, info, nil
		}
		if err := f.Close(); err != nil {
			return nil, info, err
		}
		if locked { // of a file that was replaced meanwhile
			continue
		}
		if info.Inode != seen {
			seen, since = info.Inode, now
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, info, guard.Ended(ctx)
		}
	}
}

// is reports whether a name stands for the file of info.
func (t target) is(name string, info vfs.Info) bool {
	now, err := t.fs.Lstat(name)
	return err == nil && now.Inode == info.Inode && now.Size == info.Size && now.ModTime.Equal(info.ModTime)
}

// write makes a synced temporary file and calls use with its name. It holds the lock of the
// file meanwhile, which tells others that this process lives.
func (t target) write(file []byte, use func(temp string) error) error {
	temp := tempPrefix + strings.ToLower(rand.Text()) + tempSuffix
	f, err := t.fs.Create(temp)
	if err != nil {
		return err
	}
	defer f.Close()    // which ends the lock
	_, _ = f.TryLock() // without it the age tells
	if _, err = f.WriteAt(file, 0); err == nil {
		err = f.Sync()
	}
	if err != nil {
		_ = t.fs.Remove(temp) // the error says enough
		return err
	}
	return use(temp)
}

// moved ends the life of a temporary file that was to take the target's place:
// err is how that went.
func (t target) moved(temp string, err error) error {
	if err != nil {
		_ = t.fs.Remove(temp) // the error says enough
		return err
	}
	return t.fs.SyncDir(".")
}

// sweep removes temporary files that their writers left behind when they died: old ones that
// nobody holds the lock of, since a clock may jump. What it cannot remove stays for the next.
func (t target) sweep(now time.Time) {
	list, err := t.fs.ReadDir(".")
	if err != nil {
		return
	}
	for _, entry := range list {
		if !strings.HasPrefix(entry.Name, tempPrefix) || !strings.HasSuffix(entry.Name, tempSuffix) {
			continue
		}
		if info, err := t.fs.Lstat(entry.Name); err == nil && info.Regular() && now.Sub(info.ModTime) > tempAge && !t.lives(entry.Name) {
			_ = t.fs.Remove(entry.Name)
		}
	}
}

// lives reports whether a process holds the lock of a temporary file, or whether that cannot
// be seen.
func (t target) lives(temp string) bool {
	f, err := t.fs.Open(temp)
	if err != nil {
		return true
	}
	defer f.Close()
	free, err := f.TryLock()
	return err == nil && !free
}
