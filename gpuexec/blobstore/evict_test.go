//go:build unix

package blobstore_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

func (s *shop) fill(from, to, size int) {
	s.r.t.Helper()
	for i := from; i <= to; i++ {
		s.r.want("put", s.put(fmt.Sprintf("k%d", i), fmt.Sprintf("v%d", i), putOptions{bytes: size, cost: 1}), "ok")
		s.r.clock(5 * time.Millisecond)
	}
}

func (s *shop) has(keys ...int) (have []int) {
	for _, i := range keys {
		if s.get(fmt.Sprintf("k%d", i)) == fmt.Sprintf("v%d", i) {
			have = append(have, i)
		}
	}
	return have
}

// P7, P6: fifo by creation; a load does not refresh.
func TestFIFO(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 350*kib)
	s.fill(1, 3, 100*kib)
	r.want("get", s.has(1), []int{1})
	s.fill(4, 4, 100*kib)
	r.want("get", s.get("k1"), "miss reason=absent")
	r.want("have", s.has(2, 3, 4), []int{2, 3, 4})
	r.want("size", s.usage().Bytes <= 350*kib, true)
	r.want("audit", s.audit(), "ok")
	r.want("too large", s.put("big", "v", putOptions{bytes: 400 * kib}), "refused reason=too_large")
	r.want("nothing evicted", s.has(2, 3, 4), []int{2, 3, 4})
}

// P7: lru, and the order of use outlives the opening.
func TestLRU(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 350*kib, policy(blobstore.LRU))
	s.fill(1, 3, 100*kib)
	r.want("use", s.has(1), []int{1})
	r.clock(time.Millisecond)
	s.reopen()
	s.fill(4, 4, 100*kib)
	r.want("least recent went", s.get("k2"), "miss reason=absent")
	r.want("use", s.has(3), []int{3})
	s.shut()
	s = r.open("d", 250*kib, policy(blobstore.LRU))
	r.want("entries", s.usage().Entries, 2)
	r.want("went", s.get("k1"), "miss reason=absent")
	r.want("stay", s.has(3, 4), []int{3, 4})
	for range 4 {
		s.reopen()
	}
	list, err := os.ReadDir(r.path("d/uses"))
	r.must(err)
	r.want("files of uses are merged", len(list) <= 2, true)
	r.write(r.path("d/uses/junk"), []byte("closed\n1 2\nx y z w\n9 9 9 ../../x\n"))
	s.reopen()
	r.want("junk", s.has(3, 4), []int{3, 4})
}

// minutely gives the function that writes uses, instead of calling it every minute.
func minutely(write *func()) option {
	return func(c *blobstore.Config) {
		c.After = func(d time.Duration, f func()) func() bool {
			if d <= time.Minute {
				*write = f
			}
			return func() bool { return true }
		}
	}
}

// P7: uses are written at least every minute, so a killed writer loses few.
func TestUsesAreWritten(t *testing.T) {
	r := newRig(t)
	var write func()
	s := r.open("d", mib, policy(blobstore.LRU), minutely(&write))
	s.fill(1, 1, 10)
	s.has(1)
	due := write
	write = nil
	due()
	r.want("files", len(r.names("d/uses")), 1)
	r.want("and again", write != nil, true)
}

// P7: the order is that of all writers' uses, of those too that go on since before
// this one and the entry began.
func TestUsesOfTheLiving(t *testing.T) {
	r := newRig(t)
	var write func()
	a := r.open("d", 350*kib, policy(blobstore.LRU))
	b := r.open("d", 350*kib, policy(blobstore.LRU), minutely(&write))
	a.fill(1, 3, 100*kib)
	r.want("use", b.has(1), []int{1})
	write()
	r.clock(time.Minute)
	a.fill(4, 4, 100*kib)
	r.want("least recent went", a.has(2, 3, 4, 1), []int{3, 4, 1})
	r.want("use", b.has(3), []int{3})
	b.shut()
	r.clock(time.Minute)
	a.fill(5, 5, 100*kib)
	r.want("least recent went", a.has(1, 3, 4, 5), []int{1, 3, 5})
}

