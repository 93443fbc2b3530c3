//go:build unix

package blobstore_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/limit"
)

// P2: the layout is part of the contract.
func TestLayout(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	r.want("put", s.put("k1", "v1"), "ok")
	r.want("get", s.get("k1"), "v1")
	r.want("get", s.get("k2"), "miss reason=absent")
	r.want("again", s.put("k1", "v1"), "ok")
	r.want("entries", s.usage().Entries, 1)
	r.want("bucket", s.Bucket("k1"), "16115094830269597651")
	r.want("key", string(r.read(r.path("d/test/16115094830269597651/0/key.bin"))), "k1")
	r.want("put", s.put("matmul", "v2", putOptions{backend: "gpu"}), "ok")
	r.want("kernel", r.exists(r.path("d/gpu/17420419037984644388/0/kernel.bin")), true)
	r.want("other backend", s.get("matmul"), "miss reason=absent")
	r.want("own backend", s.getOf("gpu", "matmul"), "v2")
	r.want("audit", s.audit(), "ok")
	r.want("size.txt", string(r.read(r.path("d/size.txt"))), s.usage().Bytes)
	for _, b := range []string{"", "tmp", "..", "a/b", ".x", "lease", "size.txt", "ü"} {
		r.want("backend "+b, said(s.Put(background, b, "k", nil, 0)), "error invalid")
	}
	info, err := os.Stat(r.path("d"))
	r.must(err)
	r.want("mode", info.Mode().Perm(), os.FileMode(0o700)) // P13
}

// P2, K2: two keys in one bucket.
func TestOneBucket(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, hash(7))
	s.put("a", "va")
	s.put("b", "vb")
	for range 2 {
		r.want("a", s.get("a"), "va")
		r.want("b", s.get("b"), "vb")
		r.want("slot 0", r.exists(r.path("d/test/7/0/key.bin")), true)
		r.want("slot 1", r.exists(r.path("d/test/7/1/key.bin")), true)
		r.want("absent", s.get("x"), "miss reason=key_collision")
		s.reopen()
	}
	r.must(os.RemoveAll(r.path("d/test/7/0")))
	s.reopen()
	r.want("c", s.put("c", "vc"), "ok")
	r.want("lowest free slot", string(r.read(r.path("d/test/7/0/key.bin"))), "c")
	r.want("b stays", s.get("b"), "vb")
	r.want("audit", s.audit(), "ok")
}

// A store opens the key of each neighbour in the bucket once, before it has the lock, and
// no neighbour's kernel.
func TestNeighboursAreNotRead(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, hash(7))
	opens := func(key string) int {
		r.io("")
		r.want("put", s.put(key, "v"), "ok")
		return r.io("open")
	}
	s.put("first", "v")
	few := opens("few")
	for i := range 9 {
		s.put(words(i), "v")
	}
	r.want("more opens with ten neighbours more", opens("many")-few, 10)
}

// P2, K1, K6: odd keys never alias, an empty one is an error, an empty payload is an entry.
func TestKeysAndPayloads(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	for _, k := range []string{"a\x00b", "a\x00c", "a", "../up", strings.Repeat("x", 10000)} {
		r.want("put", s.put(k, "v"+k[:1]+fmt.Sprint(len(k))), "ok")
	}
	for _, k := range []string{"a\x00b", "a\x00c", "a", "../up"} {
		r.want("get", s.get(k), "v"+k[:1]+fmt.Sprint(len(k)))
	}
	r.want("entries", s.usage().Entries, 5)
	r.want("outside", r.exists(r.path("up")), false)
	r.want("empty key", s.put("", "v"), "error invalid")
	r.want("empty key", s.get(""), "error invalid")
	r.want("negative cost", said(s.Put(background, backend, "k", nil, -1)), "error invalid")
	r.want("empty payload", s.put("k", ""), "ok")
	s.reopen()
	r.want("later one", s.put("k", "later"), "ok")
	b, miss, err := s.Get(background, backend, "k")
	r.want("empty payload", fmt.Sprint(len(b.Payload), miss.None(), err), "0 true <nil>")
	r.want("verify", s.verify(), 0)
	r.want("audit", s.audit(), "ok")
}

