//go:build unix

package blobstore_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// troubled is a file system on which calls fail for which broken says so: "update",
// "open" and "syncdir", with a name.
type troubled struct {
	vfs.FS
	broken *func(op, name string) bool
}

func (f troubled) fails(op, name string) error {
	if *f.broken != nil && (*f.broken)(op, name) {
		return &fs.PathError{Op: op, Path: name, Err: syscall.EIO}
	}
	return nil
}

func (f troubled) Update(name string) (vfs.File, error) {
	if err := f.fails("update", name); err != nil {
		return nil, err
	}
	return f.FS.Update(name)
}

func (f troubled) Append(name string) (vfs.File, error) {
	if err := f.fails("append", name); err != nil {
		return nil, err
	}
	return f.FS.Append(name)
}

func (f troubled) Open(name string) (vfs.File, error) {
	if err := f.fails("open", name); err != nil {
		return nil, err
	}
	return f.FS.Open(name)
}

func (f troubled) SyncDir(name string) error {
	if err := f.fails("syncdir", name); err != nil {
		return err
	}
	return f.FS.SyncDir(name)
}

func (r *rig) troubled(broken *func(op, name string) bool) option {
	return on(func(f vfs.FS) vfs.FS { return troubled{f, broken} })
}

// P10, P11: the mark of a driver that died stays until it is written and on the disk that
// no driver is given its blob: also that of an entry that is gone, which a sweep takes.
func TestMarkStaysUntilTheRefusalIsKept(t *testing.T) {
	unkept := map[string]func(op, name string) bool{
		"unwritten": func(op, name string) bool { return op == "append" && name == "lease/refused" },
		"unsynced":  func(op, name string) bool { return op == "syncdir" && name == "lease" },
	}
	for why, fails := range unkept {
		for _, swept := range []bool{false, true} {
			t.Run(words(why, swept), func(t *testing.T) {
				r := newRig(t)
				var broken func(op, name string) bool
				s := r.open("d", mib, abortsAll, r.troubled(&broken))
				r.want("put", words(s.put("another", "v"), s.put("k", "v")), "ok ok")
				r.must(s.Refuse(background, s.blob("another"))) // so that there is the file
				archive := s.exported()
				s.diesOn(s.blob("k"))
				if swept {
					r.must(s.Prune(background, 0))
				}
				broken = fails
				if swept {
					s.reopen()
				} else {
					r.want("died", s.died("k"), fault.Quarantined)
				}
				r.want("marks", len(r.names("d/mark")), 1)
				broken = nil
				s.reopen()
				r.want("marks, later", len(r.names("d/mark")), 0)
				r.want("import", words(s.bring(archive), s.get("k")), "map[quarantined:1] miss reason=absent")
			})
		}
	}
}

// P11: who stands still before it marks a blob does not give it to its driver where that of
// another process has refused it meanwhile, though the list of what was refused cannot be written.
func TestRefusedBeforeItIsMarked(t *testing.T) {
	r := newRig(t)
	var broken func(op, name string) bool
	a := r.open("d", mib, abortsAll, r.troubled(&broken))
	r.want("put", a.put("k", "bad"), "ok")
	late := newStall("link mark/*")
	b := r.open("d", mib, abortsAll, late.config)
	blob := b.blob("k")
	done := make(chan fault.Reason)
	go func() {
		leave, miss, _ := b.Enter(background, backend, blob)
		leave()
		done <- miss.Reason
	}()
	<-late.reached
	broken = func(op, name string) bool { return op == "append" && name == "lease/refused" }
	r.must(a.Refuse(background, a.blob("k")))
	close(late.resume)
	r.want("entered, marks", words(<-done, len(r.names("d/mark"))), "quarantined 0")
}

// P5, P11: what was refused is not forgotten when the file cannot be read for a moment.
func TestRefusalsThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("k", "bad"), base.put("j", "bad")), "ok ok")
	based := func(c *blobstore.Config) { c.Bases = []string{base.cfg.Dir} }
	var broken func(op, name string) bool
	s := r.open("d", mib, r.troubled(&broken), based)
	other := r.open("d", mib)
	r.want("import", other.bring(base.exported()), "map[]") // copies, so that no mark hides those of the base
	r.must(other.Refuse(background, other.blob("k")))
	r.want("refused elsewhere", s.get("k"), "miss reason=absent")
	r.must(other.Refuse(background, other.blob("j"))) // the file has changed
	broken = func(op, name string) bool { return op == "open" && name == "lease/refused" }
	r.want("not readable", s.get("k"), "miss reason=absent")
	broken = nil
	r.want("readable", words(s.get("k"), s.get("j")), "miss reason=absent miss reason=absent")
}