// P7: uses are counted under every policy, and the files of writers that ended are taken
// over when they are small or many.
func TestUsesUnderEveryPolicy(t *testing.T) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU, blobstore.Cost} {
		r := newRig(t)
		s := r.open("d", mib, policy(p))
		s.put("k", "v")
		for range 40 {
			s.reopen()
			r.want("use", s.get("k"), "v")
		}
		s.shut()
		info, err := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }).Inspect(background, "test/"+s.Bucket("k")+"/0")
		r.want("uses", words(p, info.Uses, err), words(p, 40, nil))
		r.want("small files", len(r.names("d/uses")), 1)
		large := []byte("closed 1\n" + strings.Repeat("\n", 64*kib))
		r.write(r.path("d/uses/x"), large)
		s.reopen()
		s.shut()
		r.want("few large files", len(r.names("d/uses")) > 1, true)
		for i := range 33 {
			r.write(r.path(fmt.Sprint("d/uses/", i)), large)
		}
		s.reopen()
		s.shut()
		r.want("many large files", len(r.names("d/uses")), 1)
		info, err = r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }).Inspect(background, "test/"+s.Bucket("k")+"/0")
		r.want("uses", words(p, info.Uses, err), words(p, 40, nil))
		s.reopen()
		info, err = s.Inspect(background, "test/"+s.Bucket("k")+"/0")
		r.want("uses that a writer sees", words(p, info.Uses, err), words(p, 40, nil))
		s.shut()
	}
}

// P7: a use counts once, however many open and close, whoever was killed, and though
// the file of who was idle for an hour was taken over.
func TestUsesCountOnce(t *testing.T) {
	r := newRig(t)
	byCost := policy(blobstore.Cost)
	use := func(s *shop, times int) {
		for range times {
			r.want("use", s.get("k"), "v")
		}
	}
	want := func(what string, uses int) {
		t.Helper()
		for range 3 {
			looks := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true })
			info, err := looks.Inspect(background, "test/"+looks.Bucket("k")+"/0")
			r.want(what, words(info.Uses, err), words(uses, nil))
			r.open("d", mib, byCost).shut()
		}
	}
	ended := r.open("d", mib, byCost)
	ended.put("k", "v")
	use(ended, 10)
	ended.shut()
	var write func()
	lives := r.open("d", mib, byCost, minutely(&write))
	use(lives, 1)
	write()
	want("of one that ended and one that lives", 11)
	r.write(r.path("d/uses/killed"), r.read(r.path("d/uses/"+r.names("d/uses")[0])))
	want("and one that was killed", 12)
	r.clock(61 * time.Minute)
	r.age(61*time.Minute, "d/uses")
	want("an hour later", 12)
	use(lives, 1)
	write()
	want("and one more", 13)
}

// P7: a use is later than all before it, also those that were noted while the clock was
// ahead, by a writer that ended or one of an older version, and that nobody has read yet.
func TestUsesAreInOrder(t *testing.T) {
	for _, older := range []bool{false, true} {
		r := newRig(t)
		s := r.open("d", 3*small, policy(blobstore.LRU))
		for _, key := range []string{"a", "b", "c"} {
			r.want("put", s.put(key, "v"), "ok")
		}
		r.clock(time.Hour)
		r.want("used", words(s.get("c"), s.get("b")), "v v")
		r.clock(-time.Hour)
		s.shut()
		if older {
			name := r.path("d/uses/" + r.names("d/uses")[0])
			_, lines, _ := strings.Cut(string(r.read(name)), "\n")
			r.write(name, []byte("closed\n"+lines))
		}
		s.reopen()
		r.want("used", s.get("c"), "v")
		r.want("put", words(s.put("d", "v"), s.put("e", "v")), "ok ok")
		r.want("left", words(s.get("a"), s.get("b"), s.get("c")), "miss reason=absent miss reason=absent v")
	}
}

// P7: what only looks sees the uses of those that wrote, whatever its policy is,
// and leaves their files as they are.
func TestUsesAreSeen(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	s.fill(1, 2, 10)
	s.has(1, 1, 1, 1, 1, 2)
	entry := "test/" + s.Bucket("k1") + "/0"
	s.shut()
	other := r.open("d", mib, policy(blobstore.LRU)) // goes on writing
	other.has(2)
	files := words(r.names("d/uses"))
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU} {
		ro := r.open("d", 0, policy(p), func(c *blobstore.Config) { c.ReadOnly = true })
		uses := map[string]int64{}
		r.must(ro.List(background, func(i blobstore.Info) error {
			uses[i.Key] = i.Uses
			return nil
		}))
		info, err := ro.Inspect(background, entry)
		r.want("uses", words(uses, info.Uses, err), words(map[string]int64{"k1": 5, "k2": 1}, 5, nil))
	}
	r.want("files", r.names("d/uses"), files)
	look := func(want int64) {
		t.Helper()
		info, err := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }).Inspect(background, entry)
		r.want("uses", words(info.Uses, err), words(want, nil))
	}
	r.must(os.RemoveAll(r.path("d/" + entry)))
	r.want("another entry", other.put("k1", "another"), "ok")
	look(0)
	other.has(2)
	other.get("k1")
	other.shut()
	look(1)
	r.must(os.RemoveAll(r.path("d/uses")))
	look(0)
}

