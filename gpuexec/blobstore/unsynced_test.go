//go:build unix

package blobstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// broken is a disk whose call that syncs everything fails, and syncs nothing.
type broken struct{ vfs.FS }

func (broken) SyncAll() error { return &vfs.Fault{Op: "sync", Err: syscall.EIO} }

// P10, P18: where the call that syncs everything fails each name is synced, whatever the
// error was.
func TestSyncOfEverythingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		armed, release := false, make(chan struct{})
		disk := crashfs.New(func(op string) {
			if op == "sync" && armed {
				armed = false
				<-release
			}
		})
		cfg := powerConfig(broken{disk}, blobstore.Full)
		cfg.Capacity = limit.Of(mib)
		s, err := blobstore.Open(background, cfg)
		if err != nil {
			t.Fatal(err)
		}
		armed = true
		var wg sync.WaitGroup
		for i := range 4 { // the first is in its first sync, the others wait for a pass
			wg.Go(func() {
				if err := s.Put(background, backend, fmt.Sprint(i), []byte("v"), 0); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(release)
		wg.Wait()
		cfg = powerConfig(disk.Clone(0, 1, nil), blobstore.Full)
		cfg.Capacity = limit.Of(mib)
		after, err := blobstore.Open(background, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := after.Usage(background); err != nil || u.Entries != 4 {
			t.Errorf("after power was lost: %d of 4 entries, %v", u.Entries, err)
		}
		if err := errors.Join(s.Close(background), after.Close(background)); err != nil {
			t.Error(err)
		}
	})
}

// reluctant is a file system whose files of kernels cannot be closed without an error, as
// one that writes when they are closed and has no room.
type reluctant struct{ vfs.FS }

type reluctantFile struct{ vfs.File }

func (f reluctant) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	if err == nil && path.Base(name) == "kernel.bin" {
		file = reluctantFile{file}
	}
	return file, err
}

func (f reluctantFile) Close() error {
	return errors.Join(f.File.Close(), &vfs.Fault{Op: "close", Err: syscall.EDQUOT})
}

// P10: an entry whose file tells only when it is closed that it was not written is not
// acknowledged.
func TestKernelThatCannotBeClosed(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return reluctant{f} }))
	r.want("put", words(s.put("k", "v"), s.usage().Entries), "refused reason=degraded 0")
}

// P10, P11: an entry that a driver refused is on the disk in quarantine/ when the call
// returns, and not only kept from drivers by the list.
func TestPowerLossAfterRefusedEntryMoved(t *testing.T) {
	r := newRig(t)
	disk := crashfs.New(nil)
	open := func(f vfs.FS) *shop {
		cfg := powerConfig(f, blobstore.None)
		cfg.Capacity = limit.Of(mib)
		abortsAll(&cfg)
		s := &shop{r: r, cfg: cfg}
		s.reopen()
		t.Cleanup(s.shut)
		return s
	}
	s := open(disk)
	r.want("put", s.put("k", "v"), "ok")
	r.must(disk.SyncAll())
	r.must(s.Refuse(background, s.blob("k")))
	u := open(disk.Clone(0, 1, nil)).usage()
	r.want("entries, and set aside", words(u.Entries, u.Quarantined), "0 1")
}

// P9, P11: what a mark says of its entry is on the disk as well as its name, so that a sweep
// after a loss of power in a driver can tell that the entry is gone.
func TestPowerLossKeepsTheNoteOfAMark(t *testing.T) {
	r := newRig(t)
	disk := crashfs.New(nil)
	open := func(f vfs.FS) *shop {
		cfg := powerConfig(f, blobstore.None)
		abortsAll(&cfg)
		s := &shop{r: r, cfg: cfg}
		s.reopen()
		return s
	}
	s := open(disk)
	defer s.shut()
	r.want("put", s.put("k", "v"), "ok")
	r.must(disk.SyncAll())
	leave, _, err := s.Enter(background, backend, s.blob("k"))
	r.must(err)
	disk = disk.Clone(0, 1, nil)
	leave()
	marks := func() int {
		list, err := disk.ReadDir("mark")
		r.must(err)
		return len(list)
	}
	s2 := open(disk)
	defer func() { s2.shut() }()
	r.want("marks", marks(), 1)
	r.must(s2.Prune(background, 0))
	s2.reopen()
	r.want("marks, when the entry is gone", marks(), 0)
}

// P10, P11: the mark of a driver that died stays where the list that has its blob is gone
// before it is synced.
func TestMarkStaysWhereTheListIsGone(t *testing.T) {
	r := newRig(t)
	var fails func(op, name string) bool
	s := r.open("d", mib, abortsAll, r.troubled(&fails))
	r.want("put", s.put("k", "v"), "ok")
	s.diesOn(s.blob("k"))
	r.must(s.Prune(background, 0))
	fails = func(op, name string) bool {
		if op == "syncdir" && name == "lease" {
			r.must(os.Remove(r.path("d/lease/refused")))
		}
		return false
	}
	s.reopen()
	r.want("marks", len(r.names("d/mark")), 1)
	fails = nil
	s.reopen()
	r.want("marks, later", len(r.names("d/mark")), 0)
}

