//go:build unix

package blobstore_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
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

func abortsAll(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }

// blob is what Get gives for a key that is there.
func (s *shop) blob(key string) blobstore.Blob {
	s.r.t.Helper()
	b, miss, err := s.Get(background, backend, key)
	s.r.want("get "+key, words(miss.Reason, err), " <nil>")
	return b
}

// diesOn leaves the mark of a process that died in its driver with a blob.
func (s *shop) diesOn(b blobstore.Blob) {
	s.r.t.Helper()
	leave, miss, err := s.Enter(background, backend, b)
	s.r.want("enter", words(miss.Reason, err), " <nil>")
	mark := s.r.path("d/mark/" + s.r.names("d/mark")[0])
	text := s.r.read(mark)
	leave()
	s.r.write(mark, text) // nobody has its lock
}

func (s *shop) exported() []byte {
	s.r.t.Helper()
	var archive bytes.Buffer
	_, err := s.Export(background, &archive)
	s.r.must(err)
	return archive.Bytes()
}

// P11: a blob that a driver refused, or that ended a process, is not given to a driver
// again wherever it lies a second time: in a base, or in a directory that gets it
// from an archive.
func TestCopyOfARefusedBlob(t *testing.T) {
	for _, why := range []string{"refused", "died", "died, and evicted"} {
		for _, late := range []bool{false, true} { // another process asks
			t.Run(words(why, late), func(t *testing.T) {
				r := newRig(t)
				base := r.open("base", mib)
				base.put("k", "bad")
				archive := base.exported()
				s := r.open("d", mib, abortsAll, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
				before := r.open("d", mib, abortsAll, func(c *blobstore.Config) { c.Bases = s.cfg.Bases })
				r.want("stored", r.open("d", mib).bring(archive), "map[]")
				b := s.blob("k")
				r.want("of the directory", r.exists(s.kernel("k")), true)
				switch s.diesOnOr(why, b); why {
				case "died":
					r.want("died", s.died("k"), fault.Quarantined)
				case "died, and evicted":
					r.must(s.Prune(background, 0))
					r.must(os.Rename(r.path("base"), r.path("away")))
					r.open("d", mib).shut() // sweeps the mark of what is gone
					r.must(os.Rename(r.path("away"), r.path("base")))
				}
				if late {
					s = before
				}
				for range 2 {
					r.want("the base's", s.get("k"), "miss reason=absent")
					r.want("import", words(s.bring(archive), s.get("k")), "map[quarantined:1] miss reason=absent")
					s.reopen()
				}
				_, miss, err := s.Enter(background, backend, b)
				r.want("read before", words(miss.Reason, err), "quarantined <nil>")
				r.want("put", words(s.put("k", "good"), s.get("k"), s.usage().Entries), "ok good 1")
				r.want("marks of drivers", len(r.names("d/mark")) < 2, true) // one that hides the base's
			})
		}
	}
}

func (s *shop) diesOnOr(why string, b blobstore.Blob) {
	if why != "refused" {
		s.diesOn(b)
		return
	}
	s.r.must(s.Refuse(background, b))
}

// bring imports an archive, and gives what was rejected.
func (s *shop) bring(archive []byte) string {
	s.r.t.Helper()
	got, err := s.Import(background, bytes.NewReader(archive))
	s.r.must(err)
	return fmt.Sprint(got.Rejected)
}

// P11, P16: a store that writes nothing does not give a refused blob again either.
func TestRefusedWhereNothingIsWritten(t *testing.T) {
	r := newRig(t)
	r.open("d", mib).put("k", "bad")
	s := r.open("d", mib, func(c *blobstore.Config) { c.ReadOnly = true })
	b := s.blob("k")
	r.must(s.Refuse(background, b))
	r.want("get", words(s.get("k"), s.Reuse(b).Reason), "miss reason=absent quarantined")
}

// P11: what was refused is kept within bounds, the newest; lines that are torn, or
// somebody else's, take no others with them.
func TestRefusalsAreBounded(t *testing.T) {
	const most = 4096
	r := newRig(t)
	s := r.open("d", mib)
	r.want("put", words(s.put("a", "v"), s.put("b", "v")), "ok ok")
	archive := s.exported()
	r.must(s.Refuse(background, s.blob("a")))
	lines := r.read(r.path("d/lease/refused"))
	text := []byte("of somebody\n")
	for i := range most - 2 {
		text = fmt.Appendf(text, "%064x\n", i)
	}
	text = append(append(text, lines...), "to"...) // torn
	r.write(r.path("d/lease/refused"), text)
	r.must(s.Refuse(background, s.blob("b")))
	r.want("at the bound", len(r.read(r.path("d/lease/refused"))), len(text)+1+len(lines))
	r.want("put", words(s.put("c", "v")), "ok")
	r.must(s.Refuse(background, s.blob("c")))
	kept := r.read(r.path("d/lease/refused"))
	r.want("half of it", bytes.Count(kept, []byte("\n")) <= most/2+2, true)
	r.want("the newest", bytes.Contains(kept, fmt.Appendf(nil, "%064x\n", most-3)), true)
	s.reopen()
	r.want("import", s.bring(archive), "map[quarantined:2]")
	r.want("nothing left", len(r.names("d/tmp")), 0)
}

// P10, P11: power is lost in a driver, in a directory whose folder of marks is new.
func TestPowerLossWithANewFolderOfMarks(t *testing.T) {
	r := newRig(t)
	open := func(f vfs.FS) *shop {
		cfg := powerConfig(f, blobstore.Full)
		abortsAll(&cfg)
		s := &shop{r: r, cfg: cfg}
		s.reopen()
		t.Cleanup(s.shut)
		return s
	}
	disk := crashfs.New(nil)
	s := open(disk)
	r.want("put", s.put("k", "v"), "ok")
	b := s.blob("k")
	r.must(disk.RemoveAll("mark")) // and whoever opens the directory makes it again
	open(disk)
	leave, miss, err := s.Enter(background, backend, b)
	r.want("enter", words(miss.Reason, err), " <nil>")
	defer leave()
	r.want("after power was lost in the driver", open(disk.Clone(0, 1, nil)).died("k"), fault.Quarantined)
}

// P10, P11: that a driver died on a blob, or refused it, is on the disk before the mark
// goes: a copy in an archive is kept out after a loss of power, too.
func TestPowerLossAfterARefusal(t *testing.T) {
	for _, why := range []string{"refused", "died"} {
		r := newRig(t)
		open := func(f vfs.FS) *shop {
			cfg := powerConfig(f, blobstore.None)
			abortsAll(&cfg)
			s := &shop{r: r, cfg: cfg}
			s.reopen()
			t.Cleanup(s.shut)
			return s
		}
		disk := crashfs.New(nil)
		s := open(disk)
		s.put("k", "v")
		archive := s.exported()
		b := s.blob("k")
		if why == "died" {
			r.must(disk.SyncAll())
			leave, _, err := s.Enter(background, backend, b)
			r.must(err)
			after := disk.Clone(0, 1, nil)
			leave()
			disk, s = after, open(after)
			r.want("died", s.died("k"), fault.Quarantined)
		} else {
			r.must(s.Refuse(background, b))
		}
		s = open(disk.Clone(0, 1, nil))
		r.want(why, words(s.get("k"), s.bring(archive), s.get("k")), "miss reason=absent map[quarantined:1] miss reason=absent")
	}
}

// P4, P5, P11: an entry that was refused or is damaged and can neither be moved nor
// emptied is passed over: it is not served again, a put of its key goes through, and
// nothing else stops.
func TestBadEntryThatIsStuck(t *testing.T) {
	for _, why := range []string{"damaged", "refused"} {
		t.Run(why, func(t *testing.T) {
			r := newRig(t)
			var changes atomic.Int64
			stuck := func(c *blobstore.Config) {
				blobstore.SetFS(c, func(root string) vfs.FS {
					return &overlay{vfs.Dir(root), func(name string) bool {
						if name == backend+"/"+r.open("other", mib).Bucket("k")+"/0" {
							changes.Add(1)
							return true
						}
						return false
					}, true}
				})
			}
			s := r.open("d", mib, stuck)
			r.want("put", s.put("k", "bad"), "ok")
			want := "miss reason=absent"
			if why == "damaged" {
				r.flip(s.kernel("k"), -1)
				want = "miss reason=checksum"
			} else {
				before := r.open("d", mib, stuck, abortsAll)
				b := before.blob("k")
				r.must(s.Refuse(background, b))
				_, miss, err := before.Enter(background, backend, b)
				r.want("read before", words(miss.Reason, err, before.get("k")), "quarantined <nil> miss reason=absent")
			}
			r.want("get", s.get("k"), want)
			was := changes.Load()
			r.want("get again", s.get("k"), want)
			r.want("tried again by a get", changes.Load()-was, 0)
			r.want("set aside", s.usage().Quarantined, 0)
			s.reopen()
			r.want("another process", s.get("k"), want)
			r.want("put", words(s.put("k", "good"), s.get("k")), "ok good")
			r.want("of another key", words(s.put("j", "v"), s.get("j")), "ok v")
			r.want("audit", words(s.audit(), s.usage().Entries), "ok 3")
			s.reopen()
			r.want("get", s.get("k"), "good")
		})
	}
}

// P15: of several entries that fit, the one that was signed last is served, in whichever
// slot or directory it lies: an older one of fewer instruction sets replaces none.
func TestSignedEarlierForFewerSets(t *testing.T) {
	r := newRig(t)
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	r.write(r.path("trust.json"), fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	signing := func(c *blobstore.Config) {
		c.Trust, c.Signer = r.path("trust.json"), &blobstore.Signer{ID: "ci", Key: private}
	}
	same := hash(7)
	old := r.open("old", mib, signing, same)
	r.want("put", old.put("k", "old"), "ok")
	r.clock(time.Hour)
	wide := putOptions{requires: []string{"avx2"}}
	for _, layer := range []string{"d", "base"} {
		s := r.open(layer, mib, signing, same)
		if layer == "d" {
			r.want("put", s.put("gone", "v"), "ok")
		}
		r.want("put", s.put("k", "new", wide), "ok")
		if layer == "d" {
			r.must(os.RemoveAll(r.path("d/test/7/0"))) // so that the next takes the slot before it
		} else {
			s = r.open("above", mib, signing, same, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
		}
		r.want("import", s.bring(old.exported()), "map[]")
		r.want("before it", r.exists(s.place("k")), true)
		r.want("get", s.get("k"), "new")
		s.cfg.Identity = r.config("", 0).Identity
		s.reopen()
		r.want("get", s.get("k"), "new")
		r.id.ISA = nil // who lacks what the newer one needs is served the older one
		lesser := r.open(words(layer, "lesser"), mib, signing, same, func(c *blobstore.Config) { c.Bases = []string{s.cfg.Dir} })
		r.want("of a lesser machine", lesser.get("k"), "old")
		r.id = defaultIdentity()
		r.flip(r.path(map[string]string{"d": "d/test/7/1/kernel.bin", "base": "base/test/7/0/kernel.bin"}[layer]), -1)
		r.want("without the newer one", s.get("k"), "old")
	}
}

// fixed is a file system that moves and removes no entry.
type fixed struct{ vfs.FS }

func (f fixed) Rename(from, to string) error {
	if strings.HasPrefix(from, backend+"/") {
		return syscall.EXDEV
	}
	return f.FS.Rename(from, to)
}

func (f fixed) Remove(name string) error {
	if strings.HasPrefix(name, backend+"/") {
		return syscall.EROFS
	}
	return f.FS.Remove(name)
}

func (f fixed) RemoveIf(string, func() bool) error { return syscall.EROFS }

// P11: an entry that a driver refused and that cannot be moved is given by no other
// process, to a driver neither, nor does it stand for a good one that they store.
func TestRefusedEntryThatStaysInOtherProcesses(t *testing.T) {
	r := newRig(t)
	stays := on(func(f vfs.FS) vfs.FS { return fixed{f} })
	a, b := r.open("d", mib, stays), r.open("d", mib, stays)
	reading := r.open("d", mib, func(c *blobstore.Config) { c.ReadOnly = true })
	c := r.open("d", mib, stays)
	r.want("put", a.put("k", "bad"), "ok")
	before := []blobstore.Blob{b.blob("k"), reading.blob("k")}
	r.must(a.Refuse(background, a.blob("k")))
	r.want("here", a.get("k"), "miss reason=absent")
	for i, s := range []*shop{b, reading} {
		r.want("there", s.get("k"), "miss reason=absent")
		leave, miss, err := s.Enter(background, backend, before[i])
		leave()
		r.want("there, read before", words(miss.Reason, err), "quarantined <nil>")
	}
	r.want("a good one", words(c.put("k", "good"), a.get("k"), b.get("k")), "ok good good")
}

// unmarkable is one on which no file gets another mode either.
type unmarkable struct{ fixed }

func (unmarkable) Chmod(string, fs.FileMode) error { return syscall.EPERM }

// P11: nor to a driver where the entry cannot be marked either.
func TestRefusedEntryThatCannotBeMarked(t *testing.T) {
	r := newRig(t)
	stays := on(func(f vfs.FS) vfs.FS { return unmarkable{fixed{f}} })
	a, b, c := r.open("d", mib, stays), r.open("d", mib, stays), r.open("d", mib, stays)
	r.want("put", a.put("k", "bad"), "ok")
	r.must(a.Refuse(background, a.blob("k")))
	leave, miss, err := b.Enter(background, backend, b.blob("k")) // once
	leave()
	r.want("there", words(miss.Reason, err, b.get("k")), "quarantined <nil> miss reason=absent")
	r.want("a good one", words(c.put("k", "good"), a.get("k"), b.get("k")), "ok good good")
}

// P7, P11: who sets a refused blob aside reads no payload, since it has the lock of the directory.
func TestRefusedBlobIsNotRead(t *testing.T) {
	r, c := newRig(t), &tally{nil, &atomic.Int64{}}
	s := r.open("d", 100*mib, counted(c))
	r.want("put", s.put("k", "v", putOptions{bytes: 8 * mib}), "ok")
	b := s.blob("k")
	c.n.Store(0)
	r.must(s.Refuse(background, b))
	if n := c.n.Load(); n > 1000 {
		t.Errorf("%d operations and KiB", n)
	}
	r.want("aside", words(s.usage().Quarantined, s.get("k")), "1 miss reason=absent")
}

// P6, P11: a get makes no call of the system to see that a blob was not refused.
func TestGetLooksAtNoListOfRefusals(t *testing.T) {
	r := newRig(t)
	r.open("d", mib).put("j", "v")
	looked := &atomic.Int64{}
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return listWatch{f, looked} }))
	other := r.open("d", mib)
	other.put("k", "bad")
	r.must(other.Refuse(background, other.blob("k"))) // which is moved
	looked.Store(0)
	r.want("get", words(s.get("j"), looked.Load()), "v 0")
	r.must(os.Chmod(s.kernel("j"), 0o700))
	r.want("get of what may be refused", words(s.get("j"), looked.Load() > 0), "v true")
}

