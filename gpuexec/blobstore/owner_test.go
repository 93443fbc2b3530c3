//go:build unix

package blobstore_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P9: what a living process writes stays, however old the clock makes it look, and its
// uses stay its own; what a dead one left goes at the next open, and so does the file
// that tells of it; its uses by the next that closes. What has no owner goes by age.
func TestSweepByOwner(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	alive, dead := strings.Repeat("a", 24), strings.Repeat("d", 24)
	files := []string{"tmp/" + alive + "00000002", "uses/" + alive + "00000001", "lease/owner/" + alive + "00000001", "lease/owner/" + alive + "00000003",
		"tmp/" + dead + "00000002", "uses/" + dead + "00000001", "lease/owner/" + dead + "00000001", "lease/owner/new-" + dead + "00000004", "tmp/nobodys", "uses/nobodys"}
	for _, name := range files {
		r.write(r.path("d/"+name), []byte("open\n"))
	}
	held, err := vfs.Dir(r.path("d")).Open(files[2])
	r.must(err)
	defer held.Close()
	if locked, err := held.TryLock(); !locked || err != nil {
		t.Fatal(locked, err)
	}
	left := func(what string, want ...string) {
		t.Helper()
		var there []string
		for _, name := range files {
			if r.exists(r.path("d/" + name)) {
				there = append(there, name)
			}
		}
		r.want(what, there, want)
	}
	young := []string{files[0], files[1], files[2], files[5], files[6], "tmp/nobodys", "uses/nobodys"}
	other := r.open("d", mib, policy(blobstore.LRU))
	left("young", young...)
	r.clock(3 * time.Hour)
	r.want("put", s.put("k", "v"), "ok")
	other.reopen()
	left("old", files[0], files[1], files[2])
	owners := func() int { return len(r.names("d/lease/owner")) }
	r.want("owners", owners(), 3)
	s.shut()
	r.want("owners", owners(), 2)
	s.reopen()
	r.must(os.RemoveAll(r.path("d")))
	r.want("refused", s.put("j", "v"), "refused reason=degraded")
	r.clock(time.Hour)
	r.want("put", s.put("j", "v"), "ok")
	r.want("owners of the new directory", owners(), 1)
}

// blind is a file system where the owners cannot be looked at, for want of descriptors.
type blind struct {
	vfs.FS
	at string // what cannot be opened or listed
}

func (b blind) ReadDir(name string) ([]vfs.Info, error) {
	if name == b.at {
		return nil, syscall.EMFILE
	}
	return b.FS.ReadDir(name)
}

func (b blind) Open(name string) (vfs.File, error) {
	if path.Dir(name)+"/" == b.at {
		return nil, syscall.EMFILE
	}
	return b.FS.Open(name)
}

// P9: who cannot look whether owners live takes none for dead, however the clock jumped.
func TestSweepThatCannotLook(t *testing.T) {
	for _, at := range []string{"lease/owner", "lease/owner/"} {
		r := newRig(t)
		owner := strings.Repeat("a", 24)
		files := []string{"tmp/" + owner + "00000002", "uses/" + owner + "00000001", "lease/owner/" + owner + "00000001"}
		r.open("d", mib, policy(blobstore.LRU)).shut()
		for _, name := range files {
			r.write(r.path("d/"+name), []byte("open\n"))
		}
		r.clock(3 * time.Hour)
		r.open("d", mib, policy(blobstore.LRU), func(c *blobstore.Config) {
			blobstore.SetFS(c, func(root string) vfs.FS { return blind{vfs.Dir(root), at} })
		}).shut()
		for _, name := range files {
			r.want(name, r.exists(r.path("d/"+name)), true)
		}
		r.open("d", mib, policy(blobstore.LRU)).shut()
		r.want("seen to be dead", r.exists(r.path("d/"+files[0])), false)
	}
}

// P9: a child that was killed while it wrote leaves nothing for long, and a clock that
// jumps takes nothing from one that lives.
func TestSweepOfChildren(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	cmd := r.child("puts", r.path("d"), words(mib), "0", "100000", "5000")
	r.eventually("the child stores", func() bool { return s.usage().Entries > 3 })
	r.want("owners", len(r.names("d/lease/owner")), 2)
	for range 20 {
		r.clock(3 * time.Hour)
		s.reopen()
	}
	entries := s.usage().Entries
	r.eventually("it goes on", func() bool { return s.usage().Entries > entries || s.usage().Entries == mib/(12*kib) })
	r.must(cmd.Process.Kill())
	_ = cmd.Wait()
	s.reopen()
	r.want("left", words(len(r.names("d/tmp")), len(r.names("d/lease/owner"))), "0 1")
}

