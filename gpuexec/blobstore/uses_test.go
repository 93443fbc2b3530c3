//go:build unix

package blobstore_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P7: uses that others have noted count once, however often they are looked up.
func TestUsesAreLookedUpTwice(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 3*small, policy(blobstore.Cost))
	put := func(key string, cost float64) {
		r.want(key, s.put(key, "v", putOptions{cost: cost}), "ok")
		r.clock(time.Minute)
	}
	put("k1", 1)
	put("k2", 2.5)
	put("k3", 1.2)
	r.usedAhead(s, 1, 1, 8000) // so many that k1 is looked up alone
	put("k4", 1.5)             // k1 is the first to be looked up, and k3 goes
	put("k5", 9)               // k4 goes
	put("k6", 9)               // k1 is looked up again
	r.want("have", words(s.get("k1"), s.get("k2"), s.get("k5"), s.get("k6")), "miss reason=absent v v v")
}

// P7: uses that were written before the first change of an opening are known to it.
func TestUsesBeforeTheFirstChange(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 4*small, policy(blobstore.LRU))
	s.fill(1, 4, 10)
	s.reopen()
	r.want("use", s.has(1), []int{1})
	s.FlushUses()
	s.fill(5, 5, 10)
	r.want("have", s.has(1, 2, 3, 4, 5), []int{1, 3, 4, 5})
}

// told tells of names that are about to be looked at, opened for reading or made.
type told struct {
	vfs.FS
	tell func(op, name string)
}

func (f told) Lstat(name string) (vfs.Info, error) {
	f.tell("lstat", name)
	return f.FS.Lstat(name)
}

func (f told) Open(name string) (vfs.File, error) {
	f.tell("open", name)
	return f.FS.Open(name)
}

func (f told) Create(name string) (vfs.File, error) {
	f.tell("create", name)
	return f.FS.Create(name)
}

// P7: who has used an entry that is gone looks for it once.
func TestUsesOfWhatIsGone(t *testing.T) {
	r := newRig(t)
	lru, place, looks := policy(blobstore.LRU), "", 0
	other := r.open("d", mib, lru)
	other.fill(1, 2, 10)
	s := r.open("d", mib, lru, on(func(f vfs.FS) vfs.FS {
		return told{f, func(op, name string) {
			if op == "lstat" && name == place {
				looks++
			}
		}}
	}))
	r.want("use", s.has(1, 2), []int{1, 2})
	r.must(other.Prune(background, small))
	place = backend + "/" + s.Bucket("k1") + "/0"
	for range 3 {
		s.FlushUses()
		r.want("use", s.has(2), []int{2})
	}
	r.want("looks", looks, 1)
}

// P7: uses that could not be written are written when that is possible again.
func TestUsesAreWrittenLater(t *testing.T) {
	r := newRig(t)
	s, other := r.open("d", 4*small, policy(blobstore.LRU)), r.open("d", 4*small, policy(blobstore.LRU))
	s.fill(1, 4, 10)
	r.want("use", s.has(1), []int{1})
	r.fault("rename", syscall.EIO)
	s.FlushUses()
	r.want("left in tmp/", r.names("d/tmp"), "[]")
	r.heal()
	s.FlushUses()
	other.fill(5, 5, 10)
	r.want("have", other.has(1, 2, 3, 4, 5), []int{1, 3, 4, 5})
}

// listed are the uses of the one entry of a store.
func (s *shop) listed() (n int64) {
	s.r.must(s.List(background, func(i blobstore.Info) error { n = i.Uses; return nil }))
	return n
}

// P7: uses that are taken over from a writer that ended, and cannot be written, are not lost.
func TestUsesTakenOverOnAFullDisk(t *testing.T) {
	r := newRig(t)
	byUse := policy(blobstore.LRU)
	a := r.open("d", mib, byUse)
	r.want("put, uses", words(a.put("k", "v"), a.get("k"), a.get("k")), "ok v v")
	a.shut()
	b := r.open("d", mib, byUse, on(func(f vfs.FS) vfs.FS { return unwritten{f} }))
	b.listed()
	b.shut()
	r.must(os.Remove(r.path("d/lease/index"))) // which may have them, too
	r.want("uses", r.open("d", mib, byUse).listed(), 2)
}

// P7: uses that one takes over from a writer that ended are not taken over by another at the same
// time: each use counts once.
func TestUsesTakenOverByTwo(t *testing.T) {
	r := newRig(t)
	byUse := policy(blobstore.LRU)
	a := r.open("d", mib, byUse)
	r.want("put, uses", words(a.put("k", "v"), a.get("k"), a.get("k")), "ok v v")
	late := newStall("after rename uses/*-taken")
	b, c := r.open("d", mib, byUse, late.config), r.open("d", mib, byUse)
	a.shut()
	done := make(chan int64)
	go func() { done <- b.listed() }()
	<-late.reached
	r.want("of the other", c.listed(), 2)
	close(late.resume)
	r.want("of the first", <-done, 2)
	b.shut()
	c.shut()
	r.must(os.Remove(r.path("d/lease/index"))) // which may have them, too
	r.want("later", r.open("d", mib, byUse).listed(), 2)
}

// unwritten is a file system on which no writer can write its uses.
type unwritten struct{ vfs.FS }

func (f unwritten) Rename(from, to string) error {
	if strings.HasPrefix(from, "tmp/") && strings.HasPrefix(to, "uses/") {
		return &vfs.Fault{Op: "rename", Name: to, Err: syscall.ENOSPC}
	}
	return f.FS.Rename(from, to)
}

// P7: uses that the index has, and the files of uses too, count once.
func TestUsesInIndexAndFileCountOnce(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 2*small, policy(blobstore.Cost))
	r.want("put", words(s.put("k1", "v", putOptions{cost: 1}), s.put("k2", "v", putOptions{cost: 2.5}), s.get("k1")), "ok ok v")
	s.FlushUses()
	s.SaveIndex()
	s.reopen()
	r.want("put", s.put("k3", "v", putOptions{cost: 9}), "ok")
	r.want("have", words(s.get("k1"), s.get("k2")), "miss reason=absent v")
}

// P7: uses that were noted of an entry do not count for another that has its place.
func TestUsesNotedOfThePlaceBefore(t *testing.T) {
	r := newRig(t)
	s, other := r.open("d", mib), r.open("d", mib)
	s.fill(1, 1, 10)
	r.want("use", s.has(1), []int{1})
	r.must(other.Prune(background, 0))
	other.fill(1, 1, 10)
	r.want("use", s.has(1), []int{1})
	info, err := s.Inspect(background, backend+"/"+s.Bucket("k1")+"/0")
	r.want("uses", words(info.Uses, err), "1 <nil>")
}

// P7: who closes after few uses does not write the index for them, however few entries there are.
func TestFewUsesLeaveTheIndex(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	s.fill(1, 10, 10)
	s.SaveIndex()
	s.reopen()
	before, err := os.Stat(r.path("d/lease/index"))
	r.must(err)
	r.want("uses", len(s.has(1, 2, 3, 4, 5)), 5)
	s.shut()
	after, err := os.Stat(r.path("d/lease/index"))
	r.want("the same file", words(err, os.SameFile(before, after)), "<nil> true")
}
