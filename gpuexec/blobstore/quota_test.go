//go:build unix

package blobstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// quota is a disk of few bytes: a write that would exceed them fails.
type quota struct {
	vfs.FS
	mu   *sync.Mutex
	most int64
}

type quotaFile struct {
	vfs.File
	q quota
}

// used is what all files take.
func (q quota) used() (used int64) {
	_ = filepath.WalkDir(q.Root(), func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			if info, e := d.Info(); e == nil && info.Mode().IsRegular() { // else it went a moment ago
				used += (info.Size() + 4*kib - 1) / (4 * kib) * (4 * kib)
			}
		}
		return nil
	})
	return used
}

// room reports whether so many bytes more may be written.
func (q quota) room(more int) error {
	if q.used()+int64(more) > q.most {
		return &vfs.Fault{Op: "write", Name: ".", Err: syscall.EDQUOT}
	}
	return nil
}

func (q quota) Create(name string) (vfs.File, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.room(4 * kib); err != nil {
		return nil, err
	}
	f, err := q.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return quotaFile{f, q}, nil
}

func (f quotaFile) WriteAt(p []byte, at int64) (int, error) {
	f.q.mu.Lock()
	defer f.q.mu.Unlock()
	if err := f.q.room(len(p)); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, at)
}

// crowdKeys is how many a child stores, and how many pauses its clock is ahead at most.
const crowdKeys = 60

// crowd stores keys where others fill the disk too. It fails unless most are stored: of
// some others may take all the room that was made for them. wait ends a pause.
func crowd(s *blobstore.Store, name string, keys int, wait func()) error {
	refused := 0
	for i := range keys {
		key := fmt.Sprint(name, ".", i)
		switch err := s.Put(background, backend, key, payload("v"+key, 12*kib), time.Second); {
		case errors.Is(err, fault.ErrRefused):
			refused++
			wait()
		case err != nil:
			return err
		}
		b, miss, err := s.Get(background, backend, key)
		if err != nil || miss.None() && !bytes.Equal(b.Payload, payload("v"+key, 12*kib)) {
			return fmt.Errorf("%s: %.20q, %v", key, b.Payload, err)
		}
	}
	if refused > keys/2 {
		return fmt.Errorf("%d of %d puts were refused", refused, keys)
	}
	return nil
}

// P5: stores that run into one full disk at the same time make room and go on; nothing
// is wrong or left behind.
func TestStoresRaceOnAFullDisk(t *testing.T) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU, blobstore.Cost} {
		r := newRig(t)
		disk := quota{nil, &sync.Mutex{}, 400 * kib}
		var stores [2]*shop
		for i := range stores {
			stores[i] = r.open("d", 1000*mib, policy(p), func(c *blobstore.Config) {
				blobstore.SetFS(c, func(root string) vfs.FS { q := disk; q.FS = vfs.Dir(root); return q })
			})
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				if err := crowd(stores[g%2].Store, fmt.Sprint(g), 15, func() { r.clock(blobstore.LongestPause) }); err != nil {
					t.Errorf("%s: %v", p, err)
				}
			})
		}
		wg.Wait()
		r.afterTheCrowd(stores)
	}
}

// afterTheCrowd looks at the stores of a full directory d.
func (r *rig) afterTheCrowd(stores [2]*shop) {
	r.t.Helper()
	r.clock(blobstore.LongestPause)
	for i, s := range stores {
		key := fmt.Sprint("last", i)
		r.want("put", words(s.put(key, "v"), s.get(key)), "ok v")
	}
	u := stores[0].usage()
	r.want("many", u.Entries > 10, true)
	r.must(stores[0].Prune(background, u.DiskBytes*3/4)) // else size.txt may have no room
	for _, s := range stores {
		r.want("sound", words(s.verify(), s.audit()), "0 ok")
		s.reopen()
		r.want("sound", words(s.verify(), s.audit(), s.get("last1")), "0 ok v")
	}
	r.want("left", r.names("d/tmp"), "[]")
}

// frees is a disk of 1,000 KiB that tells what is removed to be free later, if late is set.
type frees struct {
	vfs.FS
	late           *bool
	removed, taken *int64 // bytes that it does not tell; those of others
}

func (f frees) used() int64 { return quota{FS: f.FS}.used() }

func (f frees) RemoveAll(name string) error {
	before := f.used()
	err := f.FS.RemoveAll(name)
	if *f.late {
		*f.removed += before - f.used()
	}
	return err
}

func (f frees) Free() (free, total int64, err error) {
	return 1000*kib - f.used() - *f.removed - *f.taken, 1000 * kib, nil
}

func halfFree(c *blobstore.Config) { c.KeepFree = 0.5 }