// P11: what is refused within one tick of the file system's clock is seen by others.
func TestRefusalsOfOneTick(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("k", "bad"), base.put("j", "bad")), "ok ok")
	s := r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{base.cfg.Dir} })
	other := r.open("d", mib)
	r.want("import", other.bring(base.exported()), "map[]")
	r.must(other.Refuse(background, other.blob("k")))
	r.want("get", s.get("k"), "miss reason=absent")
	info, err := os.Stat(r.path("d/lease/refused"))
	r.must(err)
	r.must(other.Refuse(background, other.blob("j")))
	r.must(os.Chtimes(r.path("d/lease/refused"), info.ModTime(), info.ModTime()))
	r.want("get", s.get("j"), "miss reason=absent")
}

// P11: an import looks at what another process has refused since this one has looked.
func TestImportOfWhatAnotherProcessRefused(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	r.want("put", s.put("k", "bad"), "ok")
	archive := s.exported()
	other := r.open("d", mib)
	r.must(other.Refuse(background, other.blob("k")))
	r.want("import", words(s.bring(archive), s.get("k")), "map[quarantined:1] miss reason=absent")
}

// P5, P8: a get that finds a bad entry which cannot be moved does not take the lock of the
// directory each time.
func TestStuckEntryLocksOnce(t *testing.T) {
	r := newRig(t)
	locks := 0
	var broken func(op, name string) bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS {
		return &overlay{troubled{f, &broken}, func(string) bool { return true }, true}
	}))
	r.want("put", s.put("k", "v"), "ok")
	r.flip(s.kernel("k"), -1)
	broken = func(op, name string) bool {
		if op == "update" && path.Dir(name) == "lease/directory" {
			locks++
		}
		return false
	}
	r.want("get", words(s.get("k"), locks > 0), "miss reason=checksum true")
	locks = 0
	r.want("get again", words(s.get("k"), locks), "miss reason=checksum 0")
}

// P7: a bad entry that somebody has laid where one was that this process has read and
// evicted, or has set aside, takes nothing from the account.
func TestLaidWhereOneWas(t *testing.T) {
	const entries = 600
	r := newRig(t)
	s := r.open("d", entries*small)
	for i := range entries {
		r.want("put", s.put(fmt.Sprintf("k%04d", i), "v"), "ok")
	}
	s.SaveIndex()
	s.reopen()
	r.want("put", s.put("new", "v"), "ok")
	r.want("evicted", s.get("k0000"), "miss reason=absent")
	r.flip(s.kernel("k0590"), -1)
	r.want("set aside", s.get("k0590"), "miss reason=checksum")
	size := func() string {
		var sum int64
		for _, name := range []string{"key.bin", "kernel.bin"} {
			buckets := r.names("d/test")
			for _, b := range buckets {
				for _, slot := range r.names("d/test/" + b) {
					info, err := os.Stat(r.path("d/test/" + b + "/" + slot + "/" + name))
					r.must(err)
					sum += info.Size()
				}
			}
		}
		return words(sum)
	}
	for _, key := range []string{"k0590", "k0000"} { // the latter reads all
		r.want("size.txt", strings.TrimSpace(string(r.read(r.path("d/size.txt")))), size())
		r.write(s.place(key, "key.bin"), []byte(key))
		r.write(s.kernel(key), []byte("bad"))
		r.want("laid there", strings.HasPrefix(s.get(key), "miss reason="), true)
		r.want("set aside", s.get(key), "miss reason=absent")
		r.want("size.txt after "+key, strings.TrimSpace(string(r.read(r.path("d/size.txt")))), size())
	}
}

// P7: of a full bucket goes the oldest entry, and not one that somebody has copied there
// later, nor a file that no store made.
func TestFullBucketOfOthers(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 4*mib, hash(7))
	s.fill(0, 61, 10)
	r.clock(time.Hour)
	from := r.open("from", mib, hash(7))
	from.fill(100, 100, 10)
	s.fill(62, 62, 10)
	r.must(os.CopyFS(r.path("d/test/7/63"), os.DirFS(r.path("from/test/7/0"))))
	r.must(os.Chmod(r.path("d/test/7/63"), 0o700))
	r.write(r.path("d/test/7/64"), []byte("somebody's"))
	s.fill(63, 63, 10)
	r.want("left", words(s.has(0, 1, 61, 62, 63, 100), r.exists(r.path("d/test/7/64"))), "[1 61 62 63 100] true")
}

