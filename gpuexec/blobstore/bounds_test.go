//go:build unix

package blobstore_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// P5: a quota that is reached is a full disk.
func TestFullQuotaEvicts(t *testing.T) {
	r := newRig(t)
	var disk atomic.Bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return &brim{f, &disk, false, syscall.EDQUOT} }))
	s.fill(0, 9, 400)
	disk.Store(true)
	r.want("put", words(s.put("k10", "v10"), s.has(0, 1, 10)), "ok [1 10]")
}

// P5: a full disk takes no more than half of what is there, whatever the new entry needs.
func TestFullDiskTakesHalfAtMost(t *testing.T) {
	for i, sizes := range [][]int{{400, 400}, {400, 5000}} {
		r := newRig(t)
		var disk atomic.Bool
		s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return &brim{f, &disk, true, 0} }))
		for k, size := range sizes {
			s.fill(k, k, size)
		}
		disk.Store(true)
		r.want("put", s.put("k2", "v2", putOptions{bytes: 5000}), "refused reason=degraded")
		r.want(words("left", i), s.has(0, 1), []int{0, 1})
	}
}

// P7, P8: who passes over many entries that cannot be removed gives the lock back in between.
func TestManyStuckEntriesInTurns(t *testing.T) {
	blobstore.HoldLong(t)
	r := newRig(t)
	var armed atomic.Bool
	locks := 0
	watch := func(op, name string) bool {
		if op == "update" && path.Dir(name) == "lease/directory" {
			locks++
		}
		return false
	}
	s := r.open("d", 4*mib, on(func(f vfs.FS) vfs.FS {
		return &overlay{troubled{f, &watch}, func(string) bool { return armed.Load() }, true}
	}))
	s.fill(1, 250, 10)
	armed.Store(true)
	locks = 0
	r.want("prune", said(s.Prune(background, 0)), "refused reason=degraded")
	r.want("turns", locks >= 3, true)
}

// P5: entries that cannot be evicted are tried once in a prune, however far the clock jumps
// between its turns.
func TestManyStuckEntriesUnderAClockThatJumps(t *testing.T) {
	blobstore.HoldLong(t)
	r := newRig(t)
	var armed atomic.Bool
	s := r.open("d", 4*mib, func(c *blobstore.Config) {
		c.Now = func() time.Time {
			if armed.Load() {
				r.clock(2 * time.Minute)
			}
			return r.now()
		}
	}, on(func(f vfs.FS) vfs.FS { return &overlay{f, func(string) bool { return armed.Load() }, true} }))
	s.fill(1, 250, 10)
	armed.Store(true)
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	r.want("prune", said(s.Prune(ctx, 0)), "refused reason=degraded")
	armed.Store(false)
}

// P7: a prune succeeds where an entry that cannot be removed fits into what is to stay.
func TestPruneToWhatIsStuck(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS {
		return &overlay{f, func(name string) bool {
			return strings.HasPrefix(name, backend+"/"+r.open("other", mib).Bucket("k1")+"/")
		}, true}
	}))
	s.fill(1, 3, 10)
	r.want("to two", words(said(s.Prune(background, 2*small)), s.has(1, 2, 3)), "ok [1 3]")
	r.want("to one", words(said(s.Prune(background, small)), s.has(1, 3)), "ok [1]")
	r.want("to less", said(s.Prune(background, small-1)), "refused reason=degraded")
}

// P5, P7: quarantine/ has at most 32 entries.
func TestQuarantineHasThirtyTwo(t *testing.T) {
	const most = 32
	r := newRig(t)
	s := r.open("d", 100*most*small)
	for i := range most + 2 {
		key := fmt.Sprint("k", i)
		s.put(key, "v")
		r.flip(s.kernel(key), -1)
		s.get(key)
		r.want(key, s.usage().Quarantined, min(i+1, most))
	}
}

// lasting is a file system whose journal is neither written nor removed while it is on.
type lasting struct {
	vfs.FS
	on *atomic.Bool
}

type lastingFile struct {
	vfs.File
	on *atomic.Bool
}

func (f lasting) Update(name string) (vfs.File, error) {
	file, err := f.FS.Update(name)
	if err == nil && name == "lease/journal" {
		file = lastingFile{file, f.on}
	}
	return file, err
}

func (f lastingFile) WriteAt(p []byte, at int64) (int, error) {
	if f.on.Load() {
		return 0, syscall.EIO
	}
	return f.File.WriteAt(p, at)
}