// P7: where the file system tells late what is free, no more goes than is needed; what has not
// come after a minute is made up for, and so is what others take.
func TestKeepFreeWhereBlocksAreFreedLate(t *testing.T) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU} {
		r := newRig(t)
		late, removed, taken := true, int64(0), int64(0)
		s := r.open("d", mib, policy(p), halfFree, on(func(f vfs.FS) vfs.FS { return frees{f, &late, &removed, &taken} }))
		s.fill(1, 4, 100*kib)
		r.want("enough is free", s.usage().Entries, 4)
		s.fill(5, 9, 100*kib)
		r.want("late", words(s.usage().Entries, removed > 400*kib), "4 true")
		removed, late = 0, false
		s.fill(10, 14, 100*kib)
		r.want("at once", s.usage().Entries, 4)
		taken = 100 * kib
		r.clock(time.Minute)
		s.fill(15, 15, 100*kib)
		r.want("others have some", s.usage().Entries, 3)
		taken, late = 0, true
		s.fill(16, 17, 100*kib)
		r.want("late again", s.usage().Entries, 4)
		r.clock(2 * time.Minute)
		s.fill(18, 18, 1)
		r.want("never", s.usage().Entries, 4)
		said := ""
		for i := range 12 {
			r.clock(40 * time.Second)
			said += s.put(fmt.Sprint("more", i), "v", putOptions{bytes: 100 * kib})
		}
		r.want("the disk is not filled", strings.Contains(said, "refused reason=degraded"), true)
	}
}

// P7: the same over many short processes, with locks and without: each knows what those before
// it have evicted. What has not come after two minutes is made up for.
func TestKeepFreeOverShortProcesses(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := newRig(t)
		late, removed, taken := true, int64(0), int64(0)
		s := r.open("d", mib, halfFree, func(c *blobstore.Config) { c.Shared = shared },
			on(func(f vfs.FS) vfs.FS { return frees{f, &late, &removed, &taken} }))
		life := func(i int) {
			s.reopen()
			s.fill(i, i, 100*kib)
		}
		s.fill(1, 4, 100*kib)
		for i := 5; i < 10; i++ {
			life(i)
		}
		r.want("late", words(s.usage().Entries, removed > 400*kib), "4 true")
		removed -= 300 * kib // have come
		life(10)
		removed = 0
		life(11)
		r.want("all have come", s.usage().Entries, 4)
		taken = 100 * kib
		life(12)
		r.want("others have some", s.usage().Entries, 3)
		taken, removed, late = 0, 0, false
		for i := 13; i < 18; i++ {
			life(i)
		}
		r.want("at once", s.usage().Entries, 4)
		late = true
		life(18)
		r.clock(40 * time.Second)
		life(19)
		for range 3 {
			r.clock(40 * time.Second)
			s.reopen()
		}
		r.want("never", s.usage().Entries < 4, true)
	}
}

// P4, P7: where the file of what comes late is missing or damaged, more goes than is needed, as
// without it; the next change makes it anew.
func TestWhatComesLateIsAHint(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"gone":    os.Remove,
		"cut":     func(path string) error { return os.Truncate(path, 20) },
		"a digit": func(path string) error { return rewrite(path, `^late \d`, "late 9") },
		"a lie": func(path string) error {
			return os.WriteFile(path, []byte(blobstore.Sealed(fmt.Sprint("late ", int64(math.MaxInt64), " 0 0 ", time.Now().UnixNano(), " 0 0 0 "))), 0o600)
		},
		"a dir": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			late, removed, taken := true, int64(0), int64(0)
			s := r.open("d", mib, halfFree, on(func(f vfs.FS) vfs.FS { return frees{f, &late, &removed, &taken} }))
			s.fill(1, 6, 100*kib)
			s.shut()
			r.must(damage(r.path("d/lease/late")))
			s.reopen()
			n := s.usage().Entries
			r.want("more went", n < 4, true)
			s.reopen()
			r.want("made anew", s.usage().Entries, n)
		})
	}
}

// P7: what the file system does not tell to be free counts as free for one minute at least.
func TestLateBlocksOfTheMinuteBefore(t *testing.T) {
	r := newRig(t)
	late, removed, taken := true, int64(0), int64(0)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return frees{f, &late, &removed, &taken} }), func(c *blobstore.Config) { c.KeepFree = 0.5 })
	s.fill(1, 9, 100*kib)
	r.want("late", words(s.usage().Entries, removed > 400*kib), "4 true")
	for i := 10; i < 12; i++ {
		r.clock(40 * time.Second)
		s.fill(i, i, 100*kib)
		r.want(words("put", i), s.usage().Entries, 4)
	}
}

// P7: who opens evicts what takes more on the disk than is to be in use, also where its bytes
// are few.
func TestKeepFreeAtOpen(t *testing.T) {
	r := newRig(t)
	late, removed, taken := false, int64(0), int64(0)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return frees{f, &late, &removed, &taken} }), func(c *blobstore.Config) { c.KeepFree = 0.5 })
	s.fill(1, 40, 10)
	r.want("entries", s.usage().Entries, 40)
	taken = 250 * kib
	s.reopen()
	used := s.usage().DiskBytes
	r.want("evicted", words(used < 300*kib, used > 150*kib), "true true")
}
