//go:build unix

package blobstore_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// The sizes of the test with processes: small by default, larger with -processes=64
// -build=2s -within=1s.
var (
	processCount = flag.Int("processes", 12, "processes in TestOneBuildOnTheHost")
	buildTime    = flag.Duration("build", 500*time.Millisecond, "how long a build takes there")
	within       = flag.Duration("within", 0, "how much longer than one process they may take, 0 as long as it takes")
)

// powerConfig is a store on a file system that can lose power.
func powerConfig(f vfs.FS, level blobstore.Durability) blobstore.Config {
	cfg := blobstore.Config{
		Dir: "/crashfs", Capacity: limit.Of(4 * small), Durability: level,
		Identity: func(string) gpuexec.Identity { return defaultIdentity() },
	}
	blobstore.SetFS(&cfg, func(string) vfs.FS { return f })
	return cfg
}

// P9, P10: power is lost after every single operation, keeping none, half and
// all of what was not synced: every state opens, no payload is ever wrong, and
// with full every acknowledged entry is there.
func TestPowerLoss(t *testing.T) {
	for _, level := range []blobstore.Durability{blobstore.None, blobstore.File, blobstore.Full} {
		t.Run(string(level), func(t *testing.T) {
			var disk *crashfs.FS
			var acknowledged []string
			states, recovered := 0, 0
			check := func(op string) {
				for _, keep := range []float64{0, 0.5, 0.5, 0.5, 1} {
					states++
					clone := disk.Clone(keep, uint64(states), nil)
					s, err := blobstore.Open(background, powerConfig(clone, level))
					if err != nil {
						t.Fatalf("after %s %d keeping %v: %v", op, states, keep, err)
					}
					for i := range 12 {
						key := fmt.Sprintf("k%d", i)
						b, miss, err := s.Get(background, backend, key)
						switch {
						case err != nil:
							t.Fatal(err)
						case miss.None() && string(b.Payload) != string(payload("v"+key[1:], 300)):
							t.Fatalf("after %s %d keeping %v: a wrong payload for %s: %q", op, states, keep, key, b.Payload)
						case miss.None():
							recovered++
						case level != blobstore.None && miss.Reason != "absent" && (level == blobstore.Full || miss.Reason != "truncated"):
							t.Errorf("after %s %d keeping %v: %s is %v: want whole or not there", op, states, keep, key, miss)
						}
						if level == blobstore.Full && !miss.None() && strings.Contains(strings.Join(acknowledged, " ")+" ", key+" ") {
							t.Errorf("after %s %d keeping %v: %s was acknowledged and is gone: %v", op, states, keep, key, miss)
						}
					}
					if size, text, files, err := s.Audit(background); err != nil || size != files || text != files {
						t.Errorf("after %s %d keeping %v: accounts of %d and %d bytes, files of %d: %v", op, states, keep, size, text, files, err)
					}
					u, err := s.Usage(background)
					if err != nil || u.DiskBytes > 4*small {
						t.Errorf("after %s: %+v %v", op, u, err)
					}
					if err := s.Close(background); err != nil {
						t.Error(err)
					}
				}
			}
			disk = crashfs.New(check)
			s, err := blobstore.Open(background, powerConfig(disk, level))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 6 {
				if i >= 4 { // evicts the oldest, which is then allowed to be gone
					acknowledged = acknowledged[1:]
				}
				key := fmt.Sprintf("k%d", i)
				if err := s.Put(background, backend, key, payload("v"+key[1:], 300), time.Second); err != nil {
					t.Fatal(err)
				}
				acknowledged = append(acknowledged, key)
			}
			if err := s.Close(background); err != nil {
				t.Error(err)
			}
			if states < 300 || recovered == 0 {
				t.Errorf("%d states with %d entries: the test has lost its bite", states, recovered)
			}
		})
	}
}

