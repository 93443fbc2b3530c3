package hostlock_test

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P7, P8: what holders that were passed over leave does not grow, and whoever wakes after any
// number of others knows that it was.
func TestGenerationsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		if err := f.Mkdir("lock/3"); err != nil { // somebody else's
			t.Fatal(err)
		}
		var all []*hostlock.Directory
		for range 100 {
			still, next := passOver(t, f)
			next.Unlock()
			all = append(all, still)
		}
		list, err := f.ReadDir("lock")
		if err != nil || len(list) > 20 || list[0].Name == "3" {
			t.Errorf("%d generations stay: %v", len(list), err)
		}
		if _, err := f.Lstat("lock/3"); err != nil {
			t.Error(err)
		}
		for i, d := range all {
			if d.Held() {
				t.Errorf("number %d believes to have the lock", i)
			}
			d.Unlock()
		}
	})
}

// P8: generations of long ago go the lowest first, though there are more than go at once:
// of those that had one nobody believes to have it still.
func TestManyGenerationsGoInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		var all []*hostlock.Directory
		for range 150 {
			still, next := passOver(t, keeping{f, "lock/"})
			next.Unlock()
			all = append(all, still)
		}
		still, next := passOver(t, f)
		next.Unlock()
		list, err := f.ReadDir("lock")
		if err != nil || len(list) < 20 || len(list) > 60 {
			t.Errorf("%d generations are left, want some: %v", len(list), err)
		}
		for i, d := range append(all, still) {
			if d.Held() {
				t.Errorf("number %d believes to have the lock", i)
			}
			d.Unlock()
		}
	})
}

// P8: holders and waiters of a directory with different periods agree: who has the shorter
// one goes by that of the holder, and a holder that wrote none is judged by the waiter's.
func TestPeriodsOfHolderAndWaiter(t *testing.T) {
	for _, c := range []struct{ holder, waiter, takes time.Duration }{
		{period, period / 9, period}, {period / 9, period, period}, {0, period, period},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			holder, waiter := hostlock.NewDirectory(f, "lock", c.holder), hostlock.NewDirectory(f, "lock", c.waiter)
			if err := holder.Lock(background); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := waiter.Lock(background); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took < c.takes || took > c.takes*3/2 {
				t.Errorf("%v passes %v over after %v, want %v", c.waiter, c.holder, took, c.takes)
			}
			waiter.Unlock()
			holder.Unlock()
		})
	}
}

// P8: who cannot show that it lives does not have the lock, and keeps nobody from it.
func TestDirectoryThatCannotBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		a := hostlock.NewDirectory(vfs.Watch(f, func(op string) error {
			if op == "write" {
				return syscall.EIO
			}
			return nil
		}), "lock", period)
		defer a.Unlock()
		if err := a.Lock(background); !errors.Is(err, syscall.EIO) || a.Held() {
			t.Errorf("%v, held: %v", err, a.Held())
		}
		b, begin := hostlock.NewDirectory(f, "lock", period), time.Now()
		if err := b.Lock(background); err != nil || time.Since(begin) > 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		b.Unlock()
	})
}

// sleepy is a file system whose user stands still before it opens the file of the lock.
type sleepy struct {
	vfs.FS
	before func()
}

func (s sleepy) Update(name string) (vfs.File, error) {
	s.before()
	return s.FS.Update(name)
}

// passedOver has a number of holders stand still, be passed over and give the lock back.
func passedOver(t *testing.T, f vfs.FS, number int) {
	t.Helper()
	for range number {
		still, next := passOver(t, f)
		still.Unlock()
		next.Unlock()
	}
}

// notBeside has one stand still between the look for the newest generation and its opening, while
// others do what meanwhile does, after which another has the lock: then it has not, too.
func notBeside(t *testing.T, f vfs.FS, meanwhile func()) {
	t.Helper()
	var holder *hostlock.Directory
	d := hostlock.NewDirectory(sleepy{f, sync.OnceFunc(func() {
		meanwhile()
		holder = hostlock.NewDirectory(f, "lock", period)
		if err := holder.Lock(background); err != nil {
			t.Fatal(err)
		}
	})}, "lock", period)
	ctx, cancel := context.WithTimeout(background, period/2)
	defer cancel()
	if err := d.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) || !holder.Held() {
		t.Error("two have the lock:", err)
	}
	holder.Unlock()
	d.Unlock()
}

// P8: who stood still between the look for the newest generation and its opening, for so
// long that the generation is gone, does not have the lock beside another.
func TestGenerationIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		notBeside(t, f, func() { passedOver(t, f, 40) })
	})
}

// P8: a note that a holder has ended makes no file of a generation that is gone.
func TestEndedGenerationStaysGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		notBeside(t, f, func() {
			passedOver(t, f, 1)
			settled, any := hostlock.NewDirectory(f, "lock", period).Ended()
			if !any {
				t.Error("nobody has ended")
			}
			passedOver(t, f, 40)
			settled()
		})
	})
}

// P5, P7: a holder that has ended is told of once, whatever its file has, and on a full disk too.
func TestEndedIsToldOnce(t *testing.T) {
	disk, full := newFS(t), false
	f := vfs.Watch(disk, func(op string) error {
		if full && op == "write" {
			return syscall.ENOSPC
		}
		return nil
	})
	d := hostlock.NewDirectory(f, "lock", period)
	for i, text := range []string{"", "x", strings.Repeat("x", 60), strings.Repeat("x", 1000)} {
		if err := vfs.WriteNew(f, "lock/"+strconv.Itoa(i), false, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Mkdir("lock/7"), vfs.WriteNew(f, "lock/9", false)); err != nil {
		t.Fatal(err)
	}
	full = true
	settled, any := d.Ended()
	settled()
	if _, again := d.Ended(); !any || again {
		t.Errorf("some ended: %v, told again: %v", any, again)
	}
}

// modeless is a file system, as many that come over a network, that gives each file one mode.
type modeless struct{ vfs.FS }

type modelessFile struct{ vfs.File }

func executable(info vfs.Info, err error) (vfs.Info, error) {
	info.Mode |= 0o755
	return info, err
}

func (f modelessFile) Stat() (vfs.Info, error) { return executable(f.File.Stat()) }

func (m modeless) Lstat(name string) (vfs.Info, error) { return executable(m.FS.Lstat(name)) }
func (m modeless) Chmod(string, fs.FileMode) error     { return nil }
func (m modeless) Open(name string) (vfs.File, error) {
	f, err := m.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return modelessFile{f}, nil
}

// P7: a holder that has ended is told of where files have modes that no store gave them.
func TestEndedIsToldByAnyMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		passedOver(t, f, 2)
		for range 2 {
			settled, any := hostlock.NewDirectory(modeless{f}, "lock", period).Ended()
			if settled(); !any {
				t.Error("without modes nobody has ended")
			}
		}
		for generation := range 3 { // as by chmod -R
			if err := f.Chmod("lock/"+strconv.Itoa(generation), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		d := hostlock.NewDirectory(f, "lock", period)
		settled, any := d.Ended()
		settled()
		_, again := d.Ended()
		passedOver(t, f, 1)
		if _, later := d.Ended(); !any || again || !later {
			t.Errorf("some ended: %v, told again: %v, another: %v", any, again, later)
		}
	})
}
