//go:build unix

package blobstore_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P5: no operation that fails does more than refuse a store; it heals in ten
// minutes, counts as degraded and logs one line a kind.
func TestEveryFault(t *testing.T) {
	for _, op := range []string{"sync", "syncdir", "rename", "open", "mkdir", "write", "read"} {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EROFS, syscall.EACCES} {
			t.Run(op+"="+errno.Error(), func(t *testing.T) {
				r := newRig(t)
				s := r.open("d", mib, sync_(blobstore.Full))
				kinds := "1 1 0" // of all lines, those of writing and of reading
				if op == "read" || op == "open" {
					kinds = "2 1 1"
				}
				r.want("before", s.put("before", "v"), "ok")
				r.fault(op, errno)
				for i := range 4 {
					got := s.put(fmt.Sprintf("k%d", i), "v")
					r.want("put", got, "refused reason=degraded")
				}
				if op == "read" || op == "open" {
					r.want("get", s.get("before"), "miss reason=degraded")
				} else {
					r.want("get", s.get("before"), "v")
				}
				r.want("counted", s.Count(fault.Degraded) >= 4, true)
				r.want("logged", words(r.log.count("going on without"), r.log.count("op=write "), r.log.count("op=read ")), kinds)
				r.heal()
				r.clock(10 * time.Minute)
				r.want("after", s.put("after", "w"), "ok")
				r.want("after", s.get("after"), "w")
				r.want("before", s.get("before"), "v")
				r.want("verify", s.verify(), 0)
				r.want("audit", s.audit(), "ok")
			})
		}
	}
}

// P5, R1: a get that cannot read counts once, and its entry is not to blame.
func TestReadFault(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k", "v")
	r.fault("read", syscall.EIO)
	r.want("get", s.get("k"), "miss reason=degraded")
	r.heal()
	r.want("get", s.get("k"), "v")
	r.want("count", s.Count(fault.Degraded), 1)
}

// unread is a file system on which no kernel.bin can be opened for a while.
type unread struct {
	vfs.FS
	on    *atomic.Bool
	errno syscall.Errno
}

func (u unread) Open(name string) (vfs.File, error) {
	if path.Base(name) == "kernel.bin" && u.on.Load() {
		return nil, &vfs.Fault{Op: "open", Name: name, Err: u.errno}
	}
	return u.FS.Open(name)
}

// P4, P5: a repair that cannot read entries, as without descriptors or on a disk with a
// fault, tells them and takes no sound one away; one that is damaged beside them goes.
func TestRepairLeavesWhatItCannotRead(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EIO, syscall.EACCES, syscall.ESTALE} {
		r := newRig(t)
		var broken atomic.Bool
		s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return unread{f, &broken, errno} }))
		s.fill(1, 9, 1)
		r.flip(s.place("k5", "key.bin"), 0)
		broken.Store(true)
		bad, err := s.Verify(background, true)
		broken.Store(false)
		degraded, aside := 0, ""
		for _, i := range bad {
			if i.Flaw.Reason == fault.Degraded {
				degraded++
			}
			if i.SetAside {
				aside += i.Bucket
			}
		}
		r.want(words(errno, "degraded, set aside, entries"), words(err, degraded, aside, s.usage().Entries), words(nil, 8, s.Bucket("k5"), 8))
	}
}

// P5: the directory goes while we run; a clock set back a day.
func TestDirectoryGoes(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k", "v")
	r.must(os.RemoveAll(r.path("d")))
	r.want("get", s.get("k"), "miss reason=absent")
	for range 3 {
		r.want("put", s.put("k", "v"), "refused reason=degraded")
	}
	r.want("counted, logged", words(s.Count(fault.Degraded), r.log.count("going on without")), "3 1")
	r.clock(-24 * time.Hour)
	r.want("put", s.put("k", "v"), "ok")
	r.want("get", s.get("k"), "v")
	r.want("audit", s.audit(), "ok")
	r.fault("write", syscall.ENOSPC)
	r.want("put", s.put("j", "v"), "refused reason=degraded")
	r.heal()
	r.want("paused", s.put("j", "v"), "refused reason=degraded")
	r.want("counted, logged", words(s.Count(fault.Degraded), r.log.count("going on without")), "5 2")
	r.clock(10 * time.Minute)
	r.want("put", s.put("j", "v"), "ok")
}

