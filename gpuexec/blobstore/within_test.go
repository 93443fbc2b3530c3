//go:build unix

package blobstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// heard is the handler of a log that does something with the first record.
type heard struct {
	slog.Handler
	do   func()
	once *atomic.Bool
}

func (h heard) Handle(context.Context, slog.Record) error {
	if h.once.CompareAndSwap(false, true) {
		h.do()
	}
	return nil
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }

// inTime ends what waits for itself.
func inTime(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(background, 5*time.Second)
	defer cancel()
	return do(ctx)
}

// poor is a file system that, once it is on, neither takes size.txt, which is logged under the
// lock of the directory, nor syncs folders.
type poor struct {
	vfs.FS
	on *atomic.Bool
}

func (p poor) Rename(from, to string) error {
	if to == "size.txt" && p.on.Load() {
		return errors.New("no")
	}
	return p.FS.Rename(from, to)
}

func (p poor) SyncDir(name string) error {
	if p.on.Load() {
		return syscall.EINVAL
	}
	return p.FS.SyncDir(name)
}

// hearing opens a store whose log is told of something from now on, and does do then.
func (r *rig) hearing(level blobstore.Durability, do func(s *shop)) *shop {
	var s *shop
	var once, broken atomic.Bool
	s = r.open("d", mib, sync_(level), on(func(f vfs.FS) vfs.FS { return poor{f, &broken} }), func(c *blobstore.Config) {
		c.Logger = slog.New(heard{slog.DiscardHandler, func() { do(s) }, &once})
	})
	broken.Store(true)
	return s
}

// F8, P5: a listener, or the handler of a log, that closes its own store would wait for itself:
// it is told so, and the store closes.
func TestClosedByItsOwnListener(t *testing.T) {
	for _, by := range []string{"listener", "handler"} {
		r := newRig(t)
		var s *shop
		answers := make(chan error, 9)
		closes := func() { answers <- inTime(s.Store.Close) }
		if by == "listener" {
			s = r.open("d", mib, func(c *blobstore.Config) { c.Listen = func(blobstore.Event) { closes() } })
		} else {
			s = r.hearing(blobstore.None, func(*shop) { closes() })
		}
		r.want("put", s.put("k", "v"), "ok")
		if err := <-answers; !errors.Is(err, fault.ErrCycle) {
			t.Errorf("close by a %s: %v", by, err)
		}
		r.must(s.Store.Close(background))
		r.want("closed", s.put("j", "v"), "error closed")
	}
}

// F8: so would a listener that is told of what goes when the store is closed.
func TestClosedByItsOwnListenerAtTheEnd(t *testing.T) {
	r := newRig(t)
	from := r.open("from", mib)
	from.fill(1, 100, 1)
	var s *shop
	var stored atomic.Int64
	answers := make(chan error, 99)
	s = r.open("d", 60*small, func(c *blobstore.Config) {
		c.Listen = func(e blobstore.Event) {
			if e.Kind == "stored" {
				stored.Add(1)
			} else {
				answers <- inTime(s.Store.Close)
			}
		}
	})
	_, err := s.Import(background, before{bytes.NewReader(from.exported()), func() {
		if stored.Load() == 64 {
			s.shut()
		}
	}})
	r.want("import", said(err), "error closed")
	if err := <-answers; !errors.Is(err, fault.ErrCycle) {
		t.Error("close:", err)
	}
}

// P5: the handler of a log may ask the store, whatever it is told of: no lock is held then.
func TestAskedByItsOwnLog(t *testing.T) {
	r := newRig(t)
	err := errors.New("not asked")
	s := r.hearing(blobstore.None, func(s *shop) {
		err = inTime(func(ctx context.Context) error { _, err := s.Usage(ctx); return err })
	})
	r.want("put, usage", words(s.put("k", "v"), err), "ok <nil>")
}

// P5, P18: so may it store something when it is told that folders cannot be synced.
func TestStoredByItsOwnLog(t *testing.T) {
	r := newRig(t)
	answer := "not asked"
	s := r.hearing(blobstore.Full, func(s *shop) {
		put := make(chan string, 1)
		go func() { put <- s.put("j", "v") }()
		select {
		case answer = <-put:
		case <-time.After(5 * time.Second):
			answer = "waits"
		}
	})
	r.want("put", words(s.put("k", "v"), answer), "ok ok")
}
