//go:build unix

package blobstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// P10: a file system that cannot sync folders is a warning, not the end of storing.
func TestNoFolderSync(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.ENOTSUP} {
		r := newRig(t)
		r.fault("syncdir", errno)
		s := r.open("d", mib, sync_(blobstore.Full))
		for i := range 3 {
			r.want("put", s.put(fmt.Sprint("k", i), "v"), "ok")
		}
		r.want("warned", r.log.count("going on without"), 1)
		s.reopen()
		r.want("get", s.get("k0"), "v")
	}
}

// A listener may ask the store, whatever it is told.
func TestListenerAsks(t *testing.T) {
	r := newRig(t)
	var s *shop
	told := map[string]int{}
	s = r.open("d", 2*small, func(c *blobstore.Config) {
		c.Listen = func(e blobstore.Event) {
			told[e.Kind]++
			if _, err := s.Usage(background); err != nil {
				t.Errorf("usage in %s: %v", e.Kind, err)
			}
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.put("a", "a", putOptions{bytes: 400})
		s.put("b", "b", putOptions{bytes: 400})
		s.put("c", "c", putOptions{bytes: 400})
		r.flip(s.kernel("c"), -1)
		s.get("c")
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a listener that asks the store waits for itself")
	}
	r.want("told", words(told["stored"], told["evicted"] > 0, told["quarantined"]), "3 true 1")
}

// overlay is a file system whose folders of entries cannot be moved, as those of a
// lower layer; with firm their files cannot be removed either.
type overlay struct {
	vfs.FS
	stuck func(name string) bool
	firm  bool
}

func (o *overlay) Rename(from, to string) error {
	if ok, _ := path.Match(backend+"/*/*", from); ok && o.stuck(from) {
		return &vfs.Fault{Op: "rename", Name: from, Err: syscall.EXDEV}
	}
	if o.firm && strings.HasSuffix(from, ".bin") && o.stuck(path.Dir(from)) {
		return &vfs.Fault{Op: "rename", Name: from, Err: syscall.EACCES}
	}
	return o.FS.Rename(from, to)
}

func (o *overlay) Remove(name string) error {
	if o.firm && strings.HasSuffix(name, ".bin") && o.stuck(path.Dir(name)) {
		return &vfs.Fault{Op: "remove", Name: name, Err: syscall.EACCES}
	}
	return o.FS.Remove(name)
}

func (o *overlay) RemoveIf(name string, still func() bool) error {
	if o.firm && o.stuck(path.Dir(name)) {
		return &vfs.Fault{Op: "remove", Name: name, Err: syscall.EACCES}
	}
	return o.FS.RemoveIf(name, still)
}

// P5, P7: an entry that cannot be moved is emptied in its place, or where that is
// not possible passed over: the next victim goes, and no call fails.
func TestEvictionPassesOver(t *testing.T) {
	for _, firm := range []bool{false, true} {
		r := newRig(t)
		s := r.open("d", mib)
		oldest := s.place("k0")
		for i := range 5 {
			r.want("put", s.put(fmt.Sprint("k", i), "v", putOptions{bytes: 400}), "ok")
			r.clock(time.Second)
		}
		size := s.usage().DiskBytes
		s.cfg.Capacity = r.config("d", size).Capacity
		blobstore.SetFS(&s.cfg, func(root string) vfs.FS {
			return &overlay{vfs.Dir(root), func(name string) bool { return strings.HasSuffix(oldest, name) }, firm}
		})
		s.reopen()
		for i := 5; i < 8; i++ {
			r.want("put", s.put(fmt.Sprint("k", i), "v", putOptions{bytes: 400}), "ok")
			r.clock(time.Second)
			r.want("within", s.usage().DiskBytes <= size, true)
			r.want("audit", s.audit(), "ok")
		}
		stuck := "miss reason=absent"
		if firm {
			stuck = "v"
		}
		r.want("the one that is stuck", s.get("k0"), stuck)
		r.want("the next", s.get("k1"), "miss reason=absent")
		r.want("the newest", s.get("k7"), "v")
		r.want("prune", words(said(s.Prune(background, 0)), s.usage().Entries), map[bool]string{false: "ok 0", true: "refused reason=degraded 1"}[firm])
	}
}

// P5, P7: entries that cannot be removed are tried again once a minute, after a restart and by a
// prune, and not by each put.
func TestStuckEntriesAreTriedOnceAMinute(t *testing.T) {
	r := newRig(t)
	var tries atomic.Int64
	var armed atomic.Bool
	s := r.open("d", 50*small, on(func(f vfs.FS) vfs.FS {
		return &overlay{f, func(string) bool { tries.Add(1); return armed.Load() }, true}
	}))
	s.fill(1, 50, 10)
	armed.Store(true)
	triedBy := func(put int) bool {
		tries.Store(0)
		s.fill(put, put, 10)
		return tries.Load() >= 50
	}
	r.want("the first", triedBy(51), true)
	r.want("the next", words(triedBy(52), triedBy(53)), "false false")
	r.must(os.Remove(r.path("d/lease/journal")))
	r.want("after a listing", triedBy(56), false)
	r.clock(time.Minute)
	r.want("a minute later", words(triedBy(54), triedBy(55)), "true false")
	r.clock(-time.Hour)
	r.want("when the clock was set back", words(triedBy(57), triedBy(58)), "true false")
	s.reopen()
	tries.Store(0)
	r.want("prune", words(said(s.Prune(background, 0)), tries.Load() >= 50), "refused reason=degraded true")
	armed.Store(false)
	r.want("once they can be", words(s.Prune(background, 0), s.usage().Entries), "<nil> 0")
}

// clasped is a file system on which one file can be neither moved nor removed.
type clasped struct {
	vfs.FS
	name *string
}

func (c clasped) unless(op, name string, do func() error) error {
	if name == *c.name {
		return &vfs.Fault{Op: op, Name: name, Err: syscall.EACCES}
	}
	return do()
}

func (c clasped) Rename(from, to string) error {
	return c.unless("rename", from, func() error { return c.FS.Rename(from, to) })
}

func (c clasped) Remove(name string) error {
	return c.unless("remove", name, func() error { return c.FS.Remove(name) })
}

func (c clasped) RemoveIf(name string, still func() bool) error {
	return c.unless("remove", name, func() error { return c.FS.RemoveIf(name, still) })
}

// P7: of an entry whose key.bin alone cannot be removed what is left is counted, so that its
// payload makes room for others, here and in other processes; and it is passed over as others are.
func TestKeyThatIsStuck(t *testing.T) {
	r := newRig(t)
	key, tries := "", 0
	stuck := on(func(f vfs.FS) vfs.FS {
		return &overlay{clasped{f, &key}, func(place string) bool {
			if place == path.Dir(key) {
				tries++
			}
			return place == path.Dir(key)
		}, false}
	})
	s := r.open("d", 13*small, stuck)
	r.want("put", s.put("big", "v", putOptions{bytes: 9 * small}), "ok")
	key = backend + "/" + s.Bucket("big") + "/0/key.bin"
	r.clock(time.Second)
	s.fill(1, 3, 10)
	other := r.open("d", 13*small, stuck)
	r.want("other", other.put("k4", "v4", putOptions{bytes: 4*small - 6*kib}), "ok")
	for _, s := range []*shop{s, other} {
		r.want("no other goes", s.has(1, 2, 3, 4), []int{1, 2, 3, 4})
		r.want("on the disk", s.usage().DiskBytes, 7*small+4*kib)
		r.want("audit", s.audit(), "ok")
	}
	r.want("in tmp/", r.names("d/tmp"), "[]")
	tries = 0
	s.fill(5, 9, 10)
	r.want("goes by its new size", s.has(1, 2, 3, 4, 9), []int{1, 2, 3, 4, 9})
	r.want("tried again", tries, 0)
	left := words(1, 4*kib, "ok")
	r.want("prune", words(said(s.Prune(background, 0)), s.usage().Entries, s.usage().DiskBytes, s.audit()), "refused reason=degraded "+left)
	s.reopen()
	r.want("opened again", words(s.usage().Entries, s.usage().DiskBytes, s.audit()), left)
	key = ""
	r.want("once it can be", words(s.Prune(background, 0), s.usage().Entries, s.audit()), "<nil> 0 ok")
	r.want("put", s.put("bad", "v", putOptions{bytes: small}), "ok")
	key = backend + "/" + s.Bucket("bad") + "/0/key.bin"
	r.flip(s.kernel("bad"), -1)
	r.want("a damaged one", words(s.get("bad"), s.usage().DiskBytes, s.audit(), r.names("d/tmp")), words("miss reason=checksum", 4*kib, "ok []"))
}

// full is a disk without space for new files.
type full struct {
	vfs.FS
	full *atomic.Bool
}

func (f *full) Create(name string) (vfs.File, error) {
	if f.full.Load() {
		return nil, &vfs.Fault{Op: "create", Name: name, Err: syscall.ENOSPC}
	}
	return f.FS.Create(name)
}

// P5: hints that cannot be written on a full disk take nothing away: the store
// opens, reads and prunes, and stores again once there is space.
func TestHintsOnAFullDisk(t *testing.T) {
	r := newRig(t)
	var disk atomic.Bool
	s := r.open("d", mib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS { return &full{vfs.Dir(root), &disk} })
	})
	other := r.open("d", mib)
	for i := range 4 {
		r.want("put", s.put(fmt.Sprint("k", i), "v", putOptions{bytes: 400}), "ok")
		r.clock(time.Second)
	}
	r.want("other", other.usage().Entries, 4)
	r.write(r.path("d/size.txt"), []byte("7"))
	r.write(r.path("d/lease/journal"), []byte("torn"))
	disk.Store(true)
	s.reopen()
	r.want("get", s.get("k3"), "v")
	r.want("prune", words(s.Prune(background, small), s.usage().DiskBytes <= small, s.get("k3")), "<nil> true v")
	r.want("no space", s.put("new", "v"), "refused reason=degraded")
	disk.Store(false)
	r.clock(time.Hour)
	r.want("space", s.put("new", "v"), "ok")
	r.want("audit", s.audit(), "ok")
	r.want("other", words(other.usage().Bytes == s.usage().Bytes, other.audit()), "true ok")
}

