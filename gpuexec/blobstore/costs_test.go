//go:build unix

package blobstore_test

import (
	"fmt"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// counted makes a store count in c.
func counted(c *tally) option {
	return func(cfg *blobstore.Config) {
		blobstore.SetFS(cfg, func(root string) vfs.FS { c.FS = vfs.Dir(root); return *c })
	}
}

// growth gives what cost counts with few entries and with many, all of them used, and
// their index written.
func growth(t *testing.T, p blobstore.Policy, cost func(r *rig, s *shop, c *tally) int64) (few, many int64) {
	at := func(entries int) int64 {
		r := newRig(t)
		s := r.open("d", int64(entries)*small, policy(p))
		for i := range entries {
			r.want("put", s.put(fmt.Sprintf("k%04d", i), "v"), "ok")
			r.want("get", s.get(fmt.Sprintf("k%04d", i)), "v")
		}
		s.SaveIndex()
		s.shut()
		return cost(r, s, &tally{nil, &atomic.Int64{}})
	}
	return at(50), at(1000)
}

// P7, P16: to look at one entry takes as much whatever the number of those that were
// used, in a store that is only read too; and its uses are all counted.
func TestInspectOfOneReadsLittle(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		few, many := growth(t, blobstore.LRU, func(r *rig, s *shop, c *tally) int64 {
			for range 2 { // another file of uses
				s = r.open("d", 1000*small, policy(blobstore.LRU), counted(c), func(cfg *blobstore.Config) { cfg.ReadOnly = readOnly })
				s.get("k0044")
			}
			c.n.Store(0)
			i, err := s.Inspect(background, "test/"+s.Bucket("k0044")+"/0")
			took := c.n.Load()
			r.must(err)
			want := 1
			if !readOnly {
				want = 2
			}
			r.want("uses", i.Uses, want)
			for key := range 50 {
				i, err := s.Inspect(background, "test/"+s.Bucket(fmt.Sprintf("k%04d", key))+"/0")
				if r.must(err); i.Uses == 0 {
					t.Errorf("no uses of k%04d", key)
				}
			}
			return took
		})
		if t.Logf("read only %t: %d and %d", readOnly, few, many); many > 2*few {
			t.Errorf("read only %t: %d operations with 50 entries, %d with 1,000", readOnly, few, many)
		}
	}
}

// P4, P7: to set an entry aside takes as much whatever the number of entries.
func TestDamagedEntryReadsLittleOfTheIndex(t *testing.T) {
	few, many := growth(t, blobstore.FIFO, func(r *rig, _ *shop, c *tally) int64 {
		s := r.open("d", 1000*small, counted(c))
		entries := s.usage().Entries
		for _, key := range []string{"k0049", "k0020", "k0000"} {
			r.flip(s.kernel(key), -1)
		}
		s.reopen()
		c.n.Store(0)
		r.want("get", s.get("k0049"), "miss reason=checksum")
		took := c.n.Load()
		r.want("get", words(s.get("k0049"), s.get("k0020")), "miss reason=absent miss reason=checksum")
		r.want("put", words(s.put("k0000", "w"), s.put("k0049", "w")), "ok ok") // in its place
		r.must(s.Prune(background, int64(entries-2)*small))
		r.want("victims", words(s.get("k0001"), s.get("k0002")), "miss reason=absent v")
		r.want("audit", words(s.usage().Entries, s.audit()), words(entries-2, "ok"))
		s.reopen()
		r.want("audit", words(s.usage().Entries, s.audit()), words(entries-2, "ok"))
		return took
	})
	if t.Logf("%d and %d", few, many); many > 2*few {
		t.Errorf("%d operations with 50 entries, %d with 1,000", few, many)
	}
}

// R2: explain reads few payloads whatever the number of entries, and nothing at all of
// other entries once one differs in a single factor.
func TestExplainReadsFewPayloads(t *testing.T) {
	for factors, most := range map[int]int64{1: 1, 3: 3} {
		few, many := growth(t, blobstore.FIFO, func(r *rig, _ *shop, _ *tally) int64 {
			opened := &atomic.Int64{}
			s := r.open("d", 1000*small, on(func(f vfs.FS) vfs.FS { return payloadWatch{f, opened} }), func(cfg *blobstore.Config) {
				cfg.Factors = func(_, key string) map[string]string {
					parts := map[string]string{"kind": "k"}
					for i := range factors {
						parts[fmt.Sprint(i)] = key[i*len(key)/factors : (i+1)*len(key)/factors]
					}
					return parts
				}
			})
			e, err := s.Explain(background, backend, "zzzzz")
			r.must(err)
			r.want("nearest", words(len(e.Factors), e.Nearest != ""), words(factors, true))
			if factors > 1 {
				e, err = s.Explain(background, backend, "k0z17") // k00, 1, 7: one factor
				r.must(err)
				r.want("nearest", len(e.Factors) < factors, true)
			}
			return opened.Load()
		})
		if t.Logf("%d factors: %d and %d", factors, few, many); few == 0 || many > 4*most {
			t.Errorf("%d factors: %d payloads read with 50 entries, %d with 1,000", factors, few, many)
		}
	}
}

// payloadWatch counts the files with payloads that are opened.
type payloadWatch struct {
	vfs.FS
	opened *atomic.Int64
}

