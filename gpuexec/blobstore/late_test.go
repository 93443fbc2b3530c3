//go:build unix

package blobstore_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// stall is a file system that stands still once, as a process does that was
// stopped there.
type stall struct {
	vfs.FS
	at      string // "rename", "link", "mkdir" or "lstat" and a pattern of names; "after …" = when it is done
	once    *sync.Once
	reached chan struct{}
	resume  chan struct{}
	moved   func(from, to string) // after it has gone on; without from a folder is made
}

func newStall(at string) *stall {
	return &stall{at: at, once: &sync.Once{}, reached: make(chan struct{}), resume: make(chan struct{})}
}

func (s *stall) config(c *blobstore.Config) {
	blobstore.SetFS(c, func(root string) vfs.FS {
		s.FS = vfs.Dir(root)
		return s
	})
}

func (s *stall) pass(op, name string) {
	if is, _ := path.Match(s.at, op+" "+name); is {
		s.once.Do(func() {
			close(s.reached)
			<-s.resume
		})
	}
}

func (s *stall) Rename(from, to string) error {
	s.pass("rename", to)
	defer s.pass("after rename", to)
	if s.moved != nil {
		s.moved(from, to)
	}
	return s.FS.Rename(from, to)
}

func (s *stall) Exchange(a, b string) error {
	s.pass("rename", b)
	defer s.pass("after rename", b)
	return s.FS.Exchange(a, b)
}

func (s *stall) Link(from, to string) error {
	s.pass("link", to)
	return s.FS.Link(from, to)
}

func (s *stall) Mkdir(name string) error {
	s.pass("mkdir", name)
	defer s.pass("after mkdir", name)
	if s.moved != nil {
		s.moved("", name)
	}
	return s.FS.Mkdir(name)
}

func (s *stall) Lstat(name string) (vfs.Info, error) {
	s.pass("lstat", name)
	defer s.pass("after lstat", name)
	return s.FS.Lstat(name)
}

// P7, P8: who holds the directory lock and stands still is passed over; when it
// goes on, its late publish counts and the capacity holds before it returns.
func TestLatePublishUnderTheLock(t *testing.T) {
	r := newRig(t)
	short := func(c *blobstore.Config) { c.Lease = 200 * time.Millisecond }
	late := newStall("rename " + backend + "/*/*")
	a, b := r.open("d", 350*kib, short, late.config), r.open("d", 350*kib, short)
	done := make(chan string)
	go func() { done <- a.put("late", "v", putOptions{bytes: 100 * kib}) }()
	<-late.reached
	b.fill(1, 3, 100*kib)
	r.want("others go on", b.has(1, 2, 3), []int{1, 2, 3})
	close(late.resume)
	r.want("late put", <-done, "ok")
	if size := b.usage().Bytes; size > 350*kib { // INVARIANT of directory
		t.Errorf("%d bytes in use", size)
	}
	r.want("entries", b.usage().Entries, 3)
	r.want("audit", a.audit(), "ok")
	r.want("audit", b.audit(), "ok")
}

// P2, P7: neither does a caller that gives up meanwhile leave the others with accounts that lack what
// was published late.
func TestLatePublishOfWhoGaveUp(t *testing.T) {
	r := newRig(t)
	late := newStall("rename " + backend + "/*/1")
	initial := func(c *blobstore.Config) { c.Hash = func(key string) uint64 { return uint64(key[0]) } }
	a, b := r.open("d", mib, shortLease, initial, late.config), r.open("d", mib, shortLease, initial)
	b.put("l", "v") // or who lists finds a bucket without slots, and removes it
	ctx, giveUp := context.WithCancel(background)
	done := make(chan error)
	go func() { done <- a.Put(ctx, backend, "late", []byte("v"), 0) }()
	<-late.reached
	r.want("put", b.put("k", "v"), "ok")
	giveUp()
	close(late.resume)
	r.must(<-done)
	r.want("get, audit", words(b.get("late"), b.audit(), a.audit()), "v ok ok")
}