// P5: what cannot be used at open is an error with its cause.
func TestOpenFails(t *testing.T) {
	r := newRig(t)
	r.write(r.path("file"), []byte("x"))
	_, err := blobstore.Open(background, r.config("file", mib))
	r.want("a file", said(err), "error io")
	_, err = blobstore.Open(background, r.config("file/below", mib))
	r.want("below a file", said(err), "error io")
	r.fault("mkdir", syscall.EROFS)
	_, err = blobstore.Open(background, r.config("d", mib))
	r.want("read-only", said(err), "error io")
	r.want("cause", strings.Contains(err.Error(), "read-only"), true)
	_, err = blobstore.Open(background, r.config("absent", mib, func(c *blobstore.Config) { c.ReadOnly = true }))
	r.want("nothing to read", said(err), "error io")
}

// P13: refused if others can write it.
func TestOwner(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k", "v")
	for _, mode := range []os.FileMode{0o777, 0o770, 0o702} {
		r.must(os.Chmod(r.path("d"), mode))
		_, err := blobstore.Open(background, r.config("d", mib))
		r.want(mode.String(), said(err), "error refused")
	}
	r.must(os.Chmod(r.path("d"), 0o755))
	r.want("get", r.open("d", mib).get("k"), "v")
}

// P9, P2: temporary files go by age, at open and every hour.
func TestSweep(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k", "v")
	left := func() (n int) {
		for _, name := range []string{"d/tmp/one", "d/tmp/two/kernel.bin"} {
			if r.exists(r.path(name)) {
				n++
			}
		}
		return n
	}
	r.write(r.path("d/tmp/one"), []byte("x"))
	r.write(r.path("d/tmp/two/kernel.bin"), []byte("x"))
	r.want("audit", s.audit(), "ok")
	s.reopen()
	r.want("young", left(), 2)
	r.age(59*time.Minute, "d/tmp")
	s.reopen()
	r.want("young", left(), 2)
	r.age(61*time.Minute, "d/tmp")
	s.reopen()
	r.want("old", left(), 0)
	r.write(r.path("d/tmp/one"), []byte("x"))
	r.age(61*time.Minute, "d/tmp")
	_, c, _, err := s.Obtain(background, backend, "held")
	r.must(err)
	_, ended, _, err := s.Obtain(background, backend, "ended")
	r.must(err)
	ended.Release()
	r.clock(2 * time.Hour)
	r.want("put", s.put("j", "w"), "ok")
	r.want("old", left(), 0)
	leases, err := os.ReadDir(r.path("d/lease/key"))
	r.must(err)
	r.want("leases of nobody go", len(leases), 1)
	c.Release()
	r.want("get", s.get("k"), "v")
	r.want("audit", s.audit(), "ok")
}

// P10: the levels sync what they promise.
func TestDurability(t *testing.T) {
	r := newRig(t)
	for level, want := range map[blobstore.Durability][2]bool{blobstore.None: {}, blobstore.File: {true, false}, blobstore.Full: {true, true}} {
		s := r.open(string(level), mib, sync_(level))
		r.io("")
		s.put("k", "v")
		r.mu.Lock()
		got := [2]bool{r.mu.counts["sync"] > 0, r.mu.counts["syncdir"] > 0}
		r.mu.Unlock()
		r.want(string(level), got, want)
	}
}