// solid is a disk on which no file becomes longer while it is full.
type solid struct {
	vfs.FS
	full *atomic.Bool
}

type solidFile struct {
	vfs.File
	full *atomic.Bool
}

func (f solid) opened(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return solidFile{file, f.full}, nil
}

func (f solid) Create(name string) (vfs.File, error) { return f.opened(f.FS.Create(name)) }
func (f solid) Update(name string) (vfs.File, error) { return f.opened(f.FS.Update(name)) }

func (f solidFile) WriteAt(p []byte, at int64) (int, error) {
	if info, err := f.Stat(); err != nil || f.full.Load() && at+int64(len(p)) > info.Size {
		return 0, errors.Join(err, &vfs.Fault{Op: "write", Err: syscall.ENOSPC})
	}
	return f.File.WriteAt(p, at)
}

// P5: after a holder of the lock was passed over the lock has a fresh file, which has no
// block yet: on a full disk a store opens, evicts and prunes with it all the same.
func TestFreshLockOnAFullDisk(t *testing.T) {
	r := newRig(t)
	var disk atomic.Bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return solid{f, &disk} }))
	s.fill(1, 9, 400)
	disk.Store(true)
	r.write(r.path("d/lease/directory/1"), nil)
	r.want("prune", words(s.Prune(background, 6*small), s.usage().Entries), "<nil> 6")
	s.shut()
	r.write(r.path("d/lease/directory/2"), nil)
	s.cfg.Capacity = limit.Of(4 * small)
	s = r.open("d", mib, func(c *blobstore.Config) { *c = s.cfg })
	r.want("opened", s.has(5, 6, 7, 8, 9), []int{6, 7, 8, 9})
	disk.Store(false)
	r.want("put", words(s.put("k10", "v10"), s.has(6, 7, 10), s.audit()), "ok [7 10] ok")
}

