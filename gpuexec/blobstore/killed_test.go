//go:build unix

package blobstore_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// late starts a process that evicts all, in the way that at says, and stands still before it takes
// something away: see latecomer. With a key it looks that up first. It gives what lets it go on, until it is killed.
func (r *rig) late(at string, key ...string) (goOn func()) {
	r.t.Helper()
	gate := r.path("gate")
	r.must(os.RemoveAll(gate))
	r.must(os.Mkdir(gate, 0o700))
	cmd := r.child(append([]string{"late", r.path("d"), words(mib), gate, at}, key...)...)
	r.eventually("it is there", func() bool { return r.exists(gate + "/reached") })
	return func() {
		r.write(gate+"/go", nil)
		_ = cmd.Wait() // it is killed
	}
}

// P8, P10: an evictor that was passed over, and is killed when it has taken what it did not mean,
// takes nothing: the next opening, or the next look at the entry, puts it back.
func TestKilledLateMover(t *testing.T) {
	for _, at := range []string{"*+*", "kernel.bin", "key.bin", "gone*"} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			b := r.open("d", mib, shortLease) // the child's is a second
			b.put("k", "old")
			goOn := r.late(at)
			r.must(b.Prune(background, 0))
			r.want("put", b.put("k", "v"), "ok")
			goOn()
			if at == "gone*" { // the file has another name in its folder: who looks at the entry sees that
				r.want("get", b.get("k"), "miss reason=truncated field=kernel.bin")
			}
			c := r.open("d", mib, r.freely(new(atomic.Int64)))
			r.want("what was acknowledged", words(c.get("k"), b.get("k"), b.put("k", "w"), c.get("k")), "v v ok v")
			r.want("entries, audit", words(c.usage().Entries, c.usage().Quarantined, b.audit(), c.audit()), "1 0 ok ok")
			r.want("left", words(len(r.names("d/tmp")), len(r.names("d/"+backend+"/"+b.Bucket("k")+"/0"))), "0 2")
		})
	}
}

// P8, P10: neither does one that repairs: what it sets aside is another entry by then.
func TestKilledLateRepairer(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease)
	b.put("k", "old")
	r.flip(b.kernel("k"), -1)
	goOn := r.late("*+*", "k")
	r.must(b.Prune(background, 0))
	r.want("put", b.put("k", "v"), "ok")
	goOn()
	c := r.open("d", mib, r.freely(new(atomic.Int64)))
	r.want("what was acknowledged", words(c.get("k"), b.get("k")), "v v")
	r.want("entries, audit", words(c.usage().Entries, c.usage().Quarantined, b.audit(), c.audit()), "1 0 ok ok")
}

// P9: what an evictor meant to take when it was killed is freed by the next opening, however it
// took it: nothing stays that no account has.
func TestKilledMover(t *testing.T) {
	for _, at := range []string{"*+*", "kernel.bin", "key.bin", "gone*"} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			b := r.open("d", mib)
			b.put("k", "v", putOptions{bytes: 100 * kib})
			b.shut()
			r.late(at)()
			c := r.open("d", mib)
			r.want("left", words(r.bytes("d/"+backend) < kib, c.audit(), len(r.names("d/tmp"))), "true ok 0")
			r.must(c.Prune(background, 0))
			r.want("in the end", words(c.usage().Entries, r.names("d/"+backend)), "0 []")
		})
	}
}

// bytes are those of all files below a folder.
func (r *rig) bytes(folder string) (sum int64) {
	r.must(filepath.Walk(r.path(folder), func(_ string, info fs.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return err
	}))
	return sum
}

// P9: a bucket, and a slot, that a killed process has left empty are gone when the directory was
// listed.
func TestEmptyFoldersGo(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := newRig(t)
		s := r.open("d", mib)
		s.put("k", "v")
		s.shut()
		for _, name := range []string{"7", "8/0", "9/0/mine"} {
			r.must(os.MkdirAll(r.path("d/"+backend+"/"+name), 0o700))
		}
		r.must(os.Remove(r.path("d/lease/index")))
		s.cfg.Shared = shared
		s = &shop{r: r, cfg: s.cfg}
		s.reopen()
		r.want("buckets", r.names("d/"+backend), slices.Sorted(slices.Values([]string{s.Bucket("k"), "9"})))
		r.want("get, audit", words(s.get("k"), s.audit()), "v ok")
		s.shut()
	}
}

