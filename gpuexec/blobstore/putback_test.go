//go:build unix

package blobstore_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
)

func shortLease(c *blobstore.Config) { c.Lease = 200 * time.Millisecond }

// P8, P10: a late evictor that was passed over, and has moved an entry that it did not
// mean, puts that back: in another slot if a newcomer has its own by then.
func TestLateMoverAndANewcomer(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease)
	for _, key := range []string{"k", "j", "i"} {
		b.put(key, "old")
	}
	late := newStall("rename tmp/*")
	a := r.open("d", mib, shortLease, late.config)
	done := make(chan error)
	go func() { done <- a.Prune(background, 2*small) }()
	<-late.reached
	r.must(b.Prune(background, 0))
	r.want("put", b.put("k", "v"), "ok")
	another := r.id
	another.Build = "another"
	late.moved = func(from, to string) {
		if from == "" && strings.HasPrefix(to, backend+"/") { // it is about to put it back
			late.moved = nil
			r.must(b.For(another).Put(background, backend, "k", []byte("w"), 0))
		}
	}
	close(late.resume)
	r.must(<-done)
	r.want("what was acknowledged", b.get("k"), "v")
	r.want("entries, audit", words(a.usage().Entries, a.audit(), b.audit()), "2 ok ok")
}

// P8, P10: the same where somebody has removed the folder of the backend meanwhile.
func TestPutBackMakesTheBackendsFolder(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease)
	b.put("k", "old")
	b.put("j", "older")
	late := newStall("rename tmp/*")
	a := r.open("d", mib, shortLease, late.config)
	done := make(chan error)
	go func() { done <- a.Prune(background, small) }()
	<-late.reached
	r.must(b.Prune(background, 0))
	r.want("put", b.put("k", "v"), "ok")
	late.moved = func(from, to string) {
		if from == "" && strings.HasPrefix(to, backend) { // it is about to put it back
			late.moved = nil
			r.must(os.RemoveAll(r.path("d/" + backend)))
		}
	}
	close(late.resume)
	r.must(<-done)
	r.want("what was acknowledged", words(b.get("k"), r.names("d/tmp"), a.audit(), b.audit()), "v [] ok ok")
}

// P8, P10: the same where the folder cannot be moved, so that its files are.
func TestLateEmptier(t *testing.T) {
	for _, at := range []string{"rename tmp/*/kernel.bin", "rename tmp/*/key.bin"} {
		r := newRig(t)
		b := r.open("d", mib, shortLease)
		b.put("k", "old")
		b.put("j", "older")
		late := newStall(at)
		a := r.open("d", mib, shortLease, on(func(f vfs.FS) vfs.FS {
			late.FS = f
			return &overlay{late, func(string) bool { return true }, false}
		}))
		r.overtaken(late, a, b)
		r.want("left", r.names("d/tmp"), []string(nil))
	}
}

// overtaken has a stall while it evicts, and b evict everything and store k anew meanwhile:
// that stays when a goes on.
func (r *rig) overtaken(late *stall, a, b *shop) { r.stays(r.overtake(late, a, b), a, b) }

// overtake returns when a goes on; done is told when it has come to its end.
func (r *rig) overtake(late *stall, a, b *shop) (done <-chan error) {
	ended := make(chan error)
	go func() { ended <- a.Prune(background, small) }()
	<-late.reached
	r.must(b.Prune(background, 0))
	r.want("put", b.put("k", "v"), "ok")
	close(late.resume)
	return ended
}

// stays says that k is there, and counted, at the end of what overtake began.
func (r *rig) stays(done <-chan error, a, b *shop) {
	r.must(<-done)
	r.want("what was acknowledged", b.get("k"), "v")
	r.want("audit", words(a.audit(), b.audit()), "ok ok")
}

// brimful is a disk so full that tmp/ takes no file of an entry.
type brimful struct{ *stall }

func (f brimful) Rename(from, to string) error {
	if strings.HasPrefix(from, backend+"/") && !strings.HasPrefix(to, backend+"/") {
		return &vfs.Fault{Op: "rename", Name: to, Err: syscall.ENOSPC}
	}
	return f.stall.Rename(from, to)
}

func (f brimful) Remove(name string) error {
	f.pass("remove", name)
	return f.stall.Remove(name)
}

// rigid is a disk on which no file of an entry gets another name, and which stands still before
// it removes one.
type rigid struct{ *stall }

