//go:build unix

package blobstore_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// P7: a journal that has become too long is followed by another one, and nobody lists
// the directory for that: an entry that was put there by hand is not seen.
func TestJournalGoesOn(t *testing.T) {
	r := newRig(t)
	a, b := r.open("d", mib), r.open("d", mib)
	journal := r.path("d/lease/journal")
	b.fill(1, 2, 10*kib)
	r.want("entries", words(a.usage().Entries, b.usage().Entries), "2 2")
	r.write(r.path("d/test/7/0/key.bin"), []byte("by hand"))
	change := "b\n" + blobstore.JournalEnd
	r.must(appendTo(journal, strings.Repeat(change, mib/len(change))))
	b.fill(3, 3, 10*kib)
	r.want("short again", len(r.read(journal)) < 200, true)
	r.must(os.Remove(r.path("d/lease/index"))) // a goes on without it
	b.fill(4, 4, 10*kib)
	r.want("entries", words(a.usage().Entries, b.usage().Entries), "4 4")
	a.fill(5, 5, 10*kib)
	r.want("entries", words(a.usage().Entries, b.usage().Entries), "5 5")
	for i := 6; i < 8; i++ { // a misses the one in between
		r.must(appendTo(journal, strings.Repeat(change, mib/len(change))))
		b.fill(i, i, 10*kib)
	}
	r.want("takes the index that b has written", words(a.usage().Entries, b.usage().Entries), "7 7")
	for i := 8; i < 10; i++ {
		r.must(appendTo(journal, strings.Repeat(change, mib/len(change))))
		b.fill(i, i, 10*kib)
	}
	r.must(os.Remove(r.path("d/lease/index")))
	r.want("lists", words(a.usage().Entries, b.usage().Entries), "10 9")
}

// P7: who closes and has not followed to the journal of now leaves the index of that alone:
// with its own the next Open would list the directory.
func TestIndexOfAnOldJournalIsNotSaved(t *testing.T) {
	r := newRig(t)
	a, b := r.open("d", mib), r.open("d", mib)
	a.fill(1, 9, 1) // much, for so small an index
	change := "b\n" + blobstore.JournalEnd
	r.must(appendTo(r.path("d/lease/journal"), strings.Repeat(change, mib/len(change))))
	b.fill(10, 10, 1) // begins another journal
	index := r.read(r.path("d/lease/index"))
	a.shut()
	r.want("the same index", bytes.Equal(r.read(r.path("d/lease/index")), index), true)
}

// P7: nor does one that has not followed to the place of an index that others have written
// since: the next Open would read up to 2 MiB more.
func TestIndexOfALaterPlaceStays(t *testing.T) {
	r := newRig(t)
	a, b := r.open("d", mib), r.open("d", mib)
	a.fill(1, 9, 1) // much, for so small an index
	b.fill(10, 30, 1)
	b.SaveIndex()
	index := r.read(r.path("d/lease/index"))
	a.shut()
	r.want("the same index", bytes.Equal(r.read(r.path("d/lease/index")), index), true)
	for i, other := range []string{"?", strings.Replace(string(index), "index ", "index x", 1)} { // damaged, of another boot
		first := 31 + 20*i
		a = r.open("d", mib)
		a.fill(first, first+4, 1)
		a.SaveIndex()
		r.write(r.path("d/lease/index"), []byte(other))
		a.fill(first+5, first+19, 1)
		a.shut()
		now := string(r.read(r.path("d/lease/index")))
		r.want(words("replaced", i), strings.HasPrefix(now, "index ") && !strings.HasPrefix(now, "index x"), true)
	}
}

// lockWatch counts what is done under the directory lock.
type lockWatch struct {
	vfs.FS
	held               *atomic.Bool
	most, moves, large *atomic.Int64 // large: files that may be so were opened
}

type watchedLock struct {
	vfs.File
	w lockWatch
}

func (l watchedLock) TryLock() (bool, error) {
	ok, err := l.File.TryLock()
	l.w.held.Store(ok)
	l.w.moves.Store(0)
	return ok, err
}

func (l watchedLock) Lock() error {
	err := l.File.Lock()
	l.w.held.Store(err == nil)
	l.w.moves.Store(0)
	return err
}

func (l watchedLock) Close() error {
	l.w.held.Store(false)
	return l.File.Close()
}

func (w lockWatch) did() {
	if w.held.Load() {
		w.most.Store(max(w.most.Load(), w.moves.Add(1)))
	}
}

func (w lockWatch) Update(name string) (vfs.File, error) {
	f, err := w.FS.Update(name)
	if err == nil && strings.HasPrefix(name, "lease/directory/") {
		return watchedLock{f, w}, nil
	}
	return f, err
}

func (w lockWatch) Rename(from, to string) error {
	w.did()
	return w.FS.Rename(from, to)
}