// brim is a disk without space for new files until an entry is removed.
type brim struct {
	vfs.FS
	full *atomic.Bool
	firm bool          // removing does not help either
	says syscall.Errno // 0 = ENOSPC
}

func (b *brim) Create(name string) (vfs.File, error) {
	if b.full.Load() {
		return nil, &vfs.Fault{Op: "create", Name: name, Err: cmp.Or(b.says, syscall.ENOSPC)}
	}
	return b.FS.Create(name)
}

func (b *brim) RemoveAll(name string) error {
	if _, err := b.FS.Lstat(name + "/kernel.bin"); err == nil && !b.firm {
		b.full.Store(false)
	}
	return b.FS.RemoveAll(name)
}

// P5: a store that finds the disk full evicts what the new entry takes and goes on;
// where that does not help it does not evict everything.
func TestFullDiskEvicts(t *testing.T) {
	r := newRig(t)
	for _, firm := range []bool{false, true} {
		var disk atomic.Bool
		s := r.open(fmt.Sprint(firm), mib, func(c *blobstore.Config) {
			blobstore.SetFS(c, func(root string) vfs.FS { return &brim{vfs.Dir(root), &disk, firm, 0} })
		})
		s.fill(0, 19, 400)
		disk.Store(true)
		if !firm {
			r.want("put", s.put("k20", "v20"), "ok")
			r.want("the oldest went", s.has(0, 1, 2, 20), []int{1, 2, 20})
			r.want("one did", s.usage().Entries, 20)
			r.want("audit", s.audit(), "ok")
			continue
		}
		r.want("put", s.put("k20", "v20"), "refused reason=degraded")
		r.want("what it took to see that", s.usage().Entries, 20-1-2-4-4-4)
		r.want("paused", s.put("k20", "v20"), "refused reason=degraded")
		r.want("nothing more", s.usage().Entries, 20-1-2-4-4-4)
	}
}