func (w payloadWatch) Open(name string) (vfs.File, error) {
	if path.Base(name) == "kernel.bin" {
		w.opened.Add(1)
	}
	return w.FS.Open(name)
}

// P4: what Verify gives does not hold the keys of damaged entries in memory: each may
// have a megabyte.
func TestVerifyHoldsNoKeys(t *testing.T) {
	const entries, long = 100, 128 * kib
	r := newRig(t)
	s := r.open("d", 100*mib)
	for i := range entries {
		key := strings.Repeat("k", long) + fmt.Sprint(i)
		r.want("put", s.put(key, "v"), "ok")
		r.flip(s.kernel(key), -1)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	bad, err := s.Verify(background, true)
	grown := heap() - before
	r.want("repaired", words(len(bad), err, s.verify()), words(entries, nil, 0))
	if grown > entries*long/4 {
		t.Errorf("%d bytes are held of keys with %d", grown, entries*long)
	}
	runtime.KeepAlive(bad)
}

// P7: the first store at the capacity after an open takes as much whatever the number of
// entries that were used, by whoever: a writer, one that only read, one that was killed; and
// the victim is the least recently used.
func TestFirstEvictionReadsFewUses(t *testing.T) {
	for who, p := range map[string]blobstore.Policy{"a writer": blobstore.LRU, "a reader": blobstore.Cost, "one that was killed": blobstore.LRU} {
		few, many := firstEviction(t, p, who, 30), firstEviction(t, p, who, 1500)
		if t.Logf("%s: %d and %d", who, few, many); many > few+120 {
			t.Errorf("%s: %d operations with 30 entries, %d with 1,500", who, few, many)
		}
	}
}

func firstEviction(t *testing.T, p blobstore.Policy, who string, entries int) int64 {
	r := newRig(t)
	s := r.open("d", int64(entries)*small, policy(p))
	key := func(i int) string { return fmt.Sprintf("k%04d", i) }
	for i := range entries {
		r.want("put", s.put(key(i), "v", putOptions{cost: 1}), "ok")
	}
	if who != "a writer" {
		s.reopen()
	}
	for i := range entries { // the last but one was used once, the others twice
		s.get(key(entries - 1 - i))
	}
	for i := range entries {
		if i != entries-2 {
			s.get(key(i))
		}
	}
	if who == "one that was killed" { // and another has stored since
		s.FlushUses()
		other := r.open("d", int64(entries)*small, policy(p))
		r.want("put", other.put("other", "v"), "ok")
		r.want("the least used", words(other.get(key(entries-2)), other.get(key(0)), other.get(key(2))), "miss reason=absent v v")
		other.shut()
	} else {
		s.shut()
	}
	n := atomic.Int64{}
	s = r.open("d", int64(entries)*small, policy(p), counted(&tally{nil, &n}))
	n.Store(0)
	r.want("put", s.put("new", "v"), "ok")
	took := n.Load()
	if who == "one that was killed" {
		r.want("put", s.put("more", "v"), "ok")
		r.want("the least recently used", words(s.get(key(0)), s.get(key(1)), s.get(key(2)), s.get(key(3))), "v miss reason=absent v miss reason=absent")
	}
	r.want(words(p, who), s.get(key(entries-2)), "miss reason=absent")
	r.want("entries", words(s.usage().Entries, s.audit()), words(entries, "ok"))
	return took
}

// P7: an open takes as much whatever the number of backends, and what was copied into a
// folder of one by hand is noticed: where they are many, by one of the next opens.
func TestOpenOfManyBackends(t *testing.T) {
	cost := func(backends int) (int64, int) {
		r := newRig(t)
		s := r.open("d", 8*mib)
		for i := range backends {
			r.want("put", s.put("k", "v", putOptions{backend: fmt.Sprintf("backend%03d", i)}), "ok")
		}
		s.SaveIndex()
		s.shut()
		n := atomic.Int64{}
		open := func() *shop { return r.open("d", 8*mib, counted(&tally{nil, &n})) }
		n.Store(0)
		s = open()
		took := n.Load()
		r.want("entries", words(s.usage().Entries, s.audit()), words(backends, "ok"))
		s.shut()
		r.write(r.path("d/backend001/7/0/key.bin"), []byte("by hand"))
		for again := range 2000 {
			s = open()
			if s.usage().Entries == backends+1 {
				return took, again
			}
			s.shut()
		}
		return took, -1
	}
	few, again := cost(3)
	if again != 0 {
		t.Errorf("noticed by open %d", again)
	}
	many, again := cost(300)
	if t.Logf("%d and %d, noticed by open %d", few, many, again); many > few+64 || again < 0 {
		t.Errorf("%d operations with 3 backends, %d with 300", few, many)
	}
}

// P7: the folder of a backend that somebody has added is noticed at once, however many there
// are, on a file system that counts folders.
func TestBackendAddedToMany(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 8*mib)
	for i := range 60 {
		r.want("put", s.put("k", "v", putOptions{backend: fmt.Sprintf("backend%03d", i)}), "ok")
	}
	s.shut()
	before, err := vfs.Dir(r.path("d")).Lstat(".")
	r.must(err)
	r.write(r.path("d/added/7/0/key.bin"), []byte("by hand"))
	after, err := vfs.Dir(r.path("d")).Lstat(".")
	r.must(err)
	if before.Links == after.Links {
		t.Skip("this file system does not count folders")
	}
	s.reopen()
	r.want("entries", s.usage().Entries, 61)
}