// P1: capacity 0, no directory, a backend switched off: nothing is read or written.
func TestOff(t *testing.T) {
	r := newRig(t)
	for name, s := range map[string]*shop{"capacity": r.open("d", 0), "directory": r.open("d", mib, func(c *blobstore.Config) { c.Dir = "" })} {
		r.want(name, s.put("k", "v"), "refused reason=disabled")
		r.want(name, s.get("k"), "miss reason=disabled")
		r.want(name, s.usage().Entries, 0)
		r.want(name, s.audit(), "ok")
		r.want(name, s.Count(fault.Disabled), 2)
	}
	r.want("directory", r.exists(r.path("d")), false)
	s := r.open("d", mib, func(c *blobstore.Config) { c.Off = []string{"gpu"} })
	r.want("off", s.put("k", "v", putOptions{backend: "gpu"}), "refused reason=disabled")
	r.want("on", s.put("k", "v"), "ok")
	from := r.open("e", mib)
	from.put("k", "of a backend that is off", putOptions{backend: "gpu"})
	from.put("j", "v")
	var archive bytes.Buffer
	_, err := from.Export(background, &archive)
	r.must(err)
	for _, take := range []func() (blobstore.Transfer, error){
		func() (blobstore.Transfer, error) { return s.Merge(background, r.path("e")) },
		func() (blobstore.Transfer, error) { return s.Import(background, &archive) },
	} {
		got, err := take()
		r.want("taken", words(got.Taken, got.Rejected, err), words(1, map[fault.Reason]int{fault.Disabled: 1}, nil))
	}
	r.want("off", r.exists(r.path("d/gpu")), false)
}

// P12: without a build identity nothing is stored or loaded.
func TestUnknownBuild(t *testing.T) {
	r := newRig(t)
	for _, build := range []string{"", "b2"} {
		r.id.Library, r.id.Build = "", build
		s := r.open("d", mib)
		r.want("put", s.put("k", "v"), "refused reason=disabled")
		r.want("get", s.get("k"), "miss reason=disabled")
	}
	r.id.Library, r.id.Build = "1.0", ""
	r.want("get", r.open("d", mib).put("k", "v"), "refused reason=disabled")
	r.id.Build = "b3"
	r.want("get", r.open("d", mib).get("k"), "miss reason=absent")
}

// P4, P8, K7, R1: each part of the producer's identity, and tuning that is none.
func TestIdentity(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k1", "v1")
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() { r.id.Library = "x" }, "miss reason=outdated field=library"},
		{func() { r.id.Build = "x" }, "miss reason=outdated field=build"},
		{func() { r.id.Compiler = "x" }, "miss reason=outdated field=compiler"},
		{func() { r.id.Driver = "x" }, "miss reason=outdated field=driver"},
		{func() { r.id.Device = "x" }, "miss reason=device_mismatch field=device"},
		{func() { r.id.Device, r.id.Compiler = "x", "x" }, "miss reason=outdated field=compiler"},
		{func() { r.id.ISA = nil }, "v1"},
	} {
		r.id = defaultIdentity()
		c.change()
		r.want("get", r.open("d", mib).get("k1"), c.want)
	}
	r.want("quarantined", s.usage().Quarantined, 0)
	r.id = defaultIdentity()
	r.id.ISA = []string{"avx2", "avx512", "fma"}
	s = r.open("d", mib)
	s.put("wide", "v1", putOptions{requires: []string{"avx512"}})
	s.put("narrow", "v2", putOptions{requires: []string{"avx2", "fma"}})
	r.id = defaultIdentity()
	s = r.open("d", mib)
	r.want("narrow", s.get("narrow"), "v2")
	r.want("wide", s.get("wide"), "miss reason=incompatible field=isa")
	r.want("narrow", s.get("narrow"), "v2")
	r.must(os.CopyFS(r.path("moved"), os.DirFS(r.path("d"))))
	r.must(os.Chmod(r.path("moved"), 0o700))
	r.want("moved", r.open("moved", mib).get("k1"), "v1")
}

// P4: of several misfits the nearest speaks, then the newest.
func TestNearestMisfit(t *testing.T) {
	r := newRig(t)
	r.id.Driver, r.id.Device, r.id.Library = "old", "other", "0"
	r.open("d", mib).put("k", "far")
	r.id = defaultIdentity()
	r.id.Device = "other"
	r.open("d", mib).put("k", "near")
	r.id = defaultIdentity()
	s := r.open("d", mib)
	r.want("entries", s.usage().Entries, 2)
	r.want("nearest", s.get("k"), "miss reason=device_mismatch field=device")
	r.id.Device, r.id.Compiler = "third", "x"
	r.want("nearest", r.open("d", mib).get("k"), "miss reason=outdated field=compiler")
	r.id = defaultIdentity()
	r.id.Driver = "next"
	r.clock(time.Second)
	r.open("d", mib).put("k", "newer")
	r.id = defaultIdentity()
	r.want("newest of equals", r.open("d", mib).get("k"), "miss reason=outdated field=driver")
	r.want("avoidable", r.log.count("avoidable") > 0, true) // R2
}