// moody is a context whose Done panics the second time.
type moody struct {
	context.Context
	asked int
}

func (m *moody) Done() <-chan struct{} {
	if m.asked++; m.asked > 1 {
		panic("made to panic")
	}
	return m.Context.Done()
}

// A caller whose context panics while it waits for another process's change leaves
// no lock behind.
func TestContextThatPanicsUnderTheLock(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	other := hostlock.NewDirectory(vfs.Dir(s.cfg.Dir), "lease/directory", time.Minute)
	if err := other.Lock(background); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { r.want("panic", recover(), "made to panic") }()
		_ = s.Prune(&moody{Context: background}, 0)
	}()
	other.Unlock()
	r.want("put", s.put("k", "v"), "ok")
}

// laggard is a file system that takes two seconds to move an entry, or to look at one, and
// may have no journal.
type laggard struct {
	vfs.FS
	slow    *atomic.Bool
	journal bool
}

func (l laggard) lag(name, part string) {
	if l.slow.Load() && strings.Contains(name, part) {
		time.Sleep(2 * time.Second)
	}
}

func (l laggard) Rename(from, to string) error {
	if l.slow.Load() && !l.journal && to == "lease/journal" {
		return syscall.ENOSPC
	}
	l.lag(from, backend+"/")
	return l.FS.Rename(from, to)
}

func (l laggard) Lstat(name string) (vfs.Info, error) {
	l.lag(name, "/key.bin")
	return l.FS.Lstat(name)
}

// P7, P8: who lists for long under the directory lock shows that it lives, and who evicts for
// long gives the lock back between entries: neither is passed over.
func TestBeatsUnderTheLock(t *testing.T) {
	for what, journal := range map[string]bool{"evicts": true, "lists, without a journal": false} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := crashfs.New(nil)
				open := func(f vfs.FS) *blobstore.Store {
					cfg := powerConfig(f, blobstore.None)
					cfg.Capacity = limit.Of(mib)
					s, err := blobstore.Open(background, cfg)
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				slow := &atomic.Bool{}
				a, b := open(laggard{disk, slow, journal}), open(disk)
				for i := range 15 {
					if err := a.Put(background, backend, fmt.Sprint(i), nil, 0); err != nil {
						t.Fatal(err)
					}
				}
				slow.Store(true)
				if !journal {
					if err := disk.Remove("lease/journal"); err != nil {
						t.Fatal(err)
					}
				}
				begin, done := time.Now(), make(chan error)
				go func() { done <- a.Prune(background, 0) }()
				time.Sleep(time.Second) // it has the lock
				if err := b.Put(background, backend, "b", nil, 0); err != nil {
					t.Error(err)
				}
				waited := time.Since(begin)
				slow.Store(false)
				list, err := disk.ReadDir("lease/directory")
				if e := <-done; !journal && waited < 20*time.Second || len(list) != 1 || err != nil || e != nil {
					t.Errorf("waited %v; holders %v: %v, %v", waited, list, err, e)
				}
				if err := errors.Join(a.Close(background), b.Close(background)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// P5, P7: in a full bucket an entry that cannot be removed is passed over, and not tried by
// each put: the next oldest goes.
func TestFullBucketPassesOver(t *testing.T) {
	r := newRig(t)
	tries := 0
	s := r.open("d", 4*mib, hash(7), on(func(f vfs.FS) vfs.FS {
		return &overlay{f, func(name string) bool {
			if name == backend+"/7/0" {
				tries++
			}
			return name == backend+"/7/0"
		}, true}
	}))
	s.fill(0, 66, 10)
	r.want("tried", tries > 0, true)
	tries = 0
	s.fill(67, 69, 10)
	r.want("tried again", tries, 0)
	r.want("entries", s.usage().Entries, 64)
	r.want("the next oldest went", s.has(0, 1, 6, 7, 69), []int{0, 7, 69})
	r.want("evicted", s.Stats().Evictions, 6)
	r.want("audit", s.audit(), "ok")
}