// listWatch counts looks at the list of refused blobs.
type listWatch struct {
	vfs.FS
	looked *atomic.Int64
}

func (w listWatch) Lstat(name string) (vfs.Info, error) {
	if name == "lease/refused" {
		w.looked.Add(1)
	}
	return w.FS.Lstat(name)
}

// P11: nor does it go on to other directories, in an archive, by a merge or of a base.
func TestRefusedEntryThatStaysElsewhere(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return fixed{f} }))
	r.want("put", s.put("k", "bad"), "ok")
	over := r.open("over", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("d")} })
	r.want("of a base", over.get("k"), "bad")
	r.must(s.Refuse(background, s.blob("k")))
	r.want("of a base", over.get("k"), "miss reason=absent")
	to := r.open("to", mib)
	r.want("archive", words(to.bring(s.exported()), to.get("k")), "map[] miss reason=absent")
	got, err := to.Merge(background, r.path("d"))
	r.want("merge", words(got.Taken, got.Rejected, err, to.get("k")), "0 map[quarantined:1] <nil> miss reason=absent")
}

// late is a file system whose first write to lease/refused stands still.
type late struct {
	vfs.FS
	once   *atomic.Bool
	at, on chan struct{}
}

func (l late) Append(name string) (vfs.File, error) {
	f, err := l.FS.Append(name)
	return lateFile{f, l}, err
}