// P8: cold on one key: one build on the host.
func TestOneBuildOnTheHost(t *testing.T) {
	r := newRig(t)
	log := r.path("runs")
	build := func(processes int, key string) time.Duration {
		begin := time.Now()
		var wg sync.WaitGroup
		for range processes {
			cmd := r.child("build", r.path("d"), fmt.Sprint(mib), key, "v", buildTime.String(), log+key)
			wg.Go(func() {
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return time.Since(begin)
	}
	one, all := build(1, "one"), build(*processCount, "k")
	t.Logf("one process %v, %d processes %v, for a build of %v", one, *processCount, all, *buildTime)
	if *within > 0 && all-one > *within {
		t.Errorf("%v longer than one process, want at most %v", all-one, *within)
	}
	r.want("builds", strings.Count(string(r.read(log+"k")), "\n"), 1)
	r.want("get", r.open("d", mib).get("k"), "v")
}

// P8: a builder that is killed is replaced at once, one that stands still within
// the lease time; its late publish is harmless.
func TestBuilderIsReplaced(t *testing.T) {
	for _, signal := range []string{"kill", "stop"} {
		t.Run(signal, func(t *testing.T) {
			r := newRig(t)
			log, built := r.path("runs"), r.path("built")
			s := r.open("d", mib, func(c *blobstore.Config) { c.Lease = time.Second })
			cmd := r.child("build", r.path("d"), fmt.Sprint(mib), "k", "late", built, log)
			defer func() { _ = cmd.Process.Kill() }() // should the test end before it does
			r.eventually("the child builds", func() bool { return r.exists(log) })
			if signal == "kill" {
				r.must(cmd.Process.Kill())
			} else {
				r.must(cmd.Process.Signal(syscall.SIGSTOP))
			}
			_, c, miss, err := s.Obtain(background, backend, "k")
			r.want("obtain", words(miss.Reason, err, c != nil), "absent <nil> true")
			r.want("leases", len(r.names("d/lease/key")), 1)
			r.must(c.Save(background, []byte("mine"), time.Second))
			r.write(built, nil)
			if signal == "stop" {
				r.must(cmd.Process.Signal(syscall.SIGCONT))
			}
			if err := cmd.Wait(); (err == nil) != (signal == "stop") {
				t.Error(err)
			}
			r.want("get", s.get("k"), "mine")
			r.want("entries", s.usage().Entries, 1)
			r.want("audit", s.audit(), "ok")
		})
	}
}

// P8: a build that hangs while its process lives is given up after Config.LongestBuild.
func TestBuilderHangs(t *testing.T) {
	r := newRig(t)
	brief := func(c *blobstore.Config) { c.Lease, c.LongestBuild = 200*time.Millisecond, time.Millisecond }
	a, b := r.open("d", mib, brief), r.open("d", mib)
	_, hangs, _, err := a.Obtain(background, backend, "k")
	r.must(err)
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	_, c, miss, err := b.Obtain(ctx, backend, "k")
	r.want("obtain", words(miss.Reason, err, c != nil), "absent <nil> true")
	r.must(c.Save(background, []byte("mine"), time.Second))
	r.must(hangs.Save(background, []byte("late"), time.Second))
	r.want("get", words(a.get("k"), b.get("k"), b.usage().Entries), "mine mine 1")
}

// P7, P8: a holder of the directory lock that stands still is passed over, and
// counts again when it wakes up.
func TestLockIsPassedOver(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 60*kib, func(c *blobstore.Config) { c.Lease = 300 * time.Millisecond })
	s.put("k0", "v0")
	for range 2 {
		cmd := r.child("puts", r.path("d"), words(60*kib), "0", "300", "5000")
		r.eventually("the child stores", func() bool { return s.usage().Entries > 3 })
		r.must(cmd.Process.Signal(syscall.SIGSTOP))
		begin := time.Now()
		for i := range 5 {
			r.want("put", s.put(fmt.Sprintf("mine%d", i), "v", putOptions{bytes: 5000}), "ok")
		}
		r.want("in time", time.Since(begin) < 5*time.Second, true)
		r.must(cmd.Process.Signal(syscall.SIGCONT))
		r.must(cmd.Wait())
		r.want("size", s.usage().DiskBytes <= 60*kib, true)
		r.want("audit", s.audit(), "ok")
		r.want("verify", s.verify(), 0)
	}
}

// P10, P5: with full, what was acknowledged is there after a power loss, though
// the folders on its way were removed and made again while the store was open.
func TestPowerLossAfterRemoval(t *testing.T) {
	now := time.Now()
	open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
		cfg := powerConfig(f, level)
		cfg.Now = func() time.Time { return now }
		s, err := blobstore.Open(background, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(background) })
		return s
	}
	for name, remove := range map[string]func(disk *crashfs.FS, s *blobstore.Store) error{
		"the backend's folder": func(disk *crashfs.FS, _ *blobstore.Store) error { return disk.RemoveAll(backend) },
		"everything": func(disk *crashfs.FS, s *blobstore.Store) error {
			err := empty(disk)
			if s.Put(background, backend, "refused", nil, 0) == nil {
				return errors.New("stored where nothing is")
			}
			now = now.Add(10 * time.Minute)
			return err
		},
		"everything, and somebody was there": func(disk *crashfs.FS, _ *blobstore.Store) error {
			return errors.Join(empty(disk), open(disk, blobstore.None).Put(background, backend, "another", nil, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := crashfs.New(nil)
			s := open(disk, blobstore.Full)
			err := s.Put(background, backend, "first", nil, 0)
			err = errors.Join(err, remove(disk, s), s.Put(background, backend, "k", []byte("v"), 0))
			if err != nil {
				t.Fatal(err)
			}
			if _, miss, err := open(disk.Clone(0, 1, nil), blobstore.Full).Get(background, backend, "k"); err != nil || !miss.None() {
				t.Errorf("what was acknowledged is %v %v", miss, err)
			}
		})
	}
}

// empty removes whatever a file system holds.
func empty(f vfs.FS) error {
	list, err := f.ReadDir(".")
	for _, info := range list {
		err = errors.Join(err, f.RemoveAll(info.Name))
	}
	return err
}

// P10: a put with full that finds an entry acknowledges one that is on the disk,
// whoever stored it: here a store that syncs nothing.
func TestFoundIsDurable(t *testing.T) {
	r := newRig(t)
	disk := crashfs.New(nil)
	open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
		s, err := blobstore.Open(background, powerConfig(f, level))
		r.must(err)
		t.Cleanup(func() { r.must(s.Close(background)) })
		return s
	}
	lax, strict := open(disk, blobstore.None), open(disk, blobstore.Full)
	r.must(lax.Put(background, backend, "k", []byte("v"), 0))
	r.must(lax.Put(background, backend, "lost", []byte("v"), 0))
	r.must(strict.Put(background, backend, "k", []byte("w"), 0))
	after := open(disk.Clone(0, 1, nil), blobstore.Full)
	b, miss, err := after.Get(background, backend, "k")
	r.want("acknowledged", words(string(b.Payload), miss.Reason, err), "v  <nil>")
	_, miss, err = after.Get(background, backend, "lost")
	r.want("not acknowledged", words(miss.None(), err), "false <nil>")
	synced := 0
	counted := open(vfs.Watch(disk, func(op string) error {
		if strings.HasPrefix(op, "sync") {
			synced++
		}
		return nil
	}), blobstore.Full)
	for range 3 {
		r.must(counted.Put(background, backend, "k", []byte("w"), 0))
	}
	r.want("syncs of three puts", synced, 6)
}

