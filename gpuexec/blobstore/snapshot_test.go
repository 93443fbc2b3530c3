//go:build unix

package blobstore_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// tally counts operations, names that were listed, and KiB that were read or written.
type tally struct {
	vfs.FS
	n *atomic.Int64
}

type talliedFile struct {
	vfs.File
	c tally
}

func (f talliedFile) ReadAt(p []byte, at int64) (int, error) {
	f.c.did(1 + len(p)/kib)
	return f.File.ReadAt(p, at)
}

func (f talliedFile) WriteAt(p []byte, at int64) (int, error) {
	f.c.did(1 + len(p)/kib)
	return f.File.WriteAt(p, at)
}

func (c tally) did(n int) { c.n.Add(int64(n)) }

func (c tally) opened(f vfs.File, err error) (vfs.File, error) {
	if c.did(1); err != nil {
		return nil, err
	}
	return talliedFile{f, c}, nil
}

func (c tally) Open(name string) (vfs.File, error)   { return c.opened(c.FS.Open(name)) }
func (c tally) Create(name string) (vfs.File, error) { return c.opened(c.FS.Create(name)) }
func (c tally) Update(name string) (vfs.File, error) { return c.opened(c.FS.Update(name)) }
func (c tally) Lstat(name string) (vfs.Info, error)  { c.did(1); return c.FS.Lstat(name) }
func (c tally) Mkdir(name string) error              { c.did(1); return c.FS.Mkdir(name) }
func (c tally) Rename(from, to string) error         { c.did(1); return c.FS.Rename(from, to) }
func (c tally) Remove(name string) error             { c.did(1); return c.FS.Remove(name) }
func (c tally) RemoveAll(name string) error          { c.did(1); return c.FS.RemoveAll(name) }
func (c tally) ReadDir(name string) ([]vfs.Info, error) {
	list, err := c.FS.ReadDir(name)
	c.did(1 + len(list))
	return list, err
}

// P7: opening, storing at the capacity, looking at an entry and closing take no more
// operations on the file system, and read and write no more, where there are thirty
// times as many entries, whoever closed before or was killed.
func TestCostsOfManyEntries(t *testing.T) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU, blobstore.Cost} {
		few, many := costs(t, p, 30), costs(t, p, 900)
		for i := range few {
			if many[i] > few[i]+20+16 { // KiB that are read of the index
				t.Errorf("%s: %v operations for 30 entries, %v for 900", p, few, many)
				break
			}
		}
	}
}

// P4: repairing takes as much for each damaged entry, however many there are, reads each
// once, and does not look at all that was set aside in each turn.
func TestRepairIsLinear(t *testing.T) {
	blobstore.HoldLong(t)
	each := func(entries int) float64 {
		r := newRig(t)
		c := tally{nil, &atomic.Int64{}}
		s := r.open("d", mib*100, func(cfg *blobstore.Config) {
			blobstore.SetFS(cfg, func(root string) vfs.FS { c.FS = vfs.Dir(root); return c })
		})
		for i := range entries {
			key := fmt.Sprintf("k%03d", i)
			r.want("put", s.put(key, "v"), "ok")
			r.flip(s.kernel(key), -1)
		}
		c.n.Store(0)
		bad, err := s.Verify(background, true)
		r.want("repaired", words(len(bad), err, s.usage().Entries), words(entries, nil, 0))
		return float64(c.n.Load()) / float64(entries)
	}
	if few, many := each(30), each(300); many > 1.2*few || many > 34 {
		t.Errorf("%.1f operations for each of 30 entries, %.1f for each of 300", few, many)
	}
}

