//go:build unix

package blobstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// apart is a file system that cannot sync everything at once.
type apart struct{ vfs.FS }

func (apart) SyncAll() error { return errors.ErrUnsupported }

// P18: alone a store syncs its two files and their folder, then the folders of bucket and
// backend; the root only where the backend's folder is new.
func TestStoredAloneSyncs(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, sync_(blobstore.Full))
	for i, folders := range []int{4, 3, 3} {
		r.io("")
		s.put(fmt.Sprint("files ", i), "v")
		files := r.io("sync")
		if i == 0 {
			s.put("other", "v", putOptions{backend: "other"})
		} else {
			s.put(fmt.Sprint("folders ", i), "v")
		}
		r.want("files, folders", words(files, r.io("syncdir")), words(2, folders))
	}
}

// P10: of many backends some folders are held open; each is closed once.
func TestManyBackendsAreClosedOnce(t *testing.T) {
	twice, left := &atomic.Int64{}, &atomic.Int64{}
	s, err := blobstore.Open(background, powerConfig(closing{crashfs.New(nil), twice, left}, blobstore.Full))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := s.Put(background, fmt.Sprint("b", i%100), fmt.Sprint("k", i), []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if open := left.Load(); open > 40 {
		t.Errorf("%d are open", open)
	}
	if err := s.Close(background); err != nil || twice.Load() > 0 || left.Load() > 0 {
		t.Errorf("%v; %d closed again, %d left open", err, twice.Load(), left.Load())
	}
}

// closing counts what was opened for reading and is closed again, or not.
type closing struct {
	vfs.FS
	twice, left *atomic.Int64
}

func (c closing) Open(name string) (vfs.File, error) {
	f, err := c.FS.Open(name)
	if err != nil {
		return nil, err
	}
	c.left.Add(1)
	return &closingFile{f, c, atomic.Bool{}}, nil
}

type closingFile struct {
	vfs.File
	of     closing
	closed atomic.Bool
}

func (f *closingFile) Close() error {
	if f.closed.Swap(true) {
		f.of.twice.Add(1)
		return nil
	}
	f.of.left.Add(-1)
	return f.File.Close()
}

// P18: stores that wait at the same time share one pass of syncs: one call for the
// whole file system where there is one; else at most four syncs each, and one for
// the folder of the backend. How many wait is a figure.
func TestStoresShareSyncs(t *testing.T) {
	const stores = 9
	for _, c := range []struct {
		name       string
		all, found bool // one call syncs everything; the entries are there, but not on the disk
		files      int64
		folders    int64 // exact where the entries are there; else names may need several passes
	}{
		{"all at once, found", true, true, 2, 4},
		{"each name, found", false, true, 2 * stores, 2*stores + 2*2}, // root and backend in both passes
		{"all at once, new", true, false, 2, 1 + 3*stores},
		{"each name, new", false, false, 2 * stores, 4 * stores},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var files, folders atomic.Int64
				armed, release := atomic.Bool{}, make(chan struct{})
				disk := crashfs.New(func(op string) {
					switch op {
					case "sync":
						files.Add(1)
						if armed.CompareAndSwap(true, false) {
							<-release
						}
					case "syncdir":
						folders.Add(1)
					}
				})
				var fsys vfs.FS = disk
				if !c.all {
					fsys = apart{disk}
				}
				open := func(level blobstore.Durability) *blobstore.Store {
					cfg := powerConfig(fsys, level)
					cfg.Capacity = limit.Of(mib)
					s, err := blobstore.Open(background, cfg)
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				s, lax := open(blobstore.Full), open(blobstore.None)
				files.Store(0) // the first open has synced what tells a store, and its settings
				folders.Store(0)
				var wg sync.WaitGroup
				put := func(s *blobstore.Store, i int) {
					wg.Go(func() {
						if err := s.Put(background, backend, fmt.Sprint(i), make([]byte, kib), 0); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				for i := range stores {
					if c.found {
						put(lax, i)
					}
				}
				armed.Store(true)
				for i := range stores { // the first is in its first sync, the others wait for a pass
					put(s, i)
				}
				if got := s.Stats().Pending; got != stores {
					t.Errorf("%d pending: want %d", got, stores)
				}
				close(release)
				wg.Wait()
				if got := s.Stats().Pending; got != 0 {
					t.Errorf("%d pending at the end", got)
				}
				if got := folders.Load(); files.Load() != c.files || got > c.folders || c.found && got < c.folders {
					t.Errorf("%d syncs of files and %d of folders for %d stores: want %d and %d", files.Load(), got, stores, c.files, c.folders)
				}
				if err := errors.Join(s.Close(background), lax.Close(background)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// P18: a pass that fails fails the stores whose names failed, and no others.
func TestSharedSyncFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, bad := make(chan struct{}), atomic.Bool{}
		armed := atomic.Bool{}
		disk := crashfs.New(func(op string) {
			if op == "sync" && armed.CompareAndSwap(true, false) {
				<-release
			}
		})
		cfg := powerConfig(vfs.Watch(apart{disk}, func(op string) error {
			if op == "sync" && bad.CompareAndSwap(true, false) {
				return errors.New("the disk is broken")
			}
			return nil
		}), blobstore.Full)
		s, err := blobstore.Open(background, cfg)
		if err != nil {
			t.Fatal(err)
		}
		armed.Store(true)
		var wg sync.WaitGroup
		var failed atomic.Int64
		for i := range 4 {
			wg.Go(func() {
				if s.Put(background, backend, fmt.Sprint(i), nil, 0) != nil {
					failed.Add(1)
				}
			})
			synctest.Wait()
		}
		bad.Store(true)
		close(release)
		wg.Wait()
		if failed.Load() != 1 {
			t.Errorf("%d stores failed: want the one whose sync did", failed.Load())
		}
		if err := s.Close(background); err != nil {
			t.Error(err)
		}
	})
}

// P11, P10: what tells that a blob must not be given to a driver again is on the disk
// before the driver is entered: the mark of a process that is in it, and the move of
// an entry that was refused or that ended a process.
func TestPowerLossInADriver(t *testing.T) {
	aborts := func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }
	r := newRig(t)
	open := func(f vfs.FS, o ...option) *blobstore.Store {
		cfg := powerConfig(f, blobstore.None)
		for _, set := range append(o, aborts) {
			set(&cfg)
		}
		s, err := blobstore.Open(background, cfg)
		r.must(err)
		t.Cleanup(func() { r.must(s.Close(background)) })
		return s
	}
	get := func(s *blobstore.Store) (blobstore.Blob, blobstore.Miss) {
		b, miss, err := s.Get(background, backend, "k")
		r.must(err)
		return b, miss
	}
	stored := func() (*crashfs.FS, *blobstore.Store) {
		disk := crashfs.New(nil)
		s := open(disk)
		r.must(s.Put(background, backend, "k", []byte("v"), 0))
		r.must(disk.SyncAll())
		return disk, s
	}
	disk, s := stored()
	b, _ := get(s)
	leave, miss, err := s.Enter(background, backend, b)
	r.want("enter", words(miss, err), "{ } <nil>")
	after := disk.Clone(0, 1, nil)
	leave()
	s = open(after)
	b, _ = get(s)
	_, miss, err = s.Enter(background, backend, b)
	r.want("after power was lost in the driver", words(miss.Reason, err), "quarantined <nil>")
	_, miss = get(open(after.Clone(0, 1, nil)))
	r.want("after power was lost again", miss.Reason, "absent")

	disk, s = stored()
	b, _ = get(s)
	r.must(s.Refuse(background, b))
	_, miss = get(open(disk.Clone(0, 1, nil)))
	r.want("after a refusal", miss.Reason, "absent")

	base := crashfs.New(nil)
	s = open(base)
	r.must(s.Put(background, backend, "k", []byte("v"), 0))
	disk = crashfs.New(nil)
	over := func(disk *crashfs.FS) *blobstore.Store {
		return open(disk, func(c *blobstore.Config) {
			c.Bases = []string{"/base"}
			blobstore.SetFS(c, func(root string) vfs.FS {
				if root == "/base" {
					return base
				}
				return disk
			})
		})
	}
	s = over(disk)
	r.must(disk.SyncAll())
	b, _ = get(s)
	r.must(s.Refuse(background, b))
	_, miss = get(over(disk.Clone(0, 1, nil)))
	r.want("after a refusal of a base's entry", miss.Reason, "absent")
}

// P18, P7: an import stores many entries at a time, which share their syncs, and
// evicts at its end.
func TestImportIsABatch(t *testing.T) {
	const entries = 17
	synctest.Test(t, func(t *testing.T) {
		var archive bytes.Buffer
		open := func(f vfs.FS, most int64, listen func(blobstore.Event)) *blobstore.Store {
			cfg := powerConfig(f, blobstore.Full)
			cfg.Capacity, cfg.Listen = limit.Of(most), listen
			s, err := blobstore.Open(background, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		from := open(crashfs.New(nil), mib, nil)
		for i := range entries {
			if err := from.Put(background, backend, fmt.Sprint(i), nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		_, err := from.Export(background, &archive)
		if err != nil {
			t.Fatal(err)
		}
		text := archive.Bytes()
		files, release := atomic.Int64{}, make(chan struct{})
		files.Store(math.MinInt32) // until it is open
		disk := crashfs.New(func(op string) {
			if op == "sync" && files.Add(1) == 1 {
				<-release
			}
		})
		var told []string
		var mu sync.Mutex
		into := open(disk, (entries-1)*small, func(e blobstore.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, e.Kind)
		})
		files.Store(0)
		done := make(chan struct{})
		var got blobstore.Transfer
		go func() {
			got, err = into.Import(background, bytes.NewReader(text))
			close(done)
		}()
		synctest.Wait() // one entry is in its first sync, the others wait
		close(release)
		<-done
		if err != nil || got.Taken != entries || got.Known != 0 {
			t.Errorf("imported %+v: %v", got, err)
		}
		if n := files.Load(); n != 2 {
			t.Errorf("%d files were synced one by one: want those of the first entry", n)
		}
		if n := slices.Index(told, "evicted"); n != entries || len(told) != entries+1 {
			t.Errorf("told %v: want all that is stored, then what went", told)
		}
		got, err = into.Import(background, bytes.NewReader(text))
		if err != nil || got.Taken != entries || got.Known != entries-1 {
			t.Errorf("again: %+v: %v", got, err)
		}
		if err := errors.Join(from.Close(background), into.Close(background)); err != nil {
			t.Error(err)
		}
	})
}

// P10: a store whose folders are not on the disk fails, whichever of them it is.
func TestFolderSyncFails(t *testing.T) {
	synced := 3 // or more: the bucket, the backend, and what is above it
	for n := 1; n <= synced; n++ {
		at := 0 // syncs of folders so far; below 0 = before the store
		fsys := vfs.Watch(crashfs.New(nil), func(op string) error {
			if op == "syncdir" && at >= 0 {
				if at++; at == n {
					return errors.New("the disk is broken")
				}
			}
			return nil
		})
		at = -1
		s, err := blobstore.Open(background, powerConfig(fsys, blobstore.Full))
		if err != nil {
			t.Fatal(err)
		}
		at = 0
		if err := s.Put(background, backend, "k", nil, 0); err == nil {
			t.Errorf("sync %d of %d of a folder failed, and the store did not", n, at)
		}
		synced = max(synced, at)
		at = -1
		if err := s.Close(background); err != nil {
			t.Error(err)
		}
	}
}

// P10: what is acknowledged survives though somebody has removed the backend's folder by
// hand and a process that syncs nothing has made it again.
func TestBackendMadeAgainByAnother(t *testing.T) {
	disk := crashfs.New(nil)
	open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
		s, err := blobstore.Open(background, powerConfig(f, level))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(background) })
		return s
	}
	s, other := open(disk, blobstore.Full), open(disk, blobstore.None)
	err := errors.Join(s.Put(background, backend, "first", nil, 0),
		other.Put(background, backend, "its first", nil, 0),
		disk.RemoveAll(backend),
		other.Put(background, backend, "another", nil, 0),
		s.Put(background, backend, "k", []byte("v"), 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, miss, err := open(disk.Clone(0, 1, nil), blobstore.Full).Get(background, backend, "k"); err != nil || !miss.None() {
		t.Errorf("what was acknowledged is %v %v", miss, err)
	}
}
