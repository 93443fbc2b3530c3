//go:build unix

package blobstore_test

import (
	"fmt"
	"os"
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

// lockWatch counts what is done under the directory lock.
type lockWatch struct {
	vfs.FS
	held        *atomic.Bool
	most, moves *atomic.Int64
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
	w.did()
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
	w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}}
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
}
