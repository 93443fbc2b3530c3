//go:build unix

package blobstore_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P9: what a living process writes stays, however old the clock makes it look, and its
// uses stay its own; what a dead one left goes at the next open, and so does the file
// that tells of it. What has no owner goes by age.
func TestSweepByOwner(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	alive, dead := strings.Repeat("a", 24), strings.Repeat("d", 24)
	files := []string{"tmp/" + alive + "00000002", "uses/" + alive + "00000001", "lease/owner/" + alive + "00000001", "lease/owner/" + alive + "00000003",
		"tmp/" + dead + "00000002", "uses/" + dead + "00000001", "lease/owner/" + dead + "00000001", "tmp/nobodys", "uses/nobodys"}
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
	young := []string{files[0], files[1], files[2], "tmp/nobodys", "uses/nobodys"}
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
	r.want("trash", words(len(r.names("d/tmp")), len(r.names("d/lease/owner"))), "4 2")
	r.want("entries", words(s.usage().Entries, s.audit()), "0 ok")
	s.reopen()
	r.want("left", words(len(r.names("d/tmp")), len(r.names("d/lease/owner"))), "0 1")
}