// P14: bases are asked after the directory, in order, and are never written. One that
// cannot be used is told by its path, with the reason, and the rest serves.
func TestBases(t *testing.T) {
	r := newRig(t)
	for i, dir := range []string{"one", "two"} {
		s := r.open(dir, mib)
		s.put("k", dir)
		s.put(fmt.Sprintf("only%d", i), dir)
		s.shut()
	}
	before := r.read(r.path("one/size.txt"))
	bases := func(c *blobstore.Config) { c.Bases = []string{r.path("one"), r.path("two")} }
	s := r.open("d", mib, bases)
	r.want("first base", s.get("k"), "one")
	r.want("second base", s.get("only1"), "two")
	r.want("not counted", s.usage().Entries, 0)
	r.want("put leaves a base's", s.put("k", "mine"), "ok")
	r.want("first base", s.get("k"), "one")
	r.want("put", s.put("own", "mine"), "ok")
	r.flip(r.path("one/test/"+s.Bucket("k")+"/0/kernel.bin"), -1)
	r.want("second base", s.get("k"), "two")
	r.want("hidden", s.usage().Quarantined, 0)
	r.want("there", r.exists(r.path("one/test/"+s.Bucket("k")+"/0/kernel.bin")), true)
	s.reopen()
	r.want("stays hidden", s.get("k"), "two")
	r.want("not seen again", s.Stats().SetAside, 0)
	r.want("audit", s.audit(), "ok")
	r.want("not written", string(r.read(r.path("one/size.txt"))), string(before))
	s.shut()
	s = r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("missing"), r.path("two")} })
	r.want("beside a missing base", s.get("only1"), "two")
	r.want("missing base", s.Stats().Reasons[fault.Degraded], 1)
	r.want("logged as a dot", r.log.count("lstat .:"), 0)
	s.shut()
	for what, spoil := range map[string]func(path string) error{
		"others can write it": func(path string) error { return os.Chmod(path, 0o777) },
		"is no folder": func(path string) error {
			return errors.Join(os.Rename(path, path+".away"), os.WriteFile(path, nil, 0o600))
		},
	} {
		for _, base := range []string{"one", "two"} { // each is told
			r.write(r.path(what+base+"/test/7/0/key.bin"), nil)
			r.must(spoil(r.path(what + base)))
		}
		s = r.open("d", mib, func(c *blobstore.Config) {
			c.Bases = []string{r.path(what + "one"), r.path(what + "two"), r.path("two")}
		})
		r.want("beside bad bases", words(s.get("own"), s.get("only1"), s.Stats().Reasons[fault.Degraded]), "mine two 2")
		for _, base := range []string{"one", "two"} {
			r.want("told", r.log.count("open the base "+r.path(what+base))*r.log.count(what) > 0, true)
		}
		s.shut()
	}
	ro := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true })
	r.want("read-only get", ro.get("own"), "mine")
	r.want("read-only put", ro.put("x", "y"), "refused reason=disabled")
	r.want("read-only usage", ro.usage().Entries, 1)
	_, c, miss, err := ro.Obtain(background, backend, "x")
	r.want("read-only claim", words(c == nil, miss.Reason, err), "true absent <nil>")
}

// P15: unsigned, untrusted and revoked are misses; the list is read again.
func TestTrust(t *testing.T) {
	r := newRig(t)
	list := func(ids map[string]ed25519.PublicKey, revoked ...string) {
		var keys []string
		for id, k := range ids {
			keys = append(keys, fmt.Sprintf(`{"id":%q,"public":%q}`, id, base64.StdEncoding.EncodeToString(k)))
		}
		text := fmt.Sprintf(`{"keys":[%s],"revoked":[`, strings.Join(keys, ","))
		for i, id := range revoked {
			text += strings.Repeat(",", min(i, 1)) + fmt.Sprintf("%q", id)
		}
		r.write(r.path("new"), []byte(text+"]}"))
		r.must(os.Rename(r.path("new"), r.path("trust.json")))
	}
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	other, _, err := ed25519.GenerateKey(nil)
	r.must(err)
	list(map[string]ed25519.PublicKey{"ci": public})
	signer := func(id string) option {
		return func(c *blobstore.Config) { c.Signer = &blobstore.Signer{ID: id, Key: private} }
	}
	trusting := func(c *blobstore.Config) { c.Trust = r.path("trust.json") }
	r.open("d", mib).put("plain", "v")
	r.open("d", mib, signer("stranger")).put("strange", "v")
	s := r.open("d", mib, trusting, signer("ci"))
	r.want("put", s.put("k", "v"), "ok")
	r.want("signed", s.get("k"), "v")
	r.want("unsigned", s.get("plain"), "miss reason=unsigned field=signature")
	r.want("stranger", s.get("strange"), "miss reason=untrusted_signer field=signature")
	r.want("stored beside", s.put("plain", "signed"), "ok")
	r.want("signed", s.get("plain"), "signed")
	r.want("nothing set aside", s.usage().Quarantined, 0)
	b, _, err := s.Get(background, backend, "k")
	r.must(err)
	r.want("trusted", s.Reuse(b).None(), true)
	list(map[string]ed25519.PublicKey{"ci": public}, "ci")
	r.want("revoked", s.get("k"), "miss reason=revoked field=signature")
	r.want("revoked", s.Reuse(b).Reason, fault.Revoked)
	list(map[string]ed25519.PublicKey{"ci": other})
	r.want("forged", s.get("k"), "miss reason=untrusted_signer field=signature")
	r.write(r.path("trust.json"), []byte("junk that is longer than before, so that the change shows in its size too"))
	r.want("unreadable list", s.get("k"), "miss reason=untrusted_signer field=signature")
	_, err = blobstore.Open(background, r.config("d", mib, trusting))
	r.want("unreadable list at open", said(err), "error invalid")
	list(map[string]ed25519.PublicKey{"ci": public})
	r.want("again", s.get("k"), "v")
	r.want("counts", words(s.Count(fault.Unsigned), s.Count(fault.Revoked), s.Count(fault.UntrustedSigner)), "1 1 3")
}