// P10: with file, too, an entry that a put finds is as durable as one that it writes: where
// its names outlive a loss of power its files are whole, and they are synced once.
func TestFoundHasWholeFiles(t *testing.T) {
	r := newRig(t)
	disk := crashfs.New(nil)
	syncs := 0
	open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
		s, err := blobstore.Open(background, powerConfig(vfs.Watch(f, func(op string) error {
			if strings.HasPrefix(op, "sync") {
				syncs++
			}
			return nil
		}), level))
		r.must(err)
		t.Cleanup(func() { r.must(s.Close(background)) })
		return s
	}
	lax, file := open(disk, blobstore.None), open(disk, blobstore.File)
	r.must(lax.Put(background, backend, "k", []byte("v"), 0))
	syncs = 0
	for range 3 {
		r.must(file.Put(background, backend, "k", []byte("w"), 0))
	}
	r.want("syncs of three puts", syncs, 2)
	r.must(file.Put(background, backend, "own", []byte("v"), 0))
	syncs = 0
	r.must(file.Put(background, backend, "own", []byte("w"), 0))
	r.want("syncs of one's own", syncs, 0)
	bucket := backend + "/" + file.Bucket("k")
	for _, folder := range []string{".", backend, bucket, bucket + "/0"} { // as the system does it some time
		r.must(disk.SyncDir(folder))
	}
	b, miss, err := open(disk.Clone(0, 1, nil), blobstore.File).Get(background, backend, "k")
	r.want("after a loss of power", words(string(b.Payload), miss.Reason, err), "v  <nil>")
}

