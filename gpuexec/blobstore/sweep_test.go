//go:build unix

package blobstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// A clock that is set forward, that of the file system too, while something is stored makes
// its temporary files look old: the hourly sweep must leave them alone (SPEC P9).
func TestSweepLeavesWhatIsBeingWritten(t *testing.T) {
	for _, shared := range []bool{false, true} {
		sweepDuringAPut(newRig(t), shared)
	}
}

func sweepDuringAPut(r *rig, shared bool) {
	var hourly func()
	armed := false
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.Shared = shared
		c.After = func(d time.Duration, f func()) func() bool {
			if d == time.Hour {
				hourly = f
			}
			return func() bool { return true }
		}
		blobstore.SetFS(c, func(root string) vfs.FS {
			return vfs.Watch(vfs.Dir(root), func(op string) error {
				if armed && op == "write" {
					armed = false
					r.clock(2 * time.Hour)
					r.age(2*time.Hour, "d/tmp")
					hourly()
				}
				return nil
			})
		})
	})
	r.write(r.path("d/tmp/left"), []byte("by somebody"))
	armed = true
	r.want("put", s.put("k", "v"), "ok")
	r.want("fired", armed, false)
	r.want("get", s.get("k"), "v")
	if _, err := vfs.Dir(r.path("d")).Lstat("tmp/left"); err == nil {
		r.t.Error("what somebody else left is there still")
	}
}

// P7: what was evicted and could not be removed, while syncs failed, goes with a later sweep, though its
// process lives.
func TestEvictedWhileSyncsFail(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, sync_(blobstore.Full))
	s.put("k", "v")
	r.fault("syncdir", syscall.EIO)
	r.must(s.Prune(background, 0))
	r.want("left", len(r.names("d/tmp")), 1)
	r.heal()
	r.clock(time.Hour)
	r.want("put, left", words(s.put("j", "v"), len(r.names("d/tmp"))), "ok 0")
}

// P9: on a file system of many machines what one is writing stays, however far another's clock
// is ahead of that of the files; and what is old by that clock goes, however far it is behind.
func TestSweepByTheClockOfTheFiles(t *testing.T) {
	for _, ahead := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		r := newRig(t)
		shared := func(c *blobstore.Config) { c.Shared = true }
		writes := newStall("after mkdir tmp/*")
		a := r.open("d", mib, shared, writes.config)
		done := make(chan string)
		go func() { done <- a.put("k", "v") }()
		<-writes.reached
		r.clock(ahead)
		r.write(r.path("d/tmp/old"), nil)
		r.write(r.path("d/lease/key/old/x"), nil)
		r.write(r.path("d/lease/key/young/x"), nil)
		r.must(errors.Join(os.Remove(r.path("d/lease/key/old/x")), os.Remove(r.path("d/lease/key/young/x"))))
		then := time.Now().Add(-90 * time.Minute)
		for _, name := range []string{"tmp/old", "lease/key/old"} {
			r.must(os.Chtimes(r.path("d/"+name), then, then))
		}
		r.open("d", mib, shared)
		r.want("tmp/ and leases", words(len(r.names("d/tmp")), r.names("d/lease/key")), "1 [young]")
		close(writes.resume)
		r.want("put, get", words(<-done, a.get("k")), "ok v")
	}
}

// P9: where no file can be made to tell the time, nothing young goes: the last change of tmp/ is
// no later.
func TestSweepOnAFullDisk(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	r.open("d", mib, shared).shut()
	r.clock(2 * time.Hour)
	for name, age := range map[string]time.Duration{"young": time.Minute, "old": 90 * time.Minute} {
		then := time.Now().Add(-age)
		r.write(r.path("d/tmp/"+name), nil)
		r.must(os.Chtimes(r.path("d/tmp/"+name), then, then))
	}
	r.open("d", mib, shared, on(func(f vfs.FS) vfs.FS { return uncreating{f} })).shut()
	r.want("left", r.names("d/tmp"), []string{"young"})
}

// uncreating is a disk so full that it takes no further file.
type uncreating struct{ vfs.FS }

func (f uncreating) Create(name string) (vfs.File, error) {
	return nil, &vfs.Fault{Op: "open", Name: name, Err: syscall.ENOSPC}
}

// P9: a clock that is set back by hours does not put the next sweep off.
func TestSweepAfterTheClockWentBack(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	r.write(r.path("d/tmp/left"), []byte("by somebody"))
	old := r.now().Add(-10 * time.Hour)
	r.must(os.Chtimes(r.path("d/tmp/left"), old, old))
	r.want("put", s.put("k", "v"), "ok")
	r.want("there, within the hour", r.exists(r.path("d/tmp/left")), true)
	r.clock(-5 * time.Hour)
	r.want("put", s.put("j", "v"), "ok")
	r.want("there", r.exists(r.path("d/tmp/left")), false)
}