func costs(t *testing.T, p blobstore.Policy, entries int) (took []int64) {
	r := newRig(t)
	c := tally{nil, &atomic.Int64{}}
	counted := func(cfg *blobstore.Config) {
		blobstore.SetFS(cfg, func(root string) vfs.FS { c.FS = vfs.Dir(root); return c })
	}
	filled := r.open("d", int64(entries)*small, policy(p))
	for i := range entries {
		r.want("put", filled.put(fmt.Sprintf("k%03d", i), "v", putOptions{cost: float64(i*7%entries + 1)}), "ok")
	}
	filled.SaveIndex() // as if the journal were long
	step := func(do func()) {
		c.n.Store(0)
		do()
		took = append(took, c.n.Load())
	}
	var s *shop
	open := func() { s = r.open("d", int64(entries)*small, policy(p), counted) }
	put := func(i int) func() {
		return func() {
			r.want("put", s.put(fmt.Sprintf("n%03d", i), "v", putOptions{cost: float64(2 * entries)}), "ok")
		}
	}
	step(open) // another process goes on
	step(put(1))
	step(put(2))
	step(s.shut)
	filled.shut()
	step(open)
	step(func() {
		_, err := s.Inspect(background, "test/"+s.Bucket("n001")+"/0")
		r.must(err)
	})
	step(put(3))
	step(s.shut)
	step(open)
	r.want("kept", words(s.usage().Entries, s.audit()), words(entries, "ok"))
	return took
}

// P7: the victims are those of the policy, though the index was written under another; and
// then it is written in the order of this one.
func TestIndexOfAnotherPolicy(t *testing.T) {
	const entries = 400
	r := newRig(t)
	c := tally{nil, &atomic.Int64{}}
	s := r.open("d", entries*small, func(cfg *blobstore.Config) {
		blobstore.SetFS(cfg, func(root string) vfs.FS { c.FS = vfs.Dir(root); return c })
	})
	for i := range entries { // the last cost least
		r.want("put", s.put(fmt.Sprintf("k%03d", i), "v", putOptions{cost: float64(entries - i)}), "ok")
	}
	s.SaveIndex()
	for i, gone := range []string{"k399", "k398", "k000", "k001"} {
		s.cfg.Policy = []blobstore.Policy{blobstore.Cost, blobstore.FIFO}[i/2]
		s.reopen()
		c.n.Store(0)
		r.must(s.Prune(background, int64(entries-1-i)*small))
		if n := c.n.Load(); i%2 > 0 && n > 80 {
			t.Errorf("%s: %d operations, once the index was written anew", s.cfg.Policy, n)
		}
		r.want(words(s.cfg.Policy, gone), words(s.get(gone), s.usage().Entries), words("miss reason=absent", entries-1-i))
	}
	r.want("audit", words(s.usage().Entries, s.audit()), words(entries-4, "ok"))
}

// P7: who has opened, and changed nothing until the journal was followed by another,
// takes the index that goes with that.
func TestIndexIsReadLate(t *testing.T) {
	r := newRig(t)
	c := tally{nil, &atomic.Int64{}}
	a := r.open("d", 8*mib)
	for i := range 300 {
		r.want("put", a.put(words(i), "v"), "ok")
	}
	a.reopen()
	s := r.open("d", 8*mib, func(cfg *blobstore.Config) {
		blobstore.SetFS(cfg, func(root string) vfs.FS { c.FS = vfs.Dir(root); return c })
	})
	change := "b\n" + blobstore.JournalEnd
	r.must(appendTo(r.path("d/lease/journal"), strings.Repeat(change, mib/len(change))))
	r.want("put", a.put("long", "v"), "ok")
	c.n.Store(0)
	r.want("put", s.put("late", "v"), "ok")
	if n := c.n.Load(); n > 80 { // a dozen of them look the place up in the table
		t.Errorf("%d operations", n)
	}
	r.want("audit", words(s.usage().Entries, s.audit()), "302 ok")
}