// P4, P8: two driver versions on one directory do not push each other out.
func TestSideBySide(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k1", "old")
	r.id.Driver = "next"
	s = r.open("d", mib)
	r.want("get", s.get("k1"), "miss reason=outdated field=driver")
	r.want("put", s.put("k1", "new"), "ok")
	r.want("get", s.get("k1"), "new")
	r.want("entries", s.usage().Entries, 2)
	r.id = defaultIdentity()
	s = r.open("d", mib)
	r.want("get", s.get("k1"), "old")
	r.want("put", s.put("k1", "other"), "ok")
	r.want("get", s.get("k1"), "old")
	r.want("entries", s.usage().Entries, 2)
	r.want("audit", s.audit(), "ok")
}

// R2: the factors that differ from the nearest entry.
func TestExplain(t *testing.T) {
	r := newRig(t)
	factors := func(c *blobstore.Config) {
		c.Factors = func(_, key string) map[string]string {
			m := map[string]string{}
			for part := range strings.SplitSeq(key, ";") {
				name, value, _ := strings.Cut(part, "=")
				m[name] = value
			}
			return m
		}
	}
	s := r.open("d", mib, factors)
	explain := func(key string) string {
		e, err := s.Explain(background, backend, key)
		r.must(err)
		return strings.Join(e.Factors, " ")
	}
	r.want("empty", explain("kind=a;x=1;y=2"), "")
	s.put("kind=a;x=1;y=2", "v")
	s.put("kind=b;x=1;y=1", "v")
	s.put("kind=a;x=9;y=9", "v")
	r.want("hit", explain("kind=a;x=1;y=2"), "")
	r.want("same kind", explain("kind=a;x=1;y=1"), "y")
	r.want("two", explain("kind=a;x=2;z=1"), "x y z")
	r.id.Driver, r.id.Compiler = "535.2", "gcc13"
	s = r.open("d", mib, factors)
	r.want("identity", explain("kind=a;x=1;y=2"), "compiler driver")
	r.want("both", explain("kind=a;x=1;y=1"), "compiler driver y")
	s = r.open("d", mib)
	r.want("opaque", explain("other"), "compiler driver key")
	for _, reason := range fault.Reasons() { // explaining counts nothing
		r.want(string(reason), s.Count(reason), 0)
	}
}

// P1, P7: config mistakes are found at once and change nothing.
func TestConfig(t *testing.T) {
	r := newRig(t)
	_, err := blobstore.Open(background, blobstore.Config{Dir: r.path("d"), Capacity: limit.Of(-1), Policy: "best", Durability: "some", Lease: -1, Off: []string{"../x"}, Bases: []string{"a", ""}})
	r.want("error", said(err), "error invalid")
	for _, part := range []string{"-1", "best", "some", "lease", "../x", "Bases[1] is empty"} {
		r.want(part, strings.Contains(err.Error(), part), true)
	}
	for _, short := range []time.Duration{1, time.Millisecond, 49 * time.Millisecond} { // P8: no beat holds it
		_, err := blobstore.Open(background, blobstore.Config{Dir: r.path("d"), Capacity: limit.Of(mib), Lease: short})
		r.want("lease", words(short, said(err)), words(short, "error invalid"))
	}
	seed := make([]byte, ed25519.SeedSize) // P15: signing with one would panic, at the first store
	for _, signer := range []*blobstore.Signer{{}, {ID: "ci"}, {ID: "ci", Key: seed}, {Key: ed25519.NewKeyFromSeed(seed)}} {
		_, err := blobstore.Open(background, blobstore.Config{Dir: r.path("d"), Capacity: limit.Of(mib), Signer: signer})
		r.want("signer", words(said(err), strings.Contains(fmt.Sprint(err), "64, not its seed")), "error invalid true")
	}
	r.want("made", r.exists(r.path("d")), false)
	s := r.open("d", mib)
	r.must(s.Close(background))
	r.must(s.Close(background))
	r.want("closed", s.put("k", "v"), "error closed")
	r.want("closed", s.get("k"), "error closed")
	r.want("prune", said(s.Prune(background, 0)), "error closed")
}