// P8: of two that store one key, both past the first look, the second finds the
// entry of the first under the lock and leaves it.
func TestStoredMeanwhile(t *testing.T) {
	r := newRig(t)
	late := newStall("after mkdir tmp/*") // before it has the lock
	a, b := r.open("d", mib, late.config), r.open("d", mib)
	done := make(chan string)
	go func() { done <- a.put("k", "late") }()
	<-late.reached
	r.want("put", b.put("k", "first"), "ok")
	close(late.resume)
	r.want("late put", <-done, "ok")
	r.want("entries, stores", words(b.usage().Entries, a.Stats().Stores), "1 0")
	r.want("get", a.get("k"), "first")
	r.want("audit", a.audit(), "ok")
}

// P8, P15: of two that store what neither would load, both past the first look, the second
// is refused as it would be a moment later.
func TestUselessStoredMeanwhile(t *testing.T) {
	r := newRig(t)
	public, _, err := ed25519.GenerateKey(nil)
	r.must(err)
	r.write(r.path("trust.json"), fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	trusting := func(c *blobstore.Config) { c.Trust = r.path("trust.json") }
	late := newStall("after mkdir tmp/*") // before it has the lock
	a, b := r.open("d", mib, trusting, late.config), r.open("d", mib, trusting)
	done := make(chan string)
	go func() { done <- a.put("k", "late") }()
	<-late.reached
	r.want("put", b.put("k", "first"), "ok")
	close(late.resume)
	r.want("late put", <-done, "refused reason=unsigned")
	r.want("entries, stores, counted", words(b.usage().Entries, a.Stats().Stores, a.Count(fault.Unsigned)), "1 0 1")
	r.want("left in tmp/", len(r.names("d/tmp")), 0)
	r.want("audit", a.audit(), "ok")
}

// P5: a put whose caller did not wait longer, as others had the lock, says nothing of the disk:
// the next one is tried at once.
func TestGivenUpIsNoFault(t *testing.T) {
	r := newRig(t)
	late := newStall("mkdir test/*") // under the lock
	a, b := r.open("d", mib), r.open("d", mib, late.config)
	done := make(chan string)
	go func() { done <- b.put("k", "v") }()
	<-late.reached
	ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
	defer cancel()
	err := a.Put(ctx, backend, "j", []byte("v"), 0)
	close(late.resume)
	r.want("given up, other put", words(errors.Is(err, context.DeadlineExceeded), <-done), "true ok")
	r.want("next put, degraded", words(a.put("j", "v"), a.Count(fault.Degraded)), "ok 0")
}

// P8: who stands still between taking the directory lock and publishing, and is
// passed over by one that stores the same key, succeeds and leaves that entry.
func TestPassedOverBeforePublishing(t *testing.T) {
	r := newRig(t)
	short := func(c *blobstore.Config) { c.Lease = 200 * time.Millisecond }
	late := newStall("mkdir test/7")
	a, b := r.open("d", mib, hash(7), short, late.config), r.open("d", mib, hash(7), short)
	done := make(chan string)
	go func() { done <- a.put("k", "late") }()
	<-late.reached
	r.want("put", b.put("k", "first"), "ok")
	close(late.resume)
	r.want("late put", <-done, "ok")
	r.want("entries", b.usage().Entries, 1)
	r.want("get", a.get("k"), "first")
	r.want("audit", a.audit(), "ok")
	r.want("no pause", a.put("j", "v"), "ok")
}

// P8: who stands still before it evicts or sets aside an entry, and is passed over,
// takes nothing away that has the place by then.
func TestLateMover(t *testing.T) {
	for name, c := range map[string]struct {
		at   string
		move func(a *shop) error
	}{
		"evictor":  {"rename tmp/*", func(a *shop) error { return a.Prune(background, 0) }},
		"repairer": {"rename tmp/*", func(a *shop) error { _, err := a.Verify(background, true); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			short := func(c *blobstore.Config) { c.Lease = 200 * time.Millisecond }
			b := r.open("d", mib, hash(7), short)
			b.put("k", "old")
			r.flip(b.kernel("k"), -1)
			late := newStall(c.at)
			a := r.open("d", mib, hash(7), short, late.config)
			done := make(chan error)
			go func() { done <- c.move(a) }()
			<-late.reached
			r.must(b.Prune(background, 0))
			r.want("put", b.put("new", "v"), "ok")
			var moves []string
			late.moved = func(from, to string) {
				switch {
				case to == backend: // whose folder is there
					return
				case from == "": // the bucket, which others may have removed
					r.must(os.Remove(r.path("d/test/7")))
				}
				moves = append(moves, from+" "+to)
			}
			close(late.resume)
			r.must(<-done)
			r.want("its place was taken back", len(moves) > 2 && moves[1] == " test/7" && strings.HasSuffix(moves[2], " test/7/0"), true)
			if name == "repairer" {
				r.want("the newcomer", b.get("new"), "v")
			}
			r.want("audit", a.audit(), "ok")
			r.want("audit", b.audit(), "ok")
		})
	}
}

// P4, P5: a request that finds a bad entry waits a second at most for somebody who
// stands still with the directory lock; a later one sets the entry aside.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, late := crashfs.New(nil), newStall("rename "+backend+"/*/*")
		late.FS = disk
		open := func(f vfs.FS) *blobstore.Store {
			s, err := blobstore.Open(background, powerConfig(f, blobstore.None))
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		a, b := open(late), open(disk)
		if err := b.Put(background, backend, "k", []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
		f, err := disk.Update(backend + "/" + b.Bucket("k") + "/0/kernel.bin")
		if err == nil {
			_, err = f.WriteAt([]byte("X"), frame.Preamble)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- a.Put(background, backend, "late", nil, 0) }()
		<-late.reached
		get := func(ctx context.Context, reason fault.Reason, takes time.Duration) {
			t.Helper()
			begin := time.Now()
			_, miss, err := b.Get(ctx, backend, "k")
			if took := time.Since(begin); err != nil || miss.Reason != reason || took != takes {
				t.Errorf("%s %v after %v, want %s after %v", miss.Reason, err, took, reason, takes)
			}
		}
		hurried, cancel := context.WithTimeout(background, 300*time.Millisecond)
		defer cancel()
		get(hurried, fault.Checksum, 300*time.Millisecond)
		get(background, fault.Checksum, time.Second)
		close(late.resume)
		if err := <-done; err != nil {
			t.Error(err)
		}
		get(background, fault.Checksum, 0)
		get(background, fault.Absent, 0)
		if err := errors.Join(a.Close(background), b.Close(background)); err != nil {
			t.Error(err)
		}
	})
}