// P7: a snapshot that does not go with the directory is noticed, and costs a listing.
func TestSnapshotIsAHint(t *testing.T) {
	index := "d/lease/index"
	var old []byte
	for name, c := range map[string]struct {
		damage  func(r *rig, s *shop)
		entries int
	}{
		"gone":        {func(r *rig, _ *shop) { r.must(os.Remove(r.path(index))) }, 5},
		"empty":       {func(r *rig, _ *shop) { r.write(r.path(index), nil) }, 5},
		"a head only": {func(r *rig, _ *shop) { r.must(os.Truncate(r.path(index), 200)) }, 5},
		"cut":         {func(r *rig, _ *shop) { r.must(os.Truncate(r.path(index), 300)) }, 5},
		"a bit":       {func(r *rig, _ *shop) { r.flip(r.path(index), -30) }, 5},
		"a folder":    {func(r *rig, _ *shop) { r.must(os.Remove(r.path(index))); r.must(os.Mkdir(r.path(index), 0o700)) }, 5},
		"a long line": {func(r *rig, _ *shop) { r.write(r.path(index), []byte(strings.Repeat("index 1 ", 1e6))) }, 5},
		"of before":   {func(r *rig, _ *shop) { r.write(r.path(index), old) }, 5},
		"another journal": {func(r *rig, _ *shop) {
			r.write(r.path("new"), r.read(r.path("d/lease/journal")))
			r.must(os.Rename(r.path("new"), r.path("d/lease/journal")))
		}, 5},
		"no journal":      {func(r *rig, _ *shop) { r.must(os.Remove(r.path("d/lease/journal"))) }, 5},
		"removed by hand": {func(r *rig, s *shop) { r.must(os.RemoveAll(r.path("d/test/" + s.Bucket("k2")))) }, 4},
		"and size.txt":    {func(r *rig, s *shop) { r.must(os.RemoveAll(s.place("k2"))); r.must(os.Remove(r.path("d/size.txt"))) }, 4},
		"a wrong size":    {func(r *rig, s *shop) { r.must(os.RemoveAll(s.place("k2"))); r.write(r.path("d/size.txt"), []byte("7")) }, 4},
	} {
		for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU} {
			t.Run(name+" "+string(p), func(t *testing.T) {
				r := newRig(t)
				s := r.open("d", mib, policy(p))
				old = r.read(r.path(index))
				s.fill(1, 5, 1000)
				s.SaveIndex()
				s.shut()
				c.damage(r, s)
				s = r.open("d", mib, policy(p))
				r.want("first put", s.put("more", "v"), "ok")
				r.want("audit", words(s.usage().Entries, s.audit()), words(c.entries+1, "ok"))
				s.reopen()
				r.want("audit", words(s.usage().Entries, s.audit()), words(c.entries+1, "ok"))
			})
		}
	}
}

// P7: an older copy that somebody has put over the directory, with its times, is noticed.
func TestOlderCopyOverTheDirectory(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 10*small)
	s.fill(1, 5, 10)
	s.shut()
	r.must(exec.Command("cp", "-a", r.path("d"), r.path("copy")).Run())
	s = r.open("d", 10*small)
	s.fill(6, 10, 10)
	s.shut()
	r.must(exec.Command("cp", "-a", r.path("copy")+"/.", r.path("d")).Run())
	s = r.open("d", 10*small)
	r.want("accounts", words(s.usage().Entries, s.audit()), "10 ok")
}

// P7: what needs entries that were not read yet reads on: setting one aside, evicting
// many or those of one backend; and what is damaged there is noticed.
func TestIndexIsReadOn(t *testing.T) {
	const entries = 400
	for what, do := range map[string]func(r *rig, s *shop) int{ // gives how many are left
		"set aside": func(r *rig, s *shop) int {
			r.flip(s.kernel("k250"), -1)
			r.want("get", s.get("k250"), "miss reason=checksum")
			return entries - 1
		},
		"replace": func(r *rig, s *shop) int {
			r.flip(s.kernel("k250"), -1)
			r.want("put", s.put("k250", "w"), "ok")
			return entries
		},
		"evict many": func(r *rig, s *shop) int {
			r.must(s.Prune(background, 50*small))
			r.want("the last stay", words(s.get("k350"), s.get("k351"), s.get("new")), "miss reason=absent v v")
			return 50
		},
		"evict of a backend": func(r *rig, s *shop) int {
			s.shut()
			s.cfg.Only = "other"
			s.reopen()
			r.want("put", s.put("k", "v", putOptions{backend: "other"}), "ok")
			r.must(s.Prune(background, (entries-1)*small))
			s.cfg.Only = ""
			s.reopen()
			r.want("others stay", s.get("k002"), "v")
			return entries - 1
		},
		"a bit": func(r *rig, s *shop) int {
			s.shut()
			r.flip(s.cfg.Dir+"/lease/index", -20000)
			s.reopen()
			r.want("put", s.put("more", "v"), "ok")
			r.must(s.Prune(background, 20*small))
			return 20
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			s := r.open("d", entries*small)
			for i := range entries {
				r.want("put", s.put(fmt.Sprintf("k%03d", i), "v"), "ok")
			}
			s.SaveIndex()
			s.reopen()
			r.want("put", s.put("new", "v"), "ok")
			r.want("the first went", words(s.get("k000"), s.get("k001")), "miss reason=absent v")
			left := do(r, s)
			r.want("left", words(s.usage().Entries, s.audit()), words(left, "ok"))
			s.reopen()
			r.want("left", words(s.usage().Entries, s.audit()), words(left, "ok"))
		})
	}
}