// K7: where the instruction sets that a blob needs are not known it needs all that
// are present; an empty list means that it runs everywhere.
func TestRequiresNotKnown(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	r.must(s.Put(background, backend, "unknown", []byte("v"), 0))
	r.must(s.Put(background, backend, "none", []byte("v"), 0, []string{}...))
	r.must(s.Put(background, backend, "one", []byte("v"), 0, "fma"))
	r.id.ISA = []string{"fma"}
	other := r.open("d", mib)
	r.want("unknown", other.get("unknown"), "miss reason=incompatible field=isa")
	r.want("none", other.get("none"), "v")
	r.want("one", other.get("one"), "v")
}

// With Existing a directory that is no store is refused, and nothing is made in it.
func TestExisting(t *testing.T) {
	r := newRig(t)
	r.must(os.MkdirAll(r.path("documents/lists/1"), 0o700))
	r.write(r.path("documents/lists/1/notes"), []byte("mine"))
	for _, readOnly := range []bool{false, true} {
		for _, dir := range []string{"documents", "missing"} {
			existing := func(c *blobstore.Config) { c.Existing, c.ReadOnly = true, readOnly }
			_, err := blobstore.Open(background, r.config(dir, mib, existing))
			r.want(dir, errors.Is(err, fault.ErrNotFound), true)
		}
		list, err := os.ReadDir(r.path("documents"))
		r.want("made", words(len(list), r.exists(r.path("missing")), err), "1 false <nil>")
	}
	s := r.open("d", mib)
	r.want("put", s.put("k", "v"), "ok")
	s.cfg.Existing = true
	s.reopen()
	r.want("get", s.get("k"), "v")
	r.must(os.RemoveAll(r.path("d/lease")))
	r.must(os.Remove(r.path("d/size.txt")))
	s.reopen()
	r.want("entries alone", s.get("k"), "v")
}

// P13: what a stranger has under a name of a store makes his directory no store: nothing in
// it is made, replaced or removed by who wants one, or by a first open that would.
func TestStrangersNamesAreNoStore(t *testing.T) {
	for names, opens := range map[string]bool{ // whether a store may be begun there
		"size.txt=mine":                                false,
		"size.txt=12":                                  true,
		"lease/directory/":                             true,
		"lease/directory/notes=1 size.txt=mine":        false,
		"lease/directory/7/ tmp/thesis=mine":           false,
		"size.txt=12 uses/thesis=mine":                 false,
		"lease/index=mine":                             false,
		"lease/index/contract=mine":                    false,
		"lease/journal=mine":                           false,
		"lease/late=mine":                              false,
		"lease/settings/contract=mine":                 false,
		"lease/refused=mine":                           false,
		"lease/key/house/12=mine":                      false,
		"lease/directory/notes=1 quarantine/held=mine": false,
	} {
		r := newRig(t)
		for _, name := range strings.Fields(names) {
			if name, text, file := strings.Cut(name, "="); file {
				r.write(r.path("d/"+name), []byte(text))
			} else {
				r.must(os.MkdirAll(r.path("d/"+name), 0o700))
			}
		}
		before := r.tree("d")
		for _, readOnly := range []bool{false, true} {
			_, err := blobstore.Open(background, r.config("d", mib, func(c *blobstore.Config) { c.Existing, c.ReadOnly = true, readOnly }))
			r.want(names, words(errors.Is(err, fault.ErrNotFound), r.tree("d")), words(true, before))
		}
		_, err := r.open("into", mib).Merge(background, r.path("d"))
		r.want("merge "+names, words(errors.Is(err, fault.ErrNotFound), r.tree("d")), words(true, before))
		s, err := blobstore.Open(background, r.config("d", mib))
		if opens {
			r.must(err)
			r.must(s.Close(background))
			continue
		}
		r.want("open "+names, words(errors.Is(err, fault.ErrRefused), r.tree("d")), words(true, before))
	}
}

// tree is what a directory holds.
func (r *rig) tree(dir string) (all string) {
	r.must(filepath.WalkDir(r.path(dir), func(name string, e fs.DirEntry, err error) error {
		if all += strings.TrimPrefix(name, r.root) + "\n"; err == nil && e.Type().IsRegular() {
			all += string(r.read(name)) + "\n"
		}
		return err
	}))
	return all
}