type lateFile struct {
	vfs.File
	late
}

func (f lateFile) WriteAt(p []byte, offset int64) (int, error) {
	if f.once.CompareAndSwap(false, true) {
		close(f.at)
		<-f.on
	}
	return f.File.WriteAt(p, offset)
}

// P11, P8: a process that stood still while it noted a refused blob, and was passed over,
// takes nothing of what others have noted meanwhile.
func TestStoppedWhileItNotesARefusal(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	r.want("put", words(base.put("a", "bad a"), base.put("b", "bad b")), "ok ok")
	archive := base.exported()
	quick := func(c *blobstore.Config) { c.Lease = 50 * time.Millisecond }
	l := late{nil, &atomic.Bool{}, make(chan struct{}), make(chan struct{})}
	stopped := r.open("d", mib, quick, on(func(f vfs.FS) vfs.FS { l.FS = f; return l }))
	other := r.open("d", mib, quick)
	r.want("import", other.bring(archive), "map[]")
	a, b := stopped.blob("a"), other.blob("b")
	done := make(chan error, 1)
	go func() { done <- stopped.Refuse(background, a) }()
	<-l.at
	r.must(other.Refuse(background, b))
	close(l.on)
	r.must(<-done)
	other.reopen()
	r.want("import", words(other.bring(archive), other.get("a"), other.get("b")), "map[quarantined:2] miss reason=absent miss reason=absent")
}