// rebooted is a file system after the machine was started again.
type rebooted struct{ vfs.FS }

func (rebooted) Boot() string { return "another" }

// P9: what was written before the machine lost power is not believed.
func TestSnapshotOfAnotherBoot(t *testing.T) {
	disk := crashfs.New(nil)
	open := func(f vfs.FS) *blobstore.Store {
		s, err := blobstore.Open(background, powerConfig(f, blobstore.Full))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(disk)
	for i := range 3 {
		if err := s.Put(background, backend, fmt.Sprint(i), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(background); err != nil {
		t.Fatal(err)
	}
	if err := disk.RemoveAll(backend + "/" + s.Bucket("1") + "/0"); err != nil { // as a loss of power may
		t.Fatal(err)
	}
	s = open(rebooted{disk})
	if size, text, files, err := s.Audit(background); err != nil || size != files || text != files {
		t.Errorf("%d %d %d %v", size, text, files, err)
	}
	if err := s.Close(background); err != nil {
		t.Error(err)
	}
}

// P7: a size.txt that is wrong, or missing, is right after the next Open, also where the
// index was good.
func TestWrongSizeBesideAGoodIndex(t *testing.T) {
	for what, spoil := range map[string]func(name string) error{
		"wrong":   func(name string) error { return os.WriteFile(name, []byte("5"), 0o600) },
		"missing": os.Remove,
	} {
		r := newRig(t)
		s := r.open("d", mib)
		s.fill(1, 3, 100)
		s.shut()
		right := r.read(r.path("d/size.txt"))
		r.must(spoil(r.path("d/size.txt")))
		s = r.open("d", mib)
		r.want(what, string(r.read(r.path("d/size.txt"))), string(right))
		r.want(what, words(s.usage().Entries, s.audit()), "3 ok")
	}
}

// P5, P7: where an index was saved that did not know when its entries were made, the
// oldest go all the same: their lines may be the last.
func TestSavedBeforeItsOrderWasKnown(t *testing.T) {
	blobstore.HoldLong(t) // all of them go in one turn
	const entries = 400
	unknown := func(r *rig) string { return strings.Fields(string(r.read(r.path("d/lease/index"))))[8] }
	r := newRig(t)
	s := r.open("d", entries*small)
	for i := range entries {
		r.want("put", s.put(fmt.Sprintf("k%03d", i), "v"), "ok")
	}
	s.shut()
	for _, name := range []string{"journal", "index"} { // so that it is listed
		r.must(os.RemoveAll(r.path("d/lease/" + name)))
	}
	s.reopen()
	s.SaveIndex()
	r.want("unknown", unknown(r), entries)
	s.reopen()
	r.must(s.Prune(background, (entries-10)*small))
	r.want("unknown when they were read", unknown(r), 0)
	for i := range 20 {
		want := "v"
		if i < 10 {
			want = "miss reason=absent"
		}
		r.want(fmt.Sprint(i), s.get(fmt.Sprintf("k%03d", i)), want)
	}
}