func (f rigid) Rename(from, to string) error {
	if strings.HasPrefix(from, backend+"/") {
		return &vfs.Fault{Op: "rename", Name: to, Err: syscall.ENOSPC}
	}
	return f.stall.Rename(from, to)
}

func (f rigid) Remove(name string) error {
	f.pass("remove", name)
	return f.stall.Remove(name)
}

func (f rigid) RemoveIf(name string, still func() bool) error {
	return f.stall.RemoveIf(name, func() bool {
		yes := still()
		f.pass("remove", name)
		return yes
	})
}

// P8, P10: the same on a full disk, where the files are removed in their place.
func TestLateRemover(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease)
	b.put("k", "old")
	b.put("j", "older")
	late := newStall("re*e " + backend + "/*/0/*") // its first rename or remove
	a := r.open("d", mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS = f; return brimful{late} }))
	r.overtaken(late, a, b)
	r.must(a.Prune(background, 0))
	r.want("in time: entries, folders", words(a.usage().Entries, r.names("d/"+backend)), "0 []")
}

// P8, P10: the same where no file gets another name at all, so that each is removed at once.
func TestLateRemoverOfTheRigid(t *testing.T) {
	for _, file := range []string{"kernel.bin", "key.bin"} {
		r := newRig(t)
		b := r.open("d", mib, shortLease)
		b.put("k", "old")
		b.put("j", "older")
		late := newStall("remove " + backend + "/*/0/" + file)
		a := r.open("d", mib, shortLease, on(func(f vfs.FS) vfs.FS { late.FS = f; return rigid{late} }))
		r.overtaken(late, a, b)
		r.must(a.Prune(background, 0))
		r.want("in time: entries, folders", words(a.usage().Entries, r.names("d/"+backend)), "0 []")
	}
}

// P10: what a late evictor has moved and put back is as durable as it was before: the folder of
// an entry, or where that cannot be moved one file after the other, or where those cannot either,
// the file that it was about to remove.
func TestPowerLossAfterALateMover(t *testing.T) {
	for how, c := range map[string]struct {
		at   string
		wrap func(late *stall) vfs.FS
	}{
		"moves the folder": {"rename tmp/*", func(late *stall) vfs.FS { return late }},
		"moves the files":  {"rename tmp/*/kernel.bin", func(late *stall) vfs.FS { return &overlay{late, func(string) bool { return true }, false} }},
		"removes them":     {"rename " + backend + "/7/0/*", func(late *stall) vfs.FS { return brimful{late} }},
		"makes its bucket": {"rename tmp/*", func(late *stall) vfs.FS {
			late.moved = func(from, to string) {
				if from == "" && to == backend+"/7" {
					_ = late.FS.Remove(to) // as others do that have found it empty
				}
			}
			return late
		}},
	} {
		t.Run(how, func(t *testing.T) {
			disk, late := crashfs.New(nil), newStall(c.at)
			late.FS = disk
			open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
				cfg := powerConfig(f, level)
				cfg.Lease, cfg.Hash = 200*time.Millisecond, func(string) uint64 { return 7 }
				s, err := blobstore.Open(background, cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close(background) })
				return s
			}
			b := open(disk, blobstore.Full)
			for _, key := range []string{"old", "older"} {
				if err := b.Put(background, backend, key, []byte("v"), 0); err != nil {
					t.Fatal(err)
				}
			}
			a := open(c.wrap(late), blobstore.None)
			done := make(chan error)
			go func() { done <- a.Prune(background, small) }()
			<-late.reached
			if err := errors.Join(b.Prune(background, 0), b.Put(background, backend, "new", []byte("v"), 0)); err != nil {
				t.Fatal(err)
			}
			close(late.resume)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			lost := 0
			for seed := range 50 {
				if _, miss, err := open(disk.Clone(0.5, uint64(seed), nil), blobstore.Full).Get(background, backend, "new"); err != nil || !miss.None() {
					lost++
				}
			}
			if lost > 0 {
				t.Errorf("what was acknowledged is gone after %d of 50 losses of power", lost)
			}
		})
	}
}