// P14: what hides an entry of a base goes with that entry: when it was replaced or
// removed, not when its base is away for a while.
func TestSweepHidden(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	for _, key := range []string{"removed", "replaced", "stays"} {
		base.put(key, "of the base")
	}
	base.shut()
	r.write(r.path("d/mark/hidden-torn"), nil) // nobody can tell what it hides
	s := r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
	for _, key := range []string{"removed", "replaced", "stays"} {
		r.flip(r.path("base/test/"+s.Bucket(key)+"/0/kernel.bin"), -1)
		r.want(key, s.get(key), "miss reason=checksum")
	}
	marks := func() int { return len(r.names("d/mark")) }
	r.want("marks", marks(), 4)
	s.reopen()
	r.want("swept in vain", marks(), 4)
	r.must(os.Rename(r.path("base"), r.path("away")))
	s.shut()
	r.open("d", mib).shut()
	r.want("base away", marks(), 4)
	r.must(os.Rename(r.path("away"), r.path("base")))
	r.must(os.RemoveAll(r.path("base/test/" + s.Bucket("removed"))))
	r.must(os.WriteFile(r.path("base/test/"+s.Bucket("replaced")+"/0/kernel.bin"), []byte("another"), 0o600))
	s = r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
	r.want("swept", marks(), 2)
	r.want("hidden still", s.get("stays"), "miss reason=absent")
}

// P11: what is left of a driver that died goes with the entry it died of, wherever
// that lay; never while somebody is inside, nor while nobody can tell.
func TestSweepCrashed(t *testing.T) {
	r := newRig(t)
	aborts := func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }
	based := func(c *blobstore.Config) { c.Bases = []string{r.path("base")} }
	keys := []string{"evicted", "damaged", "stays", "held"}
	base := r.open("base", mib)
	for _, key := range []string{"base stays", "base removed", "base moved"} {
		base.put(key, "v")
	}
	base.shut()
	r.write(r.path("d/mark/foreign"), []byte("of nobody"))
	r.must(os.Mkdir(r.path("d/mark/folder"), 0o700))
	s := r.open("d", mib, aborts, based)
	for _, key := range keys {
		s.put(key, "v")
	}
	leave := map[string]func(){}
	enter := func(key string) (mark string) {
		t.Helper()
		before := r.names("d/mark")
		b, miss, err := s.Get(background, backend, key)
		r.want(key, words(miss, err), words(blobstore.Miss{}, nil))
		leave[key], _, err = s.Enter(background, backend, b)
		r.must(err)
		for _, name := range r.names("d/mark") {
			if !slices.Contains(before, name) {
				mark = r.path("d/mark/" + name)
			}
		}
		return mark
	}
	marks := map[string]string{"held": enter("held")}
	for _, key := range append(keys[:3:3], "base stays", "base removed", "base moved") {
		marks[key] = enter(key)
		text := r.read(marks[key])
		leave[key]()
		r.write(marks[key], text) // as of a process that died inside: nobody has its lock
	}
	there := func(want ...string) {
		t.Helper()
		var have []string
		for key, mark := range marks {
			if r.exists(mark) {
				have = append(have, key)
			}
		}
		slices.Sort(have)
		r.want("marks", have, want)
		r.want("foreign", r.exists(r.path("d/mark/foreign")) && r.exists(r.path("d/mark/folder")), true)
	}
	all := []string{"base moved", "base removed", "base stays", "damaged", "evicted", "held", "stays"}
	others := r.open("d", mib) // knows no base, and sweeps as it opens
	there(all...)
	r.must(os.Rename(r.path("base"), r.path("away")))
	others.reopen()
	there(all...)
	r.must(os.Rename(r.path("away"), r.path("base")))

	r.must(os.RemoveAll(r.path("base/test/" + s.Bucket("base removed"))))
	r.must(os.Rename(r.path("base/test/"+s.Bucket("base moved")), r.path("d/test/"+s.Bucket("base moved"))))
	r.must(os.RemoveAll(s.place("evicted")))
	r.must(os.RemoveAll(s.place("held")))
	r.flip(s.kernel("damaged"), -1)
	r.want("damaged", s.get("damaged"), "miss reason=checksum")
	r.want("put", s.put("damaged", "v"), "ok") // another entry of the same key
	others.reopen()
	there("base moved", "base stays", "held", "stays")
	leave["held"]()
	r.want("enter", words(s.died("stays"), s.died("base stays"), s.died("base moved")), "quarantined quarantined quarantined")
	there()
}