// unlocked counts the files that are synced while somebody has the lock of the directory.
type unlocked struct {
	vfs.FS
	synced, held *int
}

func (u unlocked) Create(name string) (vfs.File, error) {
	f, err := u.FS.Create(name)
	return &unlockedFile{f, u}, err
}

type unlockedFile struct {
	vfs.File
	unlocked
}

func (f *unlockedFile) Sync() error {
	list, err := f.ReadDir("lease/directory")
	if err != nil {
		return err
	}
	*f.synced++
	lock, err := f.Open("lease/directory/" + list[len(list)-1].Name)
	if err != nil {
		return err
	}
	defer lock.Close()
	if free, err := lock.TryLock(); err != nil || !free {
		*f.held++
	}
	return f.File.Sync()
}

// P11: nobody waits for the sync of the list of what was refused where that is halved.
func TestRefusalsAreHalvedWithoutTheLock(t *testing.T) {
	r := newRig(t)
	var synced, held int
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return unlocked{f, &synced, &held} }))
	r.want("put", s.put("k", "v"), "ok")
	r.write(r.path("d/lease/refused"), bytes.Repeat([]byte(strings.Repeat("0", 64)+"\n"), 4096))
	synced, held = 0, 0
	r.must(s.Refuse(background, s.blob("k")))
	r.want("kept", bytes.Count(r.read(r.path("d/lease/refused")), []byte("\n")) < 2100, true)
	r.want("synced, with the lock", words(synced, held), "1 0")
	r.want("left", words(r.names("d/tmp"), s.audit()), "[] ok")
}