func (f lasting) Remove(name string) error {
	if f.on.Load() && name == "lease/journal" {
		return &vfs.Fault{Op: "remove", Name: name, Err: syscall.EACCES}
	}
	return f.FS.Remove(name)
}

// P5, P7: where the journal can be neither written nor removed nothing is changed, since
// others would believe it.
func TestJournalThatStays(t *testing.T) {
	r := newRig(t)
	var held atomic.Bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return lasting{f, &held} }))
	other := r.open("d", mib)
	s.fill(1, 2, 10)
	r.want("other", other.usage().Entries, 2)
	held.Store(true)
	r.want("put", s.put("k3", "v3"), "refused reason=degraded")
	r.want("other", words(other.usage().Entries, other.audit()), "2 ok")
}

// P7: another policy that a process has given the directory holds for the next victim of those
// that are open.
func TestPolicyGivenMeanwhile(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 4*small, policy(blobstore.FIFO))
	s.fill(1, 5, 10)
	r.want("fifo", s.has(1, 2, 3), []int{2, 3})
	r.open("d", 4*small, policy(blobstore.LRU)).shut()
	s.fill(6, 6, 10)
	r.want("lru", s.has(2, 3, 4, 5, 6), []int{2, 3, 5, 6})
	s.fill(7, 7, 10)
	r.want("lru still", s.has(2, 3, 5, 6, 7), []int{3, 5, 6, 7})
	r.want("use", s.has(3), []int{3})
	r.open("d", 4*small, policy(blobstore.FIFO)).shut()
	s.fill(8, 8, 10)
	r.want("fifo again", s.has(3, 5, 6, 7, 8), []int{5, 6, 7, 8})
}

// P7: a policy that this version does not know is none.
func TestPolicyOfAnotherVersion(t *testing.T) {
	r := newRig(t)
	lru := func(c *blobstore.Config) { c.Policy, c.DefaultPolicy = blobstore.LRU, true }
	s := r.open("d", 4*small, lru)
	s.fill(1, 4, 10)
	s.shut()
	r.write(r.path("d/lease/settings"), []byte(blobstore.Sealed(fmt.Sprintf("capacity %d\npolicy mru\n", 4*small))))
	s = r.open("d", 4*small, lru)
	r.want("use", s.has(1), []int{1})
	s.fill(5, 5, 10)
	r.want("have", s.has(1, 2, 3, 4, 5), []int{1, 3, 4, 5})
}

// P4, P8: an import reads no file that is larger than the largest entry, whatever the capacity.
func TestImportOfTheTooLarge(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, func(c *blobstore.Config) { c.Capacity = limit.Unlimited })
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	r.must(out.WriteHeader(&tar.Header{Name: backend + "/7/0/kernel.bin", Mode: 0o600, Size: blobstore.Largest + 1}))
	_, err := out.Write(make([]byte, kib))
	r.must(err)
	got, err := s.Import(background, &archive)
	r.want("import", words(said(err), got.Rejected[fault.TooLarge]), "error invalid 1")
}

// abrupt is a file system on which a folder that is stored has its place though moving it
// fails, while it is on.
type abrupt struct {
	vfs.FS
	on *atomic.Bool
}

func (f abrupt) Rename(from, to string) error {
	err := f.FS.Rename(from, to)
	if err == nil && f.on.Load() && strings.HasPrefix(to, backend+"/") {
		return &vfs.Fault{Op: "rename", Name: to, Err: syscall.EIO}
	}
	return err
}

// P2, P5: after a store that failed the directory is looked at: the entry may be there.
func TestStoredThoughItFailed(t *testing.T) {
	r := newRig(t)
	var armed atomic.Bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return abrupt{f, &armed} }))
	s.fill(1, 1, 10)
	armed.Store(true)
	r.want("put", s.put("k2", "v2"), "refused reason=degraded")
	armed.Store(false)
	r.want("after it", words(s.get("k2"), s.usage().Entries, s.audit()), "v2 2 ok")
}

// unending is a file system on which the end of a change cannot be written to the journal,
// while it is on.
type unending struct {
	vfs.FS
	on *atomic.Bool
}

type unendingFile struct {
	vfs.File
	on *atomic.Bool
}

func (f unending) Update(name string) (vfs.File, error) {
	file, err := f.FS.Update(name)
	if err == nil && name == "lease/journal" {
		file = unendingFile{file, f.on}
	}
	return file, err
}

func (f unendingFile) WriteAt(p []byte, at int64) (int, error) {
	if f.on.Load() && bytes.Contains(p, []byte("e ")) {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, at)
}