// died is what Enter says of the entry of a key.
func (s *shop) died(key string) fault.Reason {
	b, _, err := s.Get(background, backend, key)
	s.r.must(err)
	_, miss, err := s.Enter(background, backend, b)
	s.r.must(err)
	return miss.Reason
}

// An open, a store and a claim pay for a few of the leases and marks that are left
// behind, however many there are; all go in the end, and as fast as they come.
func TestSweepsByShares(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, sync_(blobstore.None), func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } })
	const share = 32
	left := func(what string, leases, marks int) {
		t.Helper()
		r.want(what, words(len(r.names("d/lease/key")), len(r.names("d/mark"))), words(leases, marks))
	}
	claims := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			_, c, _, err := s.Obtain(background, backend, fmt.Sprint("key ", i))
			r.must(err)
			c.Release()
		}
	}
	claims(0, 9)
	left("claims leave nothing", 0, 0)
	for i := range 200 {
		r.write(r.path(fmt.Sprintf("d/lease/key/%032x/1", i)), make([]byte, 9))
		r.write(r.path(fmt.Sprintf("d/mark/%064x", i)), append(make([]byte, 9), "test/1/0\n"...)) // of a process that died
	}
	left("before", 200, 200)
	s.reopen()
	left("an open", 200-share, 200-share)
	_, held, _, err := s.Obtain(background, backend, "held")
	r.must(err)
	claims(200, 220)
	left("claims", 200-share-2*20+1, 200-share-2*20)
	claims(220, 300)
	left("more claims", 1, 0)
	held.Release()
	left("the last", 0, 0)
}

// What is in use and comes first in the listing does not keep a sweep from what is
// behind it, even if each process ends before its second share.
func TestSweepBeginsAnywhere(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, sync_(blobstore.None))
	for i := range 100 {
		r.must(os.Mkdir(r.path(fmt.Sprintf("d/lease/key/a%03d", i)), 0o700)) // young
	}
	old := time.Now().Add(-2 * time.Hour)
	for i := range 20 {
		name := r.path(fmt.Sprintf("d/lease/key/b%03d", i))
		r.must(os.Mkdir(name, 0o700))
		r.must(os.Chtimes(name, old, old))
	}
	for range 500 {
		if s.reopen(); len(r.names("d/lease/key")) == 100 {
			return
		}
	}
	t.Errorf("%d folders stay", len(r.names("d/lease/key")))
}

// P14: an entry of a base is hidden for as long as its files are those that were
// found bad, whichever of them it was.
func TestBaseIsRepaired(t *testing.T) {
	for _, file := range []string{"key.bin", "kernel.bin"} {
		for name, damage := range map[string]func(r *rig, path string){
			"damaged": func(r *rig, path string) { r.flip(path, 0) },
			"removed": func(r *rig, path string) { r.must(os.Remove(path)) },
		} {
			t.Run(file+" "+name, func(t *testing.T) {
				r := newRig(t)
				base := r.open("base", mib)
				base.put("k", "v")
				base.shut()
				s := r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
				path := base.place("k", file)
				good := r.read(path)
				damage(r, path)
				if got := s.get("k"); got == "v" {
					t.Error("a damaged entry was served")
				}
				r.want("hidden", s.get("k"), "miss reason=absent")
				s.reopen()
				r.want("hidden still", words(s.get("k"), len(r.names("d/mark"))), "miss reason=absent 1")
				r.write(path, good)
				later := time.Now().Add(time.Second) // however coarse the file system's clock is
				r.must(os.Chtimes(path, later, later))
				r.want("repaired", s.get("k"), "v")
				s.reopen()
				r.want("repaired", words(s.get("k"), len(r.names("d/mark"))), "v 0")
			})
		}
	}
}

// unlistable is a file system one folder of which cannot be listed.
type unlistable struct {
	vfs.FS
	folder string
}

func (u unlistable) ReadDir(name string) ([]vfs.Info, error) {
	if name == u.folder {
		return nil, &vfs.Fault{Op: "read", Name: name, Err: syscall.EIO}
	}
	return u.FS.ReadDir(name)
}