// slow is a file system that takes half a minute to look at an entry.
type slow struct{ vfs.FS }

func (s slow) Lstat(name string) (vfs.Info, error) {
	if strings.HasSuffix(name, "/key.bin") {
		time.Sleep(30 * time.Second)
	}
	return s.FS.Lstat(name)
}

// P7, P8: who lists a large directory holds nobody up, and has what was stored and
// evicted meanwhile; also where others begin new journals all the time.
func TestLongListing(t *testing.T) {
	for _, journals := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { testLongListing(t, journals) })
	}
}

func testLongListing(t *testing.T, journals bool) {
	disk := crashfs.New(nil)
	open := func(f vfs.FS, capacity int64) *blobstore.Store {
		cfg := powerConfig(f, blobstore.None)
		cfg.Lease, cfg.Capacity = time.Minute, limit.Of(capacity)
		s, err := blobstore.Open(background, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := open(disk, mib)
	put := func(i int) {
		if err := a.Put(background, backend, fmt.Sprint(i), []byte("v"), 0); err != nil {
			t.Error(err)
		}
	}
	for i := range 8 {
		put(i)
	}
	bytes := func(s *blobstore.Store) int64 {
		u, err := s.Usage(background)
		if err != nil {
			t.Error(err)
		}
		return u.Bytes
	}
	if err := disk.Remove("lease/index"); err != nil {
		t.Fatal(err)
	}
	b := make(chan *blobstore.Store)
	go func() { b <- open(slow{disk}, 9*small) }()
	synctest.Wait() // it lists
	begin := time.Now()
	put(100)
	if err := a.Prune(background, 7*small); err != nil {
		t.Error(err)
	}
	if waited := time.Since(begin); waited > 0 {
		t.Errorf("waited %v for the one that lists", waited)
	}
	for i := 0; journals && i < 5; i++ {
		_ = disk.Remove("lease/journal")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
	}
	s := <-b
	size, text, files, err := s.Audit(background)
	if err != nil || size != bytes(a) || text != size || files != size {
		t.Errorf("it has %d bytes, size.txt %d, the disk %d, the other store %d: %v", size, text, files, bytes(a), err)
	}
	if err := errors.Join(a.Close(background), s.Close(background)); err != nil {
		t.Error(err)
	}
}

// P8: without locks, two that store one key at once leave one entry.
func TestLatePublishWithoutLocks(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	late := newStall("rename " + backend + "/*/*")
	a, b := r.open("d", mib, shared, late.config), r.open("d", mib, shared)
	done := make(chan string)
	go func() { done <- a.put("k", "late") }()
	<-late.reached
	r.want("put", b.put("k", "first"), "ok")
	close(late.resume)
	r.want("late put", <-done, "ok")
	r.want("entries", b.usage().Entries, 1)
	r.want("get", a.get("k"), "first")
	r.want("audit", a.audit(), "ok")
}

// P7, P8: without locks another writer may evict an entry, and its bucket with it,
// at any moment of its store. Nothing has failed then.
func TestEvictedAmongTheStore(t *testing.T) {
	for _, at := range []string{"after mkdir test/7", "after lstat test/7", "after rename test/7/?"} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			shared := func(c *blobstore.Config) { c.Shared = true }
			late := newStall(at)
			a, b := r.open("d", mib, shared, hash(7), late.config), r.open("d", mib, shared, hash(7))
			r.want("put", b.put("other", "v"), "ok")
			done := make(chan string)
			go func() { done <- a.put("k", "v") }()
			<-late.reached
			r.must(b.Prune(background, 0))
			close(late.resume)
			r.want("late put", <-done, "ok")
			r.want("no pause", a.put("k", "v"), "ok")
			r.want("get", b.get("k"), "v")
			r.want("audit", a.audit(), "ok")
		})
	}
}

