package hostlock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// late is a file system on which one process stands still before it takes a name, or
// when it has looked.
type late struct {
	vfs.FS
	before, looked func()
}

func (l *late) Link(from, to string) error {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	return l.FS.Link(from, to)
}

func (l *late) ReadDir(name string) ([]vfs.Info, error) {
	list, err := l.FS.ReadDir(name)
	if looked := l.looked; looked != nil {
		l.looked = nil
		looked()
	}
	return list, err
}

// P8: one that stood still between looking and taking does not hold the lease beside
// another, though the number that it takes is free again.
func TestLateHolder(t *testing.T) {
	for _, looked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			var other *hostlock.Lease
			others := func() {
				for range 2 { // the second finds nothing of the first
					if other != nil {
						_ = other.Release()
					}
					time.Sleep(time.Second)
					other = acquire(t, leases(f, true))
				}
				time.Sleep(time.Second)
				time.AfterFunc(time.Minute, func() { _ = other.Release() })
			}
			slow := &late{FS: f, before: others} // its number is below that of the other
			if looked {
				slow = &late{FS: f, looked: others} // it is above
			}
			begin := time.Now()
			mine := acquire(t, leases(slow, true))
			if waited := time.Since(begin); waited < time.Minute || !mine.Held() || mine.Token() <= other.Token() {
				t.Errorf("taken after %v with token %d, beside %d", waited, mine.Token(), other.Token())
			}
			_ = mine.Release()
		})
	}
}

// belled is a file system that tells when a holder has ended, and counts looks.
type belled struct {
	vfs.FS
	rings *chan struct{} // of the bell that is there
	looks *int
}

type bell struct{ rung, closed chan struct{} }

func (b belled) Notify(string) (vfs.Bell, error) {
	*b.rings = make(chan struct{})
	return bell{*b.rings, make(chan struct{})}, nil
}

func (b belled) ReadDir(name string) ([]vfs.Info, error) {
	*b.looks++
	return b.FS.ReadDir(name)
}

func (b bell) Wait() error {
	select {
	case <-b.rung:
		return nil
	case <-b.closed:
		return fs.ErrClosed
	}
}

func (b bell) Close() error { close(b.closed); return nil }

// P8: who waits for a long build is woken when it ends, and looks now and then only. The
// end of the context ends the wait at once, and nothing stays of it.
func TestLeaseWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		first := acquire(t, leases(f, true))
		b := belled{f, new(chan struct{}), new(int)}
		ctx, cancel := context.WithTimeout(background, 20*time.Second)
		defer cancel()
		begin := time.Now()
		if _, err := leases(b, true).Acquire(ctx, "k", never); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 20*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		*b.looks = 0
		got := make(chan *hostlock.Lease)
		go func() { got <- acquire(t, leases(b, true)) }()
		time.Sleep(time.Hour + time.Millisecond)
		synctest.Wait()
		if *b.looks > 5*3600 {
			t.Errorf("%d looks in an hour", *b.looks)
		}
		close(*b.rings) // for nothing: the next bell is another one
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		begin = time.Now()
		_ = first.Release()
		close(*b.rings)
		second := <-got
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("woken after %v", waited)
		}
		_ = second.Release()
	})
}

// linked counts the names that are given.
type linked struct {
	vfs.FS
	n *int
}

func (l linked) Link(from, to string) error { *l.n++; return l.FS.Link(from, to) }

// P8: one that was killed just after it had come late leaves its number above that of the
// holder. Who waits for the holder does so quietly.
func TestKilledAboveTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		first := acquire(t, leases(f, true))
		if err := vfs.WriteNew(f, fmt.Sprint("key/k/", first.Token()+1), false, make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _ = first.Release() })
		begin := time.Now()
		tries := 0
		second := acquire(t, leases(linked{f, &tries}, true))
		if waited := time.Since(begin); waited < time.Hour || tries != 1 {
			t.Errorf("held after %v, at the %dth try", waited, tries)
		}
		_ = second.Release()
		if list, err := f.ReadDir("key"); err != nil || len(list) > 0 {
			t.Errorf("left: %v, %v", list, err)
		}
	})
}

// P8: a folder that others remove as empty, before the first file is in it, is made again.
func TestFolderOfALeaseGoesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 3
		lease := acquire(t, leases(fleeting{newFS(t), &left}, true))
		if left > 0 || !lease.Held() {
			t.Errorf("%d left, held: %v", left, lease.Held())
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
	})
}

// fleeting is a file system on which others remove the first folders that are made.
type fleeting struct {
	vfs.FS
	left *int
}

func (f fleeting) Mkdir(name string) error {
	err := f.FS.Mkdir(name)
	if *f.left > 0 && err == nil {
		*f.left--
		err = f.FS.Remove(name)
	}
	return err
}

// P8, P9: without locks the lease of a holder that has not beaten for long goes, that of one that beats
// never, however long ago it began.
func TestSweepOfLeasesWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		l := leases(f, false)
		held := acquire(t, l)
		dead := append(make([]byte, 9), "7200000000000 "...) // of a period of two hours
		if err := errors.Join(f.Mkdir("key/dead"), vfs.WriteNew(f, "key/dead/1", false, dead)); err != nil {
			t.Fatal(err)
		}
		for hours, want := range []int{2, 2, 2, 1} {
			for _, name := range []string{"k", "dead"} {
				l.Sweep(name, time.Now().Add(-time.Hour))
			}
			if list, err := f.ReadDir("key"); err != nil || len(list) != want {
				t.Errorf("after %d hours: %v, %v", hours, list, err)
			}
			time.Sleep(time.Hour + time.Minute)
		}
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

// P8: several that were killed while each saw the others are replaced within one period, too,
// where there are no locks.
func TestManyWereKilled(t *testing.T) {
	for _, lock := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			if err := f.Mkdir("key/k"); err != nil {
				t.Fatal(err)
			}
			for token := range 20 {
				if err := vfs.WriteNew(f, fmt.Sprint("key/k/", 1+token), false, make([]byte, 9)); err != nil {
					t.Fatal(err)
				}
			}
			begin := time.Now()
			lease := acquire(t, leases(f, lock))
			if waited := time.Since(begin); waited > period+time.Second {
				t.Errorf("locks %v: waited %v", lock, waited)
			}
			_ = lease.Release()
			if list, err := f.ReadDir("key"); err != nil || len(list) > 0 {
				t.Errorf("locks %v: left: %v, %v", lock, list, err)
			}
		})
	}
}