func (w lockWatch) Open(name string) (vfs.File, error) {
	if w.did(); w.held.Load() && (strings.HasSuffix(name, "/kernel.bin") || strings.HasPrefix(name, "uses/")) {
		w.large.Add(1)
	}
	return w.FS.Open(name)
}

func (w lockWatch) ReadDir(name string) ([]vfs.Info, error) {
	w.did()
	return w.FS.ReadDir(name)
}

// P7: the lock of the directory is held for a bounded number of operations, however
// many entries there are to list, to choose from, to evict or to repair.
func TestLockIsHeldForLittle(t *testing.T) {
	r := newRig(t)
	w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
	s := r.open("d", 8*mib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS { w.FS = vfs.Dir(root); return w })
	})
	const entries, most = 500, 130
	for i := range entries {
		r.want("put", s.put(fmt.Sprintf("k%03d", i), "v"), "ok")
	}
	step := func(what string) {
		t.Helper()
		if n := w.most.Swap(0); n == 0 || n > most {
			t.Errorf("%s: %d operations under the lock", what, n)
		}
	}
	step("fill")
	s.cfg.Capacity = limit.Of(450 * small)
	s.reopen()
	r.want("entries", s.usage().Entries, 450)
	step("open")
	r.want("put", s.put("knew", "v"), "ok")
	step("put")
	r.must(s.Prune(background, 200*small))
	r.want("entries", s.usage().Entries, 200)
	step("prune")
	for i := 350; i < entries; i++ {
		r.flip(s.kernel(fmt.Sprintf("k%03d", i)), -1)
	}
	bad, err := s.Verify(background, true)
	r.must(err)
	r.want("repaired", words(len(bad), s.verify(), s.audit()), "150 0 ok")
	r.want("kept", s.usage().Quarantined, 32)
	step("repair")
}

// slowRename is a file system whose renames from the folders of a backend take long.
type slowRename struct{ vfs.FS }

func (s slowRename) Rename(from, to string) error {
	if strings.HasPrefix(from, backend+"/") {
		time.Sleep(10 * time.Millisecond) // above what the lock is held for
	}
	return s.FS.Rename(from, to)
}

// P7: on a slow disk others have the lock after each entry that is evicted or repaired.
func TestLockIsHeldForLittleOnASlowDisk(t *testing.T) {
	r := newRig(t)
	w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { w.FS = slowRename{f}; return w }))
	for i := range 30 {
		r.want("put", s.put(fmt.Sprint("k", i), "v"), "ok")
	}
	w.most.Store(0)
	r.must(s.Prune(background, 20*small))
	r.want("pruned", words(s.usage().Entries, w.most.Swap(0) < 8), "20 true")
	for i := 10; i < 30; i++ {
		r.flip(s.kernel(fmt.Sprint("k", i)), -1)
	}
	bad, err := s.Verify(background, true)
	r.want("repaired", words(len(bad), err, w.most.Load() < 8), "20 <nil> true")
}

// P7: no payload and no file of uses is read under the lock: either may be large.
func TestNothingLargeIsReadUnderTheLock(t *testing.T) {
	r := newRig(t)
	w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
	watched := func(c *blobstore.Config) {
		c.Policy = blobstore.LRU
		blobstore.SetFS(c, func(root string) vfs.FS { w.FS = vfs.Dir(root); return w })
	}
	others := r.open("d", mib, policy(blobstore.LRU))
	others.put("k", "v")
	others.put("used", "v")
	r.want("get", others.get("used"), "v")
	r.id.Build = "another"
	s := r.open("d", mib, watched)
	r.want("put beside another identity", words(s.put("k", "w"), s.get("k")), "ok w")
	r.flip(s.place("k")[:len(s.place("k"))-1]+"1/kernel.bin", -1)
	r.want("put in place of a damaged one", words(s.put("k", "x"), s.get("k")), "ok x")
	r.flip(s.place("k")[:len(s.place("k"))-1]+"1/kernel.bin", -1)
	r.want("a damaged one", words(s.get("k"), s.get("k")), "miss reason=checksum miss reason=outdated field=build")
	r.flip(s.kernel("k"), -1)
	bad, err := s.Verify(background, true)
	r.want("repair", words(len(bad), err, s.verify()), "1 <nil> 0")
	others.shut()
	s.reopen()
	r.clock(2 * time.Minute)
	r.want("uses", s.usage().Entries, 1)
	r.clock(2 * time.Minute)
	r.want("put", s.put("more", "v"), "ok")
	r.must(s.Prune(background, small))
	r.want("pruned", words(s.usage().Entries, s.audit()), "1 ok")
	r.want("large files that were opened", w.large.Load(), 0)
}