// P5, P7: a change whose end cannot be written to the journal stands, and others list the
// directory.
func TestJournalThatCannotBeEnded(t *testing.T) {
	r := newRig(t)
	var full atomic.Bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return unending{f, &full} }))
	other := r.open("d", mib)
	s.fill(1, 2, 10)
	r.want("other", other.usage().Entries, 2)
	full.Store(true)
	r.want("put", words(s.put("k3", "v3"), s.Stats().Stores), "ok 3")
	r.want("other", words(other.usage().Entries, other.audit()), "3 ok")
	r.want("prune", words(said(s.Prune(background, small)), other.usage().Entries, other.audit()), "ok 1 ok")
}

// halfway is a file system on which no folder of an entry can be moved, and no key.bin of one
// moved or removed.
type halfway struct{ vfs.FS }

func (f halfway) refuses(name string) bool {
	entry, _ := path.Match(backend+"/*/*", name)
	key, _ := path.Match(backend+"/*/*/key.bin", name)
	return entry || key
}

func (f halfway) Rename(from, to string) error {
	if f.refuses(from) {
		return &vfs.Fault{Op: "rename", Name: from, Err: syscall.EACCES}
	}
	return f.FS.Rename(from, to)
}

func (f halfway) Remove(name string) error {
	if f.refuses(name) {
		return &vfs.Fault{Op: "remove", Name: name, Err: syscall.EACCES}
	}
	return f.FS.Remove(name)
}

func (f halfway) RemoveIf(name string, still func() bool) error {
	if f.refuses(name) {
		return &vfs.Fault{Op: "remove", Name: name, Err: syscall.EACCES}
	}
	return f.FS.RemoveIf(name, still)
}

// P5, P9: of an entry of which a part was moved and another cannot be, what was moved goes.
func TestEvictedByHalf(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return halfway{f} }))
	s.fill(1, 2, 10)
	r.want("prune", said(s.Prune(background, 0)), "refused reason=degraded")
	r.want("left in tmp/", r.names("d/tmp"), "[]")
}

// P5, P9: what could not be stored leaves nothing.
func TestRefusedLeavesNothing(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.fill(1, 1, 10)
	for i, op := range []string{"write", "rename"} {
		r.fault(op, syscall.EIO)
		r.want(op, s.put(fmt.Sprint("more", i), "v"), "refused reason=degraded")
		r.heal()
		r.want("left in tmp/ by "+op, r.names("d/tmp"), "[]")
		r.clock(blobstore.LongestPause)
	}
}

// P7: an import exceeds the capacity by an eighth at most before it evicts.
func TestImportExceedsByAnEighth(t *testing.T) {
	blobstore.HoldLong(t)
	const capacity = 32 // entries
	r := newRig(t)
	from := r.open("from", 4*mib)
	from.fill(1, 100, 10)
	var archive bytes.Buffer
	_, err := from.Export(background, &archive)
	r.must(err)
	var mu sync.Mutex
	entries, most := 0, 0
	s := r.open("d", capacity*small, on(func(f vfs.FS) vfs.FS {
		return moves{f, func(from, to string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(to, backend+"/") {
				entries++
			}
			if strings.HasPrefix(from, backend+"/") {
				entries--
			}
			most = max(most, entries)
		}}
	}))
	in, err := s.Import(background, &archive)
	r.want("import", words(in.Taken, err, s.usage().Entries), words(100, nil, capacity))
	r.want("at most", most <= capacity+capacity/8+1, true)
}

// moves tells of what was renamed.
type moves struct {
	vfs.FS
	tell func(from, to string)
}

func (f moves) Rename(from, to string) error {
	err := f.FS.Rename(from, to)
	if err == nil {
		f.tell(from, to)
	}
	return err
}

// P2, P4: a name with a leading zero is nobody's slot: it takes no number, and is no entry.
func TestNumbersThatNoStoreWrites(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, hash(7))
	r.want("put", words(s.put("a", "v"), s.put("b", "v")), "ok ok")
	r.must(errors.Join(os.CopyFS(r.path("d/test/7/00"), os.DirFS(r.path("d/test/7/0"))), os.CopyFS(r.path("d/test/07"), os.DirFS(r.path("d/test/7")))))
	s.relist()
	r.want("put", s.put("c", "v"), "ok")
	r.want("names, entries", words(r.names("d/test/7"), s.usage().Entries), "[0 00 1 2] 3")
	_, err := s.Inspect(background, "test/7/00")
	r.want("inspect, audit", words(errors.Is(err, fault.ErrInvalid), s.audit()), "true ok")
}