// P8, P10: who stands still before it moves a file away that has the name of a folder, and was
// passed over, leaves the folder that others have made there since, with its entries.
func TestLateMakerOfAFolder(t *testing.T) {
	for _, name := range []string{backend, backend + "/7"} {
		for _, shared := range []bool{false, true} {
			r := newRig(t)
			late := newStall("re*e quarantine/*")
			alike := func(c *blobstore.Config) { c.Shared = shared }
			a := r.open("d", mib, hash(7), shortLease, alike, late.config)
			b := r.open("d", mib, hash(7), shortLease, alike)
			r.write(r.path("d/"+name), []byte("strange"))
			done := make(chan string)
			go func() { done <- a.put("late", "v") }()
			<-late.reached
			r.want("put", b.put("new", "v"), "ok")
			close(late.resume)
			r.want("late put", <-done, "ok")
			r.want("what was acknowledged", words(a.get("new"), b.get("new"), b.get("late")), "v v v")
			r.want("audit", words(a.audit(), b.audit()), "ok ok")
		}
	}
}

// P8, P10: who stands still, on a file system without locks, between its choice of an entry and
// the move, takes no newcomer of that place: an evictor, and a repairer.
func TestLateMoverWithoutLocks(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	b := r.open("d", mib, hash(7), shared)
	b.put("k", "old")
	b.put("j", "older")
	late := newStall("rename tmp/*")
	r.overtaken(late, r.open("d", mib, hash(7), shared, late.config), b)

	r.flip(b.kernel("k"), -1)
	late = newStall("rename quarantine/*")
	a := r.open("d", mib, hash(7), shared, late.config)
	done := make(chan error)
	go func() { _, err := a.Verify(background, true); done <- err }()
	<-late.reached
	r.must(b.Prune(background, 0))
	r.want("put", b.put("new", "v"), "ok")
	close(late.resume)
	r.must(<-done)
	r.want("what was acknowledged", b.get("new"), "v")
	r.want("audit", words(a.audit(), b.audit()), "ok ok")
}

// P8, P10: the same where the folder cannot be moved: its files are moved, or renamed in their place,
// or removed there, one after the other.
func TestLateEmptierWithoutLocks(t *testing.T) {
	overlaid := func(late *stall) vfs.FS { return &overlay{late, func(string) bool { return true }, false} }
	full := func(late *stall) vfs.FS { return brimful{late} }
	for at, wrap := range map[string]func(*stall) vfs.FS{
		"rename tmp/*/kernel.bin":            overlaid,
		"rename " + backend + "/*/?/gone*":   overlaid,
		"rename " + backend + "/*/0/gone*":   full,
		"remove " + backend + "/*/0/kernel*": func(late *stall) vfs.FS { return rigid{late} },
		"remove " + backend + "/*/0/key*":    func(late *stall) vfs.FS { return rigid{late} },
	} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			shared := func(c *blobstore.Config) { c.Shared = true }
			b := r.open("d", mib, shared)
			b.put("k", "old")
			b.put("j", "older")
			late := newStall(at)
			a := r.open("d", mib, shared, on(func(f vfs.FS) vfs.FS { late.FS = f; return wrap(late) }))
			r.overtaken(late, a, b)
			r.must(a.Prune(background, 0))
			r.want("in time: entries, folders, tmp/", words(a.usage().Entries, r.names("d/"+backend), r.names("d/tmp")), "0 [] []")
		})
	}
}

// P8, P10: who has taken a file that it did not mean, and stands still again before it gives that back,
// finds the rest of the entry where it was: nobody sets it aside meanwhile.
func TestLateEmptierStandsStillTwice(t *testing.T) {
	overlaid := func(late *stall) vfs.FS { return &overlay{late, func(string) bool { return true }, false} }
	full := func(late *stall) vfs.FS { return brimful{late} }
	for _, c := range []struct {
		at     string
		wrap   func(*stall) vfs.FS
		shared bool
	}{
		{"rename tmp/*/kernel.bin", overlaid, false}, {"rename tmp/*/key.bin", overlaid, false}, {"rename tmp/*/kernel.bin", overlaid, true},
		{"rename " + backend + "/*/0/gone*", full, true}, {"rename " + backend + "/*/0/gone*", overlaid, true},
	} {
		t.Run(words(c.at, c.shared), func(t *testing.T) {
			r := newRig(t)
			shared := func(cfg *blobstore.Config) { cfg.Shared = c.shared }
			b := r.open("d", mib, shortLease, shared)
			b.put("k", "old")
			b.put("j", "older")
			late, again := newStall(c.at), newStall("after "+c.at)
			a := r.open("d", mib, shortLease, shared, on(func(f vfs.FS) vfs.FS { late.FS, again.FS = f, late; return c.wrap(again) }))
			done := r.overtake(late, a, b)
			<-again.reached
			r.want("get", strings.HasPrefix(b.get("k"), "miss reason=truncated"), true)
			close(again.resume)
			r.stays(done, a, b)
		})
	}
}