// P11: what a driver refuses or dies on is set aside.
func TestDriver(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.Aborts = func(string) bool { return true }
		c.Lease = 100 * time.Millisecond
	})
	s.put("k", "v")
	b, _, err := s.Get(background, backend, "k")
	r.must(err)
	leave, miss, err := s.Enter(background, backend, b)
	r.want("enter", words(miss.Reason, err), " <nil>")
	_, miss, err = s.Enter(background, backend, b)
	r.want("busy", words(miss.Reason, err), "busy <nil>")
	leave()
	leave, miss, _ = s.Enter(background, backend, b)
	r.want("left", miss.None(), true)
	leave()
	r.want("marks", len(r.names("d/mark")), 0)
	cmd := r.child("die", r.path("d"), words(mib), "k")
	_ = cmd.Wait()
	r.want("mark left behind", len(r.names("d/mark")), 1)
	_, miss, _ = s.Enter(background, backend, b)
	r.want("crashed", miss.Reason, fault.Quarantined)
	r.want("set aside", s.usage().Quarantined, 1)
	r.want("forgotten", len(r.names("d/mark")), 0)
	r.want("get", s.get("k"), "miss reason=absent")
	r.want("put", s.put("k", "w"), "ok")
	b, _, err = s.Get(background, backend, "k")
	r.must(err)
	r.must(s.Refuse(background, b))
	r.want("count", s.Count(fault.DriverRefused), 1)
	r.want("get", s.get("k"), "miss reason=absent")
	r.want("put", s.put("k", "new"), "ok")
	r.must(s.Refuse(background, b)) // the one that was refused is gone; the new one stays
	r.want("get", s.get("k"), "new")
	r.want("audit", s.audit(), "ok")
}