// P10: a put whose last syncs failed is no success, and the next one of the key, which
// finds the entry, makes them again.
func TestSyncIsMadeAgain(t *testing.T) {
	r := newRig(t)
	disk := crashfs.New(nil)
	now, renamed, broken := time.Now(), false, true
	cfg := powerConfig(apart{vfs.Watch(disk, func(op string) error {
		renamed = renamed || op == "rename"
		if broken && renamed && op == "syncdir" { // the entry has its place by then
			return syscall.EIO
		}
		return nil
	})}, blobstore.Full)
	cfg.Now = func() time.Time { return now }
	s, err := blobstore.Open(background, cfg)
	r.must(err)
	defer s.Close(background)
	renamed = false
	r.want("put", said(s.Put(background, backend, "k", []byte("v"), 0)), "refused reason=degraded")
	broken = false
	now = now.Add(10 * time.Minute)
	r.must(s.Put(background, backend, "k", []byte("w"), 0))
	r.want("stored once", s.Stats().Stores, 1)
	after, err := blobstore.Open(background, powerConfig(disk.Clone(0, 1, nil), blobstore.Full))
	r.must(err)
	defer after.Close(background)
	b, miss, err := after.Get(background, backend, "k")
	r.want("after a loss of power", words(string(b.Payload), miss.Reason, err), "v  <nil>")
}

// P10: a put that finds an entry which cannot be synced is no success.
func TestFoundThatCannotBeSynced(t *testing.T) {
	r := newRig(t)
	r.open("d", mib).put("k", "v") // by a store that syncs nothing
	s := r.open("d", mib, sync_(blobstore.Full))
	for _, op := range []string{"sync", "syncdir"} {
		r.fault(op, syscall.EIO)
		r.want(op+" fails", s.put("k", "w"), "refused reason=degraded")
		r.heal()
	}
	r.want("synced, stores", words(s.put("k", "w"), s.Stats().Stores), "ok 0")
}

// P10: that a file system cannot sync folders is no fault; that it cannot sync a file is one.
func TestFileThatCannotBeSynced(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, sync_(blobstore.Full))
	r.fault("sync", syscall.EINVAL)
	r.want("a file", s.put("k", "v"), "refused reason=degraded")
	r.heal()
	r.clock(10 * time.Minute)
	r.fault("syncdir", syscall.EINVAL)
	r.want("a folder", s.put("k", "v"), "ok")
}

// P10: an entry that was evicted, and stored again from an archive by a store that syncs
// nothing, is synced again, though this process has synced the same bytes before.
func TestFoundAgainIsDurable(t *testing.T) {
	r := newRig(t)
	disk := crashfs.New(nil)
	open := func(f vfs.FS, level blobstore.Durability) *blobstore.Store {
		s, err := blobstore.Open(background, powerConfig(f, level))
		r.must(err)
		t.Cleanup(func() { r.must(s.Close(background)) })
		return s
	}
	lax, strict := open(disk, blobstore.None), open(disk, blobstore.Full)
	for _, own := range []bool{true, false} { // it has stored the entry, and found it
		r.must(strict.Put(background, backend, "k", []byte("v"), 0))
		var archive bytes.Buffer
		_, err := lax.Export(background, &archive)
		r.must(errors.Join(err, lax.Prune(background, 0)))
		r.must(disk.SyncAll())
		_, err = lax.Import(background, &archive)
		r.must(err)
		r.must(strict.Put(background, backend, "k", []byte("w"), 0))
		b, miss, err := open(disk.Clone(0, 1, nil), blobstore.Full).Get(background, backend, "k")
		r.want(words("stored", own), words(string(b.Payload), miss.Reason, err), "v  <nil>")
	}
}