// P9: a prune that was killed leaves nothing that the next open does not free, whatever
// the clock says.
func TestKilledPrune(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.fill(1, 5, 1000)
	_ = r.child("prune", r.path("d"), words(mib)).Wait() // it was killed
	entries := s.usage().Entries                         // on a slow machine the lock is given back before the last one
	r.want("trash and entries", words(len(r.names("d/tmp"))+entries, len(r.names("d/lease/owner"))), "4 2")
	r.want("audit", s.audit(), "ok")
	s.reopen()
	r.want("left", words(len(r.names("d/tmp")), len(r.names("d/lease/owner"))), "0 1")
}

// P8, P9, P11: builds, loads by a driver that can abort and uses leave one file of uses
// behind, however many there were; what killed processes leave goes with the next open,
// but for the digests of what they died on, which one file has.
func TestNothingIsLeftBehind(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU), func(c *blobstore.Config) {
		c.Aborts, c.Lease = func(string) bool { return true }, time.Second
	})
	left := func(what, want string) {
		t.Helper()
		var names []string
		r.must(filepath.WalkDir(r.path("d"), func(path string, e fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, r.path("d")+"/")
			if parts := strings.Split(name, "/"); slices.Contains([]string{"lease", "mark", "uses", "tmp"}, parts[0]) && len(parts) > 1 {
				if parts[0] == "uses" || parts[1] == "owner" && len(parts) > 2 {
					name = path[len(r.path("d"))+1:strings.LastIndexByte(path, '/')+1] + "*"
				}
				names = append(names, name)
			}
			return err
		}))
		r.want(what, strings.Join(names, " "), want)
	}
	const nothing = "lease/directory lease/directory/0 lease/index lease/journal lease/key lease/owner lease/settings uses/*"
	for i := range 20 {
		key := fmt.Sprint("k", i)
		_, c, _, err := s.Obtain(background, backend, key)
		r.must(err)
		r.must(c.Save(background, []byte("v"), time.Second))
		b, _, err := s.Get(background, backend, key)
		r.must(err)
		leave, _, err := s.Enter(background, backend, b)
		r.must(err)
		leave()
	}
	s.reopen()
	s.shut()
	left("closed", nothing)
	s = r.open("d", mib, func(c *blobstore.Config) { *c = s.cfg })
	_ = r.child("die", r.path("d"), words(mib), "k1").Wait() // it was killed
	log := r.path("runs")
	builder := r.child("build", r.path("d"), words(mib), "late", "v", r.path("never"), log)
	r.eventually("the child builds", func() bool { return r.exists(log) })
	r.must(builder.Process.Kill())
	_ = builder.Wait()
	r.want("the mark", s.died("k1"), "quarantined")
	s.reopen()
	s.shut()
	left("after kills", strings.Replace(nothing, " lease/settings", " lease/refused lease/settings", 1))
}

// P9: all that one change has evicted is removed after it.
func TestEvictedTogetherAreRemoved(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.fill(1, 5, 1000)
	r.must(s.Prune(background, 0))
	r.want("trash", len(r.names("d/tmp")), 0)
}

// noOwner is a file system that may have no room for files of owners.
type noOwner struct {
	vfs.FS
	full *atomic.Bool
}

func (f noOwner) Create(name string) (vfs.File, error) {
	if f.full.Load() && strings.HasPrefix(name, "lease/owner/") {
		return nil, syscall.ENOSPC
	}
	return f.FS.Create(name)
}

// P9: a process that opened the store while the disk was full shows that it lives as soon
// as it changes something and there is room.
func TestOwnerAfterAFullDisk(t *testing.T) {
	r := newRig(t)
	var full atomic.Bool
	full.Store(true)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return noOwner{f, &full} }))
	r.want("put", words(s.put("a", "v"), len(r.names("d/lease/owner"))), "ok 0")
	full.Store(false)
	r.want("put", words(s.put("b", "v"), len(r.names("d/lease/owner"))), "ok 1")
}