func (r *rig) names(dir string) []string {
	list, err := os.ReadDir(r.path(dir))
	r.must(err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// P8, P15: an entry that this store would not load is stored once: a second put of
// the key by a store without a trusted key, or for instruction sets that are absent,
// is refused and evicts nothing.
func TestUselessTwice(t *testing.T) {
	r := newRig(t)
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	r.write(r.path("trust.json"), fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	trusting := func(c *blobstore.Config) { c.Trust = r.path("trust.json") }
	signing := r.open("d", mib, trusting, func(c *blobstore.Config) { c.Signer = &blobstore.Signer{ID: "ci", Key: private} })
	plain := r.open("d", mib, trusting)
	r.want("first", plain.put("k", "v0"), "ok")
	for i := range 3 {
		r.want("again", plain.put("k", fmt.Sprint("v", i)), "refused reason=unsigned")
	}
	r.want("entries", plain.usage().Entries, 1)
	r.want("signed", signing.put("k", "signed"), "ok")
	r.want("signed", words(plain.get("k"), signing.put("k", "other"), plain.put("k", "other"), plain.usage().Entries), "signed ok ok 2")

	one, two := putOptions{requires: []string{"amx"}}, putOptions{requires: []string{"avx512"}}
	r.want("first", plain.put("wide", "v", one), "ok")
	s := r.open("e", mib)
	r.want("for amx", words(s.put("k", "v", one), s.put("k", "w", one)), "ok refused reason=incompatible")
	r.want("for avx512", words(s.put("k", "v", two), s.put("k", "w", two)), "ok refused reason=incompatible")
	r.want("for this machine", words(s.put("k", "here"), s.get("k"), s.usage().Entries), "ok here 3")
}

// P14, P15: what lies in a base does not keep the directory from having its own, though this
// store would load neither.
func TestUselessInABase(t *testing.T) {
	r := newRig(t)
	r.write(r.path("trust.json"), []byte(`{"keys":[]}`))
	base := r.open("base", mib)
	r.want("put", base.put("k", "v"), "ok")
	s := r.open("d", mib, func(c *blobstore.Config) { c.Bases, c.Trust = []string{base.cfg.Dir}, r.path("trust.json") })
	r.want("first, second", words(s.put("k", "v"), s.put("k", "v"), s.usage().Entries), "ok refused reason=unsigned 1")
}

// P4, P15: of an entry whose signature does not count nothing else is believed: it is the
// farthest.
func TestUnsignedIsFarthest(t *testing.T) {
	r := newRig(t)
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	r.write(r.path("trust.json"), fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	trusting := func(c *blobstore.Config) { c.Trust = r.path("trust.json") }
	r.open("d", mib).put("k", "plain")
	r.id.Library, r.id.Driver = "0", "old"
	r.open("d", mib, trusting, func(c *blobstore.Config) { c.Signer = &blobstore.Signer{ID: "ci", Key: private} }).put("k", "signed")
	r.id = defaultIdentity()
	s := r.open("d", mib, trusting)
	r.want("entries, get", words(s.usage().Entries, s.get("k")), "2 miss reason=outdated field=library")
}

// P15: while the list cannot be read nothing that is there changes, whoever stores; and
// a signed entry is not replaced by one of its key that was signed earlier.
func TestSignedStays(t *testing.T) {
	r := newRig(t)
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	list := fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public))
	r.write(r.path("trust.json"), list)
	signing := func(c *blobstore.Config) {
		c.Trust, c.Signer = r.path("trust.json"), &blobstore.Signer{ID: "ci", Key: private}
	}
	old := r.open("old", mib, signing)
	r.want("put", old.put("k", "old"), "ok")
	r.clock(time.Hour)
	s := r.open("d", mib, signing)
	r.want("put", s.put("k", "new"), "ok")
	was := r.read(s.kernel("k"))
	var archive bytes.Buffer
	_, err = old.Export(background, &archive)
	r.must(err)
	for range 2 { // into a directory that knows it, and one that lists
		got, err := s.Merge(background, old.cfg.Dir)
		r.want("merge", words(got.Taken, got.Known, got.Rejected, err, s.get("k"), s.usage().Entries), "1 1 map[] <nil> new 1")
		got, err = s.Import(background, bytes.NewReader(archive.Bytes()))
		r.want("import", words(got.Taken, got.Known, got.Rejected, err, s.get("k"), s.usage().Entries), "1 1 map[] <nil> new 1")
		r.clock(-2 * time.Hour)
		r.want("a put that is signed earlier", words(s.put("k", "earlier"), s.get("k"), s.usage().Entries), "ok new 1")
		r.clock(2 * time.Hour)
		s.shut()
		r.must(os.Remove(r.path("d/lease/index")))
		s = r.open("d", mib, signing)
	}
	r.write(r.path("trust.json"), []byte("{"))
	r.want("get", words(s.get("k"), r.log.count("op=trust")), "miss reason=untrusted_signer field=signature 1")
	for i := range 3 {
		r.want("put", s.put("k", fmt.Sprint("v", i)), "refused reason=untrusted_signer")
	}
	got, err := s.Merge(background, old.cfg.Dir)
	r.want("merge", words(got.Taken, got.Rejected, err), "0 map[untrusted_signer:1] <nil>")
	r.write(r.path("trust.json"), list)
	r.want("unchanged", words(s.get("k"), bytes.Equal(was, r.read(s.kernel("k"))), s.usage().Entries), "new true 1")
}

// lookless is a file system on which files cannot be looked at while it is on.
type lookless struct {
	vfs.FS
	on *atomic.Bool
}

func (f lookless) Lstat(name string) (vfs.Info, error) {
	if f.on.Load() && strings.HasSuffix(name, "/kernel.bin") {
		return vfs.Info{}, syscall.EMFILE
	}
	return f.FS.Lstat(name)
}

// P5, P7: entries that cannot be looked at for a moment are not counted as empty: the
// capacity would be exceeded, and nothing would tell.
func TestEntriesThatCannotBeLookedAt(t *testing.T) {
	r := newRig(t)
	var on atomic.Bool
	s := r.open("d", 350*kib, on_(&on))
	s.fill(1, 3, 100*kib)
	s.shut()
	r.must(os.Remove(r.path("d/lease/index")))
	on.Store(true)
	_, err := blobstore.Open(background, s.cfg)
	r.want("open", said(err), "error io")
	on.Store(false)
	s = r.open("d", 350*kib, on_(&on))
	s.fill(4, 5, 100*kib)
	r.want("have", words(s.has(1, 2, 3, 4, 5), s.usage().DiskBytes <= 350*kib, s.audit()), "[3 4 5] true ok")
}

func on_(broken *atomic.Bool) option {
	return on(func(f vfs.FS) vfs.FS { return lookless{f, broken} })
}