// lateForgets has a process that was passed over take a file or all of what others have stored
// since, and be killed then.
func (r *rig) lateForgets(at string, b *shop, bytes int) {
	r.t.Helper()
	b.put("k", "old")
	goOn := r.late(at)
	r.must(b.Prune(background, 0))
	r.want("put", b.put("j", "w"), "ok")
	r.want("put", b.put("k", "v", putOptions{bytes: bytes}), "ok")
	goOn()
}

// P2: what is put back is counted once, also where the index that was saved has it still, and
// nothing lists the directory.
func TestPutBackIsCountedOnce(t *testing.T) {
	for _, at := range []string{"*+*", "kernel.bin", "gone*"} {
		r := newRig(t)
		b := r.open("d", mib, shortLease)
		r.lateForgets(at, b, 0)
		b.shut()
		c := r.open("d", mib)
		c.get("k")
		c.shut()
		r.want(at, strings.TrimSpace(string(r.read(r.path("d/size.txt")))), r.bytes("d/"+backend))
	}
}

// P8, P10: who finds an entry without a file that a killed process has taken, before a sweep does,
// puts it back: neither is the entry lost nor an older one served that was evicted.
func TestLookBeforeTheSweep(t *testing.T) {
	for _, at := range []string{"kernel.bin", "key.bin"} {
		r := newRig(t)
		b := r.open("d", mib, shortLease)
		r.lateForgets(at, b, 0)
		b.get("k")
		c := r.open("d", mib, r.freely(new(atomic.Int64)))
		r.want(at, words(b.get("k"), c.get("k"), b.get("j"), len(r.names("d/tmp")), len(r.names("d/quarantine"))), "v v w 0 0")
		r.want("audit", words(b.audit(), c.audit()), "ok ok")
	}
}

// P7: what would take more than the capacity is not put back, so that nothing is evicted for it: its
// account goes, and what is left of it, before others do.
func TestTooLargeIsNotPutBack(t *testing.T) {
	for _, at := range []string{"*+*", "kernel.bin"} {
		r := newRig(t)
		b := r.open("d", mib, shortLease)
		r.lateForgets(at, b, 300*kib)
		b.shut()
		c := r.open("d", 100*kib)
		r.want(at, words(c.get("j"), c.get("k"), c.usage().Entries, len(r.names("d/tmp")), c.audit()), "w miss reason=absent 1 0 ok")
	}
}

// P2: what is stored in a place that a process has taken from, which was killed then, is counted for
// what it has, also where the index is not read so far.
func TestStoredWhereAKilledProcessTookFrom(t *testing.T) {
	for _, at := range []string{"*+*", "kernel.bin"} {
		r := newRig(t)
		b := r.open("d", mib, shortLease)
		b.put("k", "old")
		goOn := r.late(at)
		r.must(b.Prune(background, 0))
		r.want("put", b.put("k", "v", putOptions{bytes: 300 * kib}), "ok")
		b.reopen()
		goOn()
		r.want("put", b.put("k", "w"), "ok")
		r.want(at, strings.TrimSpace(string(r.read(r.path("d/size.txt")))), r.bytes("d/"+backend))
	}
}

// P8, P10: what a late evictor has taken goes back also where somebody has removed the folder of the
// lock meanwhile, so that its numbers began again.
func TestKilledLateMoverOfAnotherLock(t *testing.T) {
	for _, at := range []string{"*+*", "kernel.bin", "gone*"} {
		r := newRig(t)
		b := r.open("d", mib)
		b.put("k", "old")
		b.shut()
		goOn := r.late(at)
		r.must(os.RemoveAll(r.path("d/lease/directory")))
		b.reopen()
		r.must(b.Prune(background, 0))
		r.want("put", b.put("k", "v"), "ok")
		goOn()
		c := r.open("d", mib)
		c.get("k")
		r.want(at, words(c.get("k"), b.get("k"), c.usage().Entries, c.audit(), len(r.names("d/tmp"))), "v v 1 ok 0")
	}
}