// P7: what is dear by the byte survives; the newcomer is never its own victim.
func TestCost(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 5*mib, policy(blobstore.Cost))
	s.put("dear", "v", putOptions{bytes: mib, cost: 60})
	for i := range 60 {
		s.put(fmt.Sprintf("cheap%02d", i), "v", putOptions{bytes: mib, cost: 0.1})
		r.clock(time.Millisecond)
	}
	r.want("dear", s.get("dear"), "v")
	r.want("newest", s.get("cheap59"), "v")
	r.want("entries", s.usage().Entries, 4)
	r.want("ties: the oldest", s.get("cheap56"), "miss reason=absent")
	for range 9 { // uses count
		s.get("cheap57")
	}
	s.put("other00", "v", putOptions{bytes: mib, cost: 0.1})
	r.want("used", s.get("cheap57"), "v")
	r.want("unused", s.get("cheap58"), "miss reason=absent")
	r.want("worthless newcomer", s.put("free000", "v", putOptions{bytes: mib}), "ok")
	r.want("worthless newcomer", s.get("free000"), "v")
	r.want("audit", s.audit(), "ok")
}

// P7: an entry is dear also where its list of instruction sets is long: its cost is
// read from the file after a reopening.
func TestCostBesideManyInstructionSets(t *testing.T) {
	r := newRig(t)
	var sets []string
	for i := range 150 {
		sets = append(sets, fmt.Sprintf("instruction%03d", i))
	}
	s := r.open("d", 3*mib, policy(blobstore.Cost))
	s.put("dear", "v", putOptions{bytes: mib, cost: 60, requires: sets})
	s.shut()
	s = r.open("d", 3*mib, policy(blobstore.Cost))
	for i := range 5 {
		s.put(fmt.Sprintf("cheap%d", i), "v", putOptions{bytes: mib - 4<<10, cost: 0.1})
		r.clock(time.Millisecond)
	}
	r.want("the newest", s.get("cheap4"), "v")
	listed := 0
	r.must(s.List(background, func(i blobstore.Info) error {
		if i.Cost == time.Minute {
			listed++
		}
		return nil
	}))
	r.want("the dear one", listed, 1)
}

// P7: size.txt is rebuilt, and a thousand stores and evictions leave it right.
func TestSize(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.fill(1, 5, 1000)
	s.shut()
	for _, damage := range []func(){
		func() { r.must(os.Remove(r.path("d/size.txt"))) },
		func() { r.write(r.path("d/size.txt"), []byte("7")) },
		func() { r.write(r.path("d/size.txt"), []byte("junk")) },
		func() { r.write(r.path("d/size.txt"), []byte("-1")) },
		func() { r.write(r.path("d/lease/journal"), []byte("junk")) },
		func() { r.write(r.path("d/lease/journal"), []byte("b\n+ 1 1 1 test/1/0\n")) },
		func() { r.must(os.RemoveAll(r.path("d/lease"))) },
	} {
		damage()
		s.reopen()
		r.want("audit", s.audit(), "ok")
		r.want("size.txt", strings.TrimSpace(string(r.read(r.path("d/size.txt")))), s.usage().Bytes)
		r.want("entries", s.usage().Entries, 5)
		s.shut()
	}
	s = r.open("e", 64*kib)
	for i := range 1000 {
		s.put(fmt.Sprintf("k%d", i%90), "v", putOptions{bytes: i%7*900 + 100, cost: 1})
		if size := s.usage().Bytes; size > 64*kib { // INVARIANT of directory
			t.Fatalf("%d bytes in use", size)
		}
	}
	r.want("audit", s.audit(), "ok")
	r.want("verify", s.verify(), 0)
	s.reopen()
	r.want("audit", s.audit(), "ok")
}