// P7: the journal is a hint: gone, torn or left without its end while stores are
// open, it costs a listing and nothing else.
func TestJournalIsAHint(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"gone":    os.Remove,
		"cut":     func(path string) error { return os.Truncate(path, 3) },
		"no end":  func(path string) error { return appendTo(path, "b\n") },
		"garbage": func(path string) error { return appendTo(path, "\x00\x01e\n") },
		"a lie":   func(path string) error { return appendTo(path, "b\n+ 1 1 1 ../../x\ne\n") },
		"a digit": func(path string) error { return rewrite(path, `\+ \d`, "+ 9") },
		"of old":  func(path string) error { return rewrite(path, `e \w{16}`, "e") },
		"a dir":   func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.open("d", 350*kib), r.open("d", 350*kib)
			a.fill(1, 2, 100*kib)
			r.must(damage(r.path("d/lease/journal")))
			b.fill(3, 3, 100*kib)
			a.fill(4, 4, 100*kib)
			for _, s := range []*shop{a, b} {
				r.want("entries", s.usage().Entries, 3)
				r.want("audit", s.audit(), "ok")
			}
			r.want("have", b.has(1, 2, 3, 4), []int{2, 3, 4})
		})
	}
}

// P7, P8: who has read a journal notices that another one took its place, though it
// is as long, and that what was written into the old one is seen by nobody.
func TestJournalIsReplaced(t *testing.T) {
	r := newRig(t)
	journal := r.path("d/lease/journal")
	r.open("d", 450*kib)
	r.must(os.Remove(journal)) // which says that settings were written
	a, b := r.open("d", 450*kib, hash(7)), r.open("d", 450*kib, hash(7))
	b.fill(1, 2, 100*kib)
	r.want("entries", a.usage().Entries, 2)
	length := len(r.read(journal))
	r.must(appendTo(journal, "b\n")) // of a writer that was killed: b begins another
	b.fill(3, 4, 100*kib)
	r.want("length", len(r.read(journal)), length)
	a.fill(5, 5, 100*kib)
	r.want("have", b.has(1, 2, 3, 4, 5), []int{2, 3, 4, 5})
	r.want("a", a.audit(), "ok")
	r.want("b", b.audit(), "ok")
}