// P8, P10: on a file system without locks, who gives way to another that has stored the same key, stands
// still before it does, and is killed then, takes nothing that others have stored in that place since.
func TestKilledWhileItGaveWay(t *testing.T) {
	r := newRig(t)
	alike := func(c *blobstore.Config) { c.Shared = true; c.Hash = func(string) uint64 { return 7 } }
	publishes, moves, moved := newStall("rename "+backend+"/7/0"), newStall("rename tmp/*"), newStall("after rename tmp/*")
	a := r.open("d", mib, alike, on(func(f vfs.FS) vfs.FS { publishes.FS, moves.FS, moved.FS = f, publishes, moves; return moved }))
	b := r.open("d", mib, alike)
	done := make(chan string)
	go func() { done <- a.put("k", "late") }()
	<-publishes.reached
	r.want("put", b.put("k", "first"), "ok")
	close(publishes.resume)
	<-moves.reached
	r.must(b.Prune(background, 0))
	r.want("put", words(b.put("j", "v"), b.put("new", "v")), "ok ok")
	close(moves.resume)
	<-moved.reached
	name := r.names("d/tmp")[0]
	left := r.path("d/tmp/" + strings.Repeat("0", 24) + name[24:]) // as of a process that is dead
	r.must(os.Rename(r.path("d/tmp/"+name), left))
	long := time.Now().Add(-2 * time.Hour)
	r.must(os.Chtimes(left, long, long))
	c := r.open("d", mib, alike)
	r.want("what was acknowledged", words(c.get("j"), c.get("new"), len(r.names("d/tmp"))), "v v 0")
	close(moved.resume)
	<-done
	r.want("audit", words(c.get("new"), b.audit()), "v ok")
}

// elderly is a file system on which what is about to be removed has been so for hours.
type elderly struct{ vfs.FS }

func (e elderly) Lstat(name string) (vfs.Info, error) {
	info, err := e.FS.Lstat(name)
	if strings.Contains(name, "/gone") {
		info.Changed = info.Changed.Add(-2 * time.Hour)
	}
	return info, err
}

// P8, P9, P10: neither does one without locks, where it was killed when it had given a file of a
// newcomer the name of what goes; what it meant is freed.
func TestKilledRemoverWithoutLocks(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	a := r.open("d", mib, shared)
	for key, meant := range map[string]bool{"k": false, "j": true} {
		r.want("put", a.put(key, "v"), "ok")
		info, err := vfs.Dir(r.path("d")).Lstat(backend + "/" + a.Bucket(key) + "/0/kernel.bin")
		r.must(err)
		mark := fmt.Sprintf("%d.%d", info.Inode, info.ModTime.UnixNano())
		if !meant {
			mark = "1" + mark
		}
		r.must(os.Rename(a.kernel(key), a.place(key, "gone"+mark)))
	}
	c := r.open("d", mib, shared, on(func(f vfs.FS) vfs.FS { return elderly{f} }))
	r.want("put", c.put("i", "v"), "ok") // the change after the one that lists
	r.want("what was acknowledged", words(c.get("k"), c.get("j")), "v miss reason=truncated field=kernel.bin")
	r.want("audit", words(c.audit(), a.audit()), "ok ok")
}

// P8, P10: neither does one that moves files on their own, killed when it had moved the first one, which
// it meant, and then the key of a newcomer.
func TestKilledEmptierWithoutLocks(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	b := r.open("d", mib, shared)
	b.put("k", "old")
	late := newStall("")
	a := r.open("d", mib, shared, on(func(f vfs.FS) vfs.FS {
		late.FS = f
		return &overlay{late, func(string) bool { return true }, false}
	}))
	late.moved = func(from, to string) {
		if strings.HasSuffix(from, "/key.bin") {
			late.moved = nil
			r.must(b.Prune(background, 0))
			r.want("put", b.put("k", "v"), "ok")
			r.must(late.FS.Rename(from, to))
			close(late.reached)
			<-late.resume
		}
	}
	done := make(chan error)
	go func() { done <- a.Prune(background, 0) }()
	<-late.reached
	long := time.Now().Add(-2 * time.Hour)
	for _, name := range r.names("d/tmp") { // as of a process that is dead
		left := r.path("d/tmp/" + strings.Repeat("0", 24) + name[24:])
		r.must(os.Rename(r.path("d/tmp/"+name), left))
		r.must(os.Chtimes(left, long, long))
	}
	c := r.open("d", mib, shared, on(func(f vfs.FS) vfs.FS { return elderly{f} }))
	r.want("put", c.put("i", "v"), "ok") // the change after the one that lists
	r.want("what was acknowledged", words(c.get("k"), len(r.names("d/tmp")), c.audit()), "v 0 ok")
	close(late.resume)
	<-done
}