// P7: uses that another process has taken over, since their writer was idle for an hour and
// has no lock that tells, are counted once by who looks at one entry, and written once.
func TestUsesTakenOverCountOnce(t *testing.T) {
	for _, written := range []bool{false, true} {
		r := newRig(t)
		byCost := policy(blobstore.Cost)
		shared := func(c *blobstore.Config) { c.Shared = true }
		var write func()
		lives := r.open("d", mib, byCost, shared, minutely(&write))
		r.want("put", words(lives.put("k", "v"), lives.get("k"), lives.get("k")), "ok v v")
		write()
		own := words(r.names("d/uses"))
		r.age(61*time.Minute, "d/uses")
		r.clock(2 * time.Minute)
		r.open("d", mib, byCost, shared).shut()
		r.want("taken over", words(r.names("d/uses")) != own, true)
		s := lives
		if r.want("get", lives.get("k"), "v"); written {
			write()
			s = r.open("d", mib, byCost, shared)
		}
		i, err := s.Inspect(background, "test/"+s.Bucket("k")+"/0")
		r.want("uses", words(written, i.Uses, err), words(written, 3, nil))
	}
}

// R2: the nearest entry is that which differs in the fewest factors, those of its identity
// too, in whichever order they are found.
func TestNearestCountsItsIdentity(t *testing.T) {
	for _, first := range []uint64{1, 3} { // bucket of the one whose key is nearer
		r := newRig(t)
		options := func(c *blobstore.Config) {
			c.Factors = func(_, key string) map[string]string {
				return map[string]string{"a": key[:1], "b": key[1:2], "c": key[2:]}
			}
			c.Hash = func(key string) uint64 { return map[string]uint64{"xxy": first, "xyz": 2}[key] }
		}
		s := r.open("d", mib, options)
		r.want("put", s.put("xxy", "v"), "ok")
		r.id.Driver, r.id.Compiler, r.id.Build = "d2", "c2", "b2"
		s = r.open("d", mib, options)
		r.want("put", s.put("xyz", "v"), "ok")
		e, err := s.Explain(background, backend, "xxx")
		r.want("nearest", words(path.Dir(e.Nearest), e.Factors, err), words("test/2", []string{"b", "c"}, nil))
	}
}

// P10: the name of a backend's folder that could not be synced is synced with the next
// store.
func TestFolderWhoseSyncFailed(t *testing.T) {
	r := newRig(t)
	var broken func(op, name string) bool
	disk := crashfs.New(nil)
	cfg := powerConfig(troubled{disk, &broken}, blobstore.Full)
	ahead := time.Duration(0)
	cfg.Now = func() time.Time { return time.Now().Add(ahead) }
	s := &shop{r: r, cfg: cfg}
	s.reopen()
	defer s.shut()
	broken = func(op, name string) bool { return op == "syncdir" && name == "." }
	r.want("put", s.put("j", "v"), "refused reason=degraded")
	broken = nil
	ahead = 10 * blobstore.LongestPause
	r.want("put", s.put("k", "v"), "ok")
	after := &shop{r: r, cfg: powerConfig(disk.Clone(0, 1, nil), blobstore.Full)}
	after.reopen()
	defer after.shut()
	r.want("after power was lost", after.get("k"), "v")
}

// P5, P7: an entry whose key cannot be looked at for a moment is not counted as smaller.
func TestKeysThatCannotBeLookedAt(t *testing.T) {
	r := newRig(t)
	keys := true
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return keyless{f, &keys} }))
	r.want("put", s.put("k", "v"), "ok")
	s.shut()
	r.must(os.Remove(r.path("d/lease/index")))
	keys = false
	_, err := blobstore.Open(background, s.cfg)
	r.want("open", said(err), "error io")
	keys = true
	s.reopen()
	r.want("audit", s.audit(), "ok")
}

// P7: nor is one that can be looked at again at once.
func TestEntryThatIsSeenAtASecondLook(t *testing.T) {
	for _, name := range []string{"key.bin", "kernel.bin"} {
		r := newRig(t)
		var fails atomic.Bool
		s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return onceUnseen{f, name, &fails} }))
		s.fill(1, 3, 20*kib)
		s.shut()
		r.must(os.Remove(r.path("d/lease/index")))
		fails.Store(true)
		s.reopen()
		r.want(name, words(s.usage().Entries, s.audit(), fails.Load()), "3 ok false")
	}
}

type onceUnseen struct {
	vfs.FS
	name  string
	fails *atomic.Bool
}

func (f onceUnseen) Lstat(name string) (vfs.Info, error) {
	if path.Base(name) == f.name && f.fails.Swap(false) {
		return vfs.Info{}, syscall.EMFILE
	}
	return f.FS.Lstat(name)
}

type keyless struct {
	vfs.FS
	keys *bool
}

func (f keyless) Lstat(name string) (vfs.Info, error) {
	if !*f.keys && path.Base(name) == "key.bin" {
		return vfs.Info{}, syscall.EMFILE
	}
	return f.FS.Lstat(name)
}