// P7, P1: a directory over its capacity is brought down at open.
func TestOverCapacityAtOpen(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.fill(1, 6, 100*kib)
	s.shut()
	r.want("off", r.open("d", 0).get("k1"), "miss reason=disabled")
	s = r.open("d", 350*kib)
	r.want("entries", s.usage().Entries, 3)
	r.want("have", s.has(1, 2, 3, 4, 5, 6), []int{4, 5, 6})
	r.want("audit", s.audit(), "ok")
	r.must(s.Prune(background, 150*kib))
	r.want("pruned", s.has(4, 5, 6), []int{6})
	s.shut()
	s = r.open("d", 50*kib)
	r.want("entries", s.usage().Entries, 0)
	r.want("audit", s.audit(), "ok")
}

// P8: two stores of one directory know of each other's changes.
func TestTwoStores(t *testing.T) {
	r := newRig(t)
	a, b := r.open("d", 350*kib), r.open("d", 350*kib)
	for i := range 20 {
		s := a
		if i%3 == 0 {
			s = b
		}
		s.fill(i, i, 100*kib)
		r.want("a", a.usage().Bytes <= 350*kib, true)
		r.want("a and b", a.usage().Entries, b.usage().Entries)
	}
	r.want("have", b.has(16, 17, 18, 19), []int{17, 18, 19})
	r.want("audit", a.audit(), "ok")
	r.want("audit", b.audit(), "ok")
	r.want("stays", a.put("k19", "other"), "ok")
	r.want("stays", a.get("k19"), "v19")
	r.want("told", words(a.Stats().Stores, b.Stats().Stores), "13 7")
}

// P7, P2: size.txt is right after every store and every prune, whoever made the one
// before. Who only looks does not put it right.
func TestSizeOfTwoStores(t *testing.T) {
	r := newRig(t)
	a, b := r.open("d", 350*kib), r.open("d", 350*kib)
	looks := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true })
	for i, change := range []func(){
		func() { a.fill(1, 1, 100*kib) },
		func() { b.fill(2, 2, 100*kib) },
		func() { r.must(a.Prune(background, 150*kib)) }, // to what a left
		func() { b.fill(3, 4, 100*kib) },
		func() { r.must(b.Prune(background, 0)) },
		func() { a.fill(5, 5, 100*kib) }, // as much as at first
		func() { r.must(b.Prune(background, 0)) },
		func() { a.fill(6, 6, 100*kib) }, // as much as a left
		func() { b.fill(7, 9, 100*kib) }, // evicts
	} {
		change()
		r.want(fmt.Sprint("change ", i), looks.audit(), "ok")
	}
}

// P7, P8: without file locks, one at a time.
func TestSharedProfile(t *testing.T) {
	r := newRig(t)
	shared := func(c *blobstore.Config) { c.Shared = true }
	a, b := r.open("d", 350*kib, shared), r.open("d", 350*kib, shared)
	a.fill(1, 3, 100*kib)
	b.fill(4, 5, 100*kib)
	a.fill(6, 6, 100*kib)
	r.want("have", b.has(1, 2, 3, 4, 5, 6), []int{4, 5, 6})
	r.want("audit", a.audit(), "ok")
	_, c, _, err := a.Obtain(background, backend, "k")
	r.must(err)
	done := make(chan string)
	go func() {
		blob, _, miss, err := b.Obtain(background, backend, "k")
		done <- fmt.Sprint(string(blob.Payload), miss, err)
	}()
	r.must(c.Save(background, []byte("v"), 0))
	r.want("waited", <-done, "v{ } <nil>")
}

// P7: keys that were chosen to have one hash do not make a bucket long: its oldest
// entry goes.
func TestBucketIsBounded(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 4*mib, hash(7))
	s.fill(0, 69, 10)
	r.want("entries", s.usage().Entries, 64)
	r.want("the oldest went", s.has(5, 6, 69), []int{6, 69})
	r.want("evicted", s.Stats().Evictions, 6)
	r.want("audit", s.audit(), "ok")
}

// P7: an eviction counts what it gains by, and leaves no empty bucket; what takes no bytes
// is no victim.
func TestEvictionLeavesNoFolders(t *testing.T) {
	r := newRig(t)
	r.write(r.path("d/test/7/0/key.bin"), nil)
	r.write(r.path("d/test/7/0/kernel.bin"), nil)
	s := r.open("d", 4*small)
	for i := range 7 {
		r.want("put", s.put(fmt.Sprint("k", i), "v"), "ok")
	}
	r.want("evicted", words(s.Stats().Evictions, s.usage().DiskBytes), words(3, 4*small))
	r.want("buckets", len(r.names("d/test")), 5)
}