// P10, P11: where power is lost while the list of what was refused is halved there is the
// one before or the one after.
func TestPowerLossWhileRefusalsAreHalved(t *testing.T) {
	const most = 4096
	r := newRig(t)
	var disk *crashfs.FS
	var states []*crashfs.FS
	armed := false
	disk = crashfs.New(func(op string) {
		for seed := uint64(0); armed && op != "write" && seed < 8; seed++ {
			states = append(states, disk.Clone(0.5, seed, nil))
		}
	})
	s := &shop{r: r, cfg: powerConfig(disk, blobstore.None)}
	s.reopen()
	defer s.shut()
	r.want("put", s.put("k", "v"), "ok")
	var text []byte
	for i := range most {
		text = fmt.Appendf(text, "%064x\n", i)
	}
	r.must(vfs.WriteNew(disk, "lease/refused", true, text))
	r.must(disk.SyncAll())
	armed = true
	r.must(s.Refuse(background, s.blob("k")))
	armed = false
	torn, halves := 0, 0
	for _, state := range states {
		kept, err := vfs.ReadFile(state, "lease/refused", mib)
		r.must(err)
		if !bytes.Contains(kept, text[len(text)/2+len(text)/most:]) {
			torn++
		}
		if len(kept) < len(text) {
			halves++
		}
	}
	r.want(words("of", len(states), "states are torn"), torn, 0)
	r.want("some are of the half", halves > 0, true)
}

// P9: what was evicted is removed only when its move is on the disk: else a loss of power
// could bring an entry back without its files.
func TestEvictedStaysUntilItsMoveIsSynced(t *testing.T) {
	r := newRig(t)
	var fails func(op, name string) bool
	s := r.open("d", mib, sync_(blobstore.File), r.troubled(&fails))
	s.fill(1, 3, 10)
	fails = func(op, name string) bool { return op == "syncdir" && name == "tmp" }
	r.want("prune", words(s.Prune(background, small), s.usage().Entries), "<nil> 1")
	r.want("in tmp/", len(r.names("d/tmp")), 2)
}

// P7, P10, P11: what a sweep gives back, since a process was killed before it did, is on the
// disk before what it was taken from goes.
func TestPowerLossAfterASweepGaveBack(t *testing.T) {
	dead := strings.Repeat("0", 24) + "00000001"
	refused := fmt.Sprintf("%064x\n", 7)
	for name, c := range map[string]struct{ left, there, back string }{
		"settings": {blobstore.Sealed("capacity 400000\ndraft another 1\ngiven 2 0\n"), blobstore.Sealed("capacity 200000\ndraft " + dead + ".settings 0\ngiven 1 0\n"), "capacity 400000\n"},
		"refused":  {refused, fmt.Sprintf("%064x\n", 6), refused},
	} {
		r := newRig(t)
		disk := crashfs.New(nil)
		open := func() *shop {
			s := &shop{r: r, cfg: powerConfig(disk, blobstore.None)}
			byDefault(&s.cfg)
			s.reopen()
			return s
		}
		open().shut()
		r.must(disk.RemoveAll("lease/" + name))
		r.must(vfs.WriteNew(disk, "lease/"+name, true, []byte(c.there)))
		r.must(vfs.WriteNew(disk, "tmp/"+dead+"."+name, true, []byte(c.left)))
		r.must(vfs.WriteNew(disk, "lease/owner/"+dead, false))
		r.must(disk.SyncAll())
		s := open()
		text, err := vfs.ReadFile(disk.Clone(0, 1, nil), "lease/"+name, kib)
		r.want(name, words(strings.Contains(string(text), c.back), err), "true <nil>")
		left, err := disk.ReadDir("tmp")
		r.want("left", words(len(left), err), "0 <nil>")
		s.shut()
	}
}

// after is a file system that calls then when the root was synced.
type after struct {
	vfs.FS
	then *func()
}

func (f after) SyncDir(name string) error {
	err := f.FS.SyncDir(name)
	if then := *f.then; name == "." && then != nil {
		*f.then = nil
		then()
	}
	return err
}

// P10: the name of a backend's folder is synced again where another process has made the
// folder anew while it was synced.
func TestBackendMadeAgainDuringASync(t *testing.T) {
	disk := crashfs.New(nil)
	var then func()
	open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
		s, err := blobstore.Open(background, powerConfig(f, level))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(background) })
		return s
	}
	s, other := open(after{disk, &then}, blobstore.Full), open(disk, blobstore.None)
	then = func() {
		if err := errors.Join(disk.RemoveAll(backend), other.Put(background, backend, "another", nil, 0)); err != nil {
			t.Error(err)
		}
	}
	err := errors.Join(s.Put(background, backend, "first", nil, 0), s.Put(background, backend, "k", []byte("v"), 0))
	if err != nil || then != nil {
		t.Fatal(err, then == nil)
	}
	if _, miss, err := open(disk.Clone(0, 1, nil), blobstore.Full).Get(background, backend, "k"); err != nil || !miss.None() {
		t.Errorf("what was acknowledged is %v %v", miss, err)
	}
}
