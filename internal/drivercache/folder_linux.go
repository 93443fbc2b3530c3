package drivercache

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/processor"
)

// machine names the kind of machine: a driver may make code for just its processor.
func machine() string {
	model, features := processor.Read()
	digest := sha256.Sum256(fmt.Append(nil, model, features))
	return fmt.Sprintf("%s-%x", runtime.GOARCH, digest[:6])
}

// The lock of a folder. What is no file is not waited for, and no link followed.
const (
	lockFile = "lock"
	opening  = unix.O_NOFOLLOW | unix.O_NONBLOCK
)

// enter makes the folders below dir and shares their lock. Who has it alone first bounds
// what has no bound of its own: nobody reads there. No link leads out (SPEC P13).
func enter(dir, folder string, most int64) (lock *os.File, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	folders := []string{path.Dir(folder), folder}
	for _, d := range drivers {
		folders = append(folders, path.Join(folder, d.folder))
	}
	for _, name := range folders {
		if err := own(root, name); err != nil {
			return nil, err
		}
	}
	its := path.Join(folder, lockFile)
	if lock, err = root.OpenFile(its, os.O_RDWR|os.O_CREATE|opening, 0o600); err != nil {
		return nil, err
	}
	now := time.Now()
	_ = root.Chtimes(its, now, now) // sweep goes by it
	if flock(lock, unix.LOCK_EX) == nil {
		bound(root, path.Join(folder, pocl), most)
		sweep(root, folder)
	}
	const tries, pause = 20, 50 * time.Millisecond
	for range tries { // who clears up takes no longer, or was stopped
		if err = flock(lock, unix.LOCK_SH); err == nil {
			if there(root, its, lock) {
				return lock, nil
			}
			break
		}
		time.Sleep(pause)
	}
	return nil, errors.Join(fmt.Errorf("%w: another process clears the folder up", fault.ErrUnavailable), err, lock.Close())
}

// there reports whether an open file is still that of a name: who sweeps may have removed it.
func there(root *os.Root, name string, open *os.File) bool {
	now, err := root.Lstat(name)
	mine, mineErr := open.Stat()
	return err == nil && mineErr == nil && os.SameFile(now, mine)
}

// sweep removes the folders beside this one that no process has entered for long: those of
// processors that are gone.
func sweep(root *os.Root, folder string) {
	const unused = 90 * 24 * time.Hour
	locks, _ := fs.Glob(root.FS(), path.Join(path.Dir(folder), "*", lockFile)) // the pattern is no bad one
	for _, name := range locks {
		info, err := root.Lstat(name)
		if err != nil || path.Dir(name) == folder || time.Since(info.ModTime()) < unused {
			continue
		}
		lock, err := root.OpenFile(name, os.O_RDWR|opening, 0)
		if err != nil {
			continue
		}
		if flock(lock, unix.LOCK_EX) == nil {
			_ = root.RemoveAll(path.Dir(name))
		}
		_ = lock.Close()
	}
}

// flock takes a lock, or leaves it as it is: it does not wait.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}

// own makes a folder, or sees to it that it is one, of this user alone, that can be written.
func own(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	its, known := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !known || int(its.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: %s is %v: want a folder of this user that no other can write", fault.ErrInvalid, name, info.Mode())
	}
	trial := path.Join(name, fmt.Sprintf("trial-%d", os.Getpid()))
	return errors.Join(root.WriteFile(trial, []byte("x"), 0o600), root.Remove(trial))
}

// program is what PoCL keeps of one: a folder within one of two letters.
type program struct {
	path  string
	bytes int64
	used  int64 // nanoseconds since 1970
}

// bound removes the oldest programs in PoCL's folder until the rest has at most that many
// bytes, and the files that PoCL leaves at each start. What cannot be removed stays.
func bound(root *os.Root, dir string, most int64) {
	all := root.FS()
	left, _ := fs.Glob(all, path.Join(dir, "tempfile*")) // the pattern is no bad one
	for _, name := range left {
		_ = root.Remove(name)
	}
	var programs []program
	total := int64(0)
	paths, _ := fs.Glob(all, path.Join(dir, "??", "*"))
	for _, name := range paths {
		p := program{path: name}
		_ = fs.WalkDir(all, name, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if info, err := e.Info(); err == nil {
				p.bytes += info.Size()
				p.used = max(p.used, info.ModTime().UnixNano())
			}
			return nil
		})
		total += p.bytes
		programs = append(programs, p)
	}
	slices.SortFunc(programs, func(a, b program) int { return cmp.Compare(a.used, b.used) })
	for _, p := range programs {
		if total <= most {
			break
		}
		if root.RemoveAll(p.path) == nil {
			total -= p.bytes
		}
	}
}