// P2, P7: the capacity is compared with each file rounded up to 4 KiB, by those too who
// learn of an entry from the journal or from a listing; size.txt is of the contents.
func TestCapacityCountsBlocks(t *testing.T) {
	r := newRig(t)
	s, other := r.open("d", 4*small), r.open("d", 4*small)
	for i := range 6 {
		r.want("put", s.put(fmt.Sprint("k", i), "v"), "ok")
		r.clock(time.Second)
	}
	r.want("put", other.put("k6", "v", putOptions{bytes: 4*kib - 100}), "ok") // its kernel.bin takes two blocks
	for _, o := range []*shop{s, other, r.open("d", 4*small)} {
		u := o.usage()
		r.want("usage", words(u.Entries, u.DiskBytes, u.Bytes < u.DiskBytes, o.audit()), words(3, 28*kib, true, "ok"))
	}
	r.want("largest", words(s.put("large", "v", putOptions{bytes: 24 * kib}), s.usage().Entries), "ok 1")
	r.want("too large", words(s.put("larger", "v", putOptions{bytes: 28 * kib}), s.usage().Entries), "refused reason=too_large 1")
}

// P4: what was set aside takes a tenth of the capacity at most.
func TestQuarantineIsATenth(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 55*small)
	for i := range 12 {
		key := fmt.Sprint("k", i)
		s.put(key, "v")
		r.flip(s.kernel(key), -1)
		r.want("get", s.get(key), "miss reason=checksum")
	}
	r.want("kept", s.usage().Quarantined, 5)
	for i, name := range r.names("d/quarantine") { // the newest
		r.want(name, strings.Contains(name, s.Bucket(fmt.Sprint("k", 7+i))), true)
	}
}

// freely is a store that must sync nothing while it has the lock of the directory. It counts syncs.
func (r *rig) freely(syncs *atomic.Int64) option {
	return on(func(f vfs.FS) vfs.FS {
		w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
		w.FS = vfs.Watch(f, func(op string) error {
			if strings.HasPrefix(op, "sync") {
				syncs.Add(1)
				if w.held.Load() {
					r.t.Error("a sync under the lock\n", string(debug.Stack()))
				}
			}
			return nil
		})
		return w
	})
}

// P5, P10: a sync takes as long as the disk likes, so nothing is synced under the lock.
func TestNothingIsSyncedUnderTheLock(t *testing.T) {
	r := newRig(t)
	var syncs atomic.Int64
	s := r.open("d", 8*small, sync_(blobstore.Full), r.freely(&syncs))
	s.fill(0, 15, 1)
	s.cfg.Capacity = limit.Of(6 * small)
	s.reopen()
	r.must(s.Refuse(background, s.blob("k15")))
	r.flip(s.kernel("k14"), -1)
	_, err := s.Verify(background, true)
	r.must(err)
	r.must(s.Prune(background, 2*small))
	s.shut()
	r.want("syncs", syncs.Load() > 16, true)
}

// slowly is a disk that takes its time for a listing under the lock, and counts new files.
type slowly struct {
	lockWatch
	made *atomic.Int64
}

func (f slowly) ReadDir(name string) ([]vfs.Info, error) {
	if f.held.Load() {
		time.Sleep(2 * time.Millisecond)
	}
	return f.lockWatch.ReadDir(name)
}

func (f slowly) Create(name string) (vfs.File, error) {
	f.made.Add(1)
	return f.lockWatch.Create(name)
}

// P5, P9: what killed processes have left in places is seen to in turns, however long the disk
// takes for each, and the time of files is asked for once in a turn.
func TestTidiesInTurns(t *testing.T) {
	const left = 60
	for _, shared := range []bool{false, true} {
		r := newRig(t)
		s := r.open("d", mib)
		s.put("k", "v")
		s.shut()
		for i := range left {
			r.write(r.path(fmt.Sprintf("d/%s/%d/0/gone0", backend, 10+i)), nil)
		}
		r.must(os.Remove(r.path("d/lease/index")))
		w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
		var made atomic.Int64
		s = r.open("d", mib, func(c *blobstore.Config) { c.Shared = shared }, on(func(f vfs.FS) vfs.FS { w.FS = f; return slowly{w, &made} }))
		r.want("few files are made", made.Load() < left/2, true)
		for range left {
			r.want("put", s.put("k", "v"), "ok")
			r.want("evicts nothing", s.Prune(background, mib), nil)
		}
		if !shared { // there they stay for an hour
			r.want("left", words(len(r.names("d/"+backend)), s.audit()), "1 ok")
			r.want("few at once", w.most.Load() < left/2, true)
		}
	}
}

// P4: files that are moved there since they have the names of folders count, too.
func TestQuarantineHasFiles(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 55*small)
	for i := range 40 {
		key := fmt.Sprint("k", i)
		r.write(r.path("d/"+backend+"/"+s.Bucket(key)), make([]byte, 10))
		r.want("put", s.put(key, "v"), "ok")
		r.want("kept", s.usage().Quarantined, min(i+1, 11)) // 4 KiB each
	}
	r.write(r.path("d/"+backend+"/"+s.Bucket("large")), make([]byte, 100*kib))
	r.want("put", s.put("large", "v"), "ok")
	r.want("kept", words(s.usage().Quarantined, s.audit()), "0 ok")
}