// P7, P9: what a late evictor has given another name on a full disk, and was killed then, goes with the
// entry where another process evicts that file by file.
func TestEvictedAfterAKilledLateRemover(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease, on(func(f vfs.FS) vfs.FS {
		never := newStall("")
		never.FS = f
		return brimful{never}
	}))
	b.put("k", "old")
	goOn := r.late("gone*")
	r.must(b.Prune(background, 0))
	r.want("put", b.put("k", "v", putOptions{bytes: 100 * kib}), "ok")
	goOn()
	r.must(b.Prune(background, 0))
	r.want("left", words(r.names("d/"+backend), b.audit()), "[] ok")
}

// P11: of several processes that find at once that one has ended which was passed over, the first has all
// list the directory, and the others do not again: else each listing is in vain until all have.
func TestOneRecountServesAll(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib)
	b.put("k", "v")
	lists := newStall("lstat " + backend + "/" + b.Bucket("k") + "/0/kernel.bin")
	a := r.open("d", mib, lists.config)
	r.write(r.path("d/lease/directory/0"), []byte("ended\n"))
	r.write(r.path("d/lease/directory/1"), nil)
	r.clock(2 * time.Hour)
	done := make(chan string)
	go func() { done <- a.put("i", "v") }() // and sweeps
	<-lists.reached
	r.want("put", b.put("j", "v"), "ok")
	began, err := os.Stat(r.path("d/lease/journal"))
	r.must(err)
	close(lists.resume)
	r.want("put", <-done, "ok")
	now, err := os.Stat(r.path("d/lease/journal"))
	r.must(err)
	r.want("the journal goes on", os.SameFile(began, now), true)
	r.want("entries, audit", words(a.usage().Entries, b.usage().Entries, a.audit(), b.audit()), "3 3 ok ok")
}

// P2, P7: what a process has published that was passed over, and was killed before it saw that, is in
// the accounts of all from the next opening on.
func TestKilledLatePublisher(t *testing.T) {
	r := newRig(t)
	apart := func(c *blobstore.Config) {
		c.Hash = func(key string) uint64 { return map[string]uint64{"j": 1}[key] + 7 }
	}
	b := r.open("d", mib, apart, shortLease)
	b.put("k", "v")
	goOn := r.late("published")
	r.want("put", b.put("j", "v"), "ok") // which passes it over
	goOn()
	c := r.open("d", mib, apart)
	r.want("entries, audit", words(c.usage().Entries, b.usage().Entries, c.audit(), b.audit()), "3 3 ok ok")
}

// P2: the same where the bucket was removed meanwhile, by who has evicted the last that was left in it.
func TestStoredWhereAKilledProcessTookFromAnEmptiedBucket(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease, hash(7))
	b.put("x", "old")
	goOn := r.late("*+*")
	r.must(b.Prune(background, 0))
	b.put("y", "v")
	b.put("i", "v")
	r.must(b.Prune(background, small))
	r.want("put, slots", words(b.put("k", "v", putOptions{bytes: 300 * kib}), r.names("d/"+backend+"/7")), "ok [0 1]")
	e := r.open("d", mib, hash(7))
	b.reopen()
	goOn()
	r.must(e.Prune(background, 312*kib))
	r.want("buckets", r.names("d/"+backend), "[]")
	r.want("put", b.put("k", "w"), "ok")
	r.want("bytes", strings.TrimSpace(string(r.read(r.path("d/size.txt")))), r.bytes("d/"+backend))
}

// P9: what an evictor has moved that was killed then is freed by the next store of a process that lives,
// before somebody is passed over, after which it would count as not meant.
func TestKilledMoverIsSeenToByTheNextStore(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib, shortLease)
	b.put("k", "v")
	r.late("*+*")()
	r.want("put", b.put("j", "v"), "ok")
	r.want("left in tmp/", r.names("d/tmp"), "[]")
	r.want("gone, audit", words(b.get("k"), b.audit()), "miss reason=absent ok")
}