// P11: the mark of a driver that died stays while nobody can tell whether the blob is
// still there; then it warns of it.
func TestMarkOfAnUnreadableBucketStays(t *testing.T) {
	r := newRig(t)
	aborts := func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }
	s := r.open("d", mib, aborts)
	r.want("put", s.put("k", "v"), "ok")
	s.shut()
	_ = r.child("die", r.path("d"), fmt.Sprint(mib), "k").Wait() // it is killed
	r.want("marks", len(r.names("d/mark")), 1)
	blind := r.open("d", mib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS { return unlistable{vfs.Dir(root), backend + "/" + s.Bucket("k")} })
	})
	blind.shut()
	r.want("marks", len(r.names("d/mark")), 1)
	s.reopen()
	b, _, err := s.Get(background, backend, "k")
	r.must(err)
	_, miss, err := s.Enter(background, backend, b)
	r.want("enter", words(miss.Reason, err, s.get("k")), "quarantined <nil> miss reason=absent")
}

// P9: what a dead owner has left and cannot be removed now goes when it can be, however young.
func TestSweepTriesAgain(t *testing.T) {
	r := newRig(t)
	dead := strings.Repeat("0", 24)
	r.open("d", mib).shut()
	r.write(r.path("d/lease/owner/"+dead+"00000001"), nil)
	r.write(r.path("d/tmp/"+dead+"00000002"), []byte("left"))
	r.open("d", mib, on(func(f vfs.FS) vfs.FS { return unremovable{f} })).shut()
	r.want("it stays, its owner is known", words(len(r.names("d/tmp")), len(r.names("d/lease/owner"))), "1 1")
	r.open("d", mib).shut()
	r.want("both are gone", words(len(r.names("d/tmp")), len(r.names("d/lease/owner"))), "0 0")
}

// unremovable is a file system on which no temporary file can be removed for good.
type unremovable struct{ vfs.FS }

func (f unremovable) RemoveAll(name string) error {
	if strings.HasPrefix(name, "tmp/") {
		return &vfs.Fault{Op: "remove", Name: name, Err: syscall.EBUSY}
	}
	return f.FS.RemoveAll(name)
}

// P7, P8: who lists the directory for a process that has ended does not wait as long as a lease for
// one that stands still with the lock: a later sweep does it.
func TestRecountDoesNotWaitForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		disk := crashfs.New(nil)
		holder := hostlock.NewDirectory(disk, "lease/directory", 10*time.Second)
		stands := false
		open := func() *blobstore.Store {
			s, err := blobstore.Open(background, powerConfig(told{disk, func(op, name string) {
				if op == "open" && name == "lease/directory/0" && stands { // it looks who has ended
					stands = false
					r.must(holder.Lock(background))
				}
			}}, blobstore.None))
			r.must(err)
			return s
		}
		s := open()
		r.must(s.Put(background, backend, "k", []byte("v"), 0))
		r.must(s.Close(background))
		r.must(vfs.WriteNew(disk, "lease/directory/1", false)) // the first holder was passed over
		stands = true
		begin := time.Now()
		s = open()
		r.want("waited", words(stands, time.Since(begin) < 5*time.Second), "false true")
		holder.Unlock()
		ended := func() bool { _, any := holder.Ended(); return any }
		r.want("not yet", ended(), true)
		r.must(s.Close(background))
		s = open()
		r.want("then", ended(), false)
		r.must(s.Close(background))
	})
}

// P9: what was written for the next turn of a change, which then failed, goes when the store ends,
// or could not be opened: a sweep would leave it for an hour, since nobody is its owner any more.
func TestPreparedForAChangeThatFailed(t *testing.T) {
	r := newRig(t)
	holder := hostlock.NewDirectory(vfs.Dir(r.path("d")), "lease/directory", time.Minute)
	part := ""
	var leave func()
	ctx := func() (ctx context.Context) {
		ctx, leave = context.WithCancel(background)
		t.Cleanup(leave)
		return ctx
	}
	stands := func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS {
			return told{vfs.Dir(root), func(op, name string) {
				if op == "create" && part != "" && strings.HasSuffix(name, part) {
					part = ""
					r.must(holder.Lock(background))
					leave()
				}
			}}
		})
	}
	s := r.open("d", mib, stands)
	s.put("k", "v")
	r.fillRefusals()
	b := s.blob("k")
	part = ".refused"
	r.must(s.Refuse(ctx(), b))
	r.want("a list", words(part, strings.Contains(words(r.names("d/tmp")), ".refused")), " true")
	holder.Unlock()
	s.shut()
	r.want("when the store has ended", r.names("d/tmp"), "[]")
	part = ".settings"
	_, err := blobstore.Open(ctx(), r.config("d", 2*mib, stands))
	r.want("settings", words(part, errors.Is(err, context.Canceled)), " true")
	r.want("after an open that failed", r.names("d/tmp"), "[]")
	holder.Unlock()
	s.reopen()
}