func rewrite(path, pattern, with string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, regexp.MustCompile(pattern).ReplaceAll(text, []byte(with)), 0o600)
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(f, text)
	return errors.Join(err, f.Close())
}

// P8: of two entries of one key that were stored at the same time without locks, the one
// in the lower slot stays: its writer does not give way to the other, who does.
func TestLowerSlotStays(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	other := r.open("other", mib, hash(7))
	other.put("k", "theirs")
	late := newStall("after rename test/7/0")
	a := r.open("d", mib, hash(7), shared, late.config)
	done := make(chan string)
	go func() { done <- a.put("k", "mine") }()
	<-late.reached
	r.must(os.CopyFS(r.path("d/test/7/1"), os.DirFS(r.path("other/test/7/0"))))
	r.must(os.Chmod(r.path("d/test/7/1"), 0o700))
	close(late.resume)
	r.want("put", <-done, "ok")
	r.want("get", words(a.get("k"), a.Stats().Stores), "mine 1")
}

// P7: the accounts are right however often a process is passed over within one change, and wherever.
func TestPassedOverAgainAndAgain(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 0))
		disk := crashfs.New(nil)
		var other *blobstore.Store
		stops := false // at one operation in 50, and another process goes on meanwhile
		fsys := vfs.Watch(disk, func(string) error {
			if !stops || rng.IntN(50) > 0 {
				return nil
			}
			stops = false
			defer func() { stops = true }()
			list, err := disk.ReadDir("lease/directory")
			if err != nil || len(list) == 0 {
				return err
			}
			most := 0
			for _, e := range list {
				n, _ := strconv.Atoi(e.Name)
				most = max(most, n)
			}
			if _, err := disk.Update(fmt.Sprintf("lease/directory/%d", most+1)); err != nil { // as one who passes over
				return err
			}
			_ = other.Put(background, backend, fmt.Sprint("k", rng.IntN(8)), make([]byte, 10+rng.IntN(9)), 0)
			return other.Prune(background, int64(rng.IntN(4))*small)
		})
		open := func(f vfs.FS) *blobstore.Store {
			s, err := blobstore.Open(background, powerConfig(f, blobstore.Full))
			if err != nil {
				t.Fatal(seed, err)
			}
			return s
		}
		s := open(fsys)
		other = open(disk)
		for range 20 {
			stops = true
			_ = s.Put(background, backend, fmt.Sprint("k", rng.IntN(8)), make([]byte, 10+rng.IntN(9)), 0) // it may be degraded
			stops = false
			for _, s := range []*blobstore.Store{s, other} {
				if err := s.Prune(background, mib); err != nil {
					t.Fatal(seed, err)
				}
				if size, text, files, err := s.Audit(background); err != nil || size != files || text != files {
					t.Fatalf("seed %d: %d bytes, size.txt has %d, the files %d: %v", seed, size, text, files, err)
				}
			}
		}
		if err := errors.Join(s.Close(background), other.Close(background)); err != nil {
			t.Fatal(seed, err)
		}
	}
}
