//go:build unix

package blobstore_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/frame"
)

// One archive carries a store's entries, each verified on the way in.
func TestExportImport(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("a", "va", putOptions{cost: 7, bytes: 100})
	s.put("b", "vb", putOptions{backend: "gpu", requires: []string{"avx2"}})
	s.put("bad", "x")
	r.flip(s.kernel("bad"), -1)
	var archive bytes.Buffer
	out, err := s.Export(background, &archive)
	r.want("export", words(out.Taken, out.Rejected[fault.Checksum], err), "2 1 <nil>")
	text := archive.Bytes()

	into := r.open("e", mib)
	in, err := into.Import(background, bytes.NewReader(text))
	r.want("import", words(in.Taken, len(in.Rejected), err), "2 0 <nil>")
	r.want("a", into.get("a"), "va")
	r.want("b", into.getOf("gpu", "b"), "vb")
	b, _, _ := into.Get(background, backend, "a")
	r.want("cost", b.Cost, "7s")
	r.want("same file", string(r.read(into.kernel("a"))), string(r.read(s.kernel("a"))))
	in, err = into.Import(background, bytes.NewReader(text))
	r.want("again", words(in.Taken, into.usage().Entries, err), "2 2 <nil>")
	r.want("audit", into.audit(), "ok")

	for i := range text { // no byte of an archive is believed
		if i%61 != 0 {
			continue
		}
		damaged := bytes.Clone(text)
		damaged[i] ^= 4
		f := r.open("f", mib)
		_, _ = f.Import(background, bytes.NewReader(damaged)) // whatever it says, what it took is sound
		r.want("verify", f.verify(), 0)
		r.wantOf("a", f.get("a"), "va", "miss reason=absent")
		r.must(f.Prune(background, 0))
		f.shut()
	}
	_, err = into.Import(background, strings.NewReader("no archive"))
	r.want("junk", said(err), "error invalid")
	r.want("whole", said(blobstore.Whole(bytes.NewReader(text))), "ok")
	r.want("junk", said(blobstore.Whole(strings.NewReader("no archive"))), "error invalid")
	for n := 0; n < len(text)-512; n += 256 { // where a file ends, too, the archive does not
		_, err = into.Import(background, bytes.NewReader(text[:n]))
		r.want("cut to "+strconv.Itoa(n), said(err), "error invalid")
		r.want("part of "+strconv.Itoa(n), said(blobstore.Whole(bytes.NewReader(text[:n]))), "error invalid")
	}
}

// A store for one backend alone neither tells of the others' entries nor takes or
// evicts them.
func TestOnlyOneBackend(t *testing.T) {
	r := newRig(t)
	both := func(dir string) *shop {
		s := r.open(dir, mib)
		s.put("a", "va")
		s.put("b", "vb", putOptions{backend: "gpu"})
		s.put("c", "vc", putOptions{backend: "gpu"})
		return s
	}
	only := func(c *blobstore.Config) { c.Only = "gpu" }
	all := both("d")
	r.flip(all.kernel("a"), -1)
	gpu := r.open("d", mib, only)
	r.want("bad", gpu.verify(), 0)
	u := gpu.usage()
	r.want("usage", words(u.Entries, len(u.ByBackend), u.Bytes == u.ByBackend["gpu"]), "2 1 true")

	var archive, whole bytes.Buffer
	out, err := gpu.Export(background, &archive)
	r.want("export", words(out.Taken, len(out.Rejected), err), "2 0 <nil>")
	_, err = both("e").Export(background, &whole)
	r.must(err)
	into := r.open("f", mib, only)
	in, err := into.Import(background, &whole)
	r.want("import", words(in.Taken, len(in.Rejected), err), "2 0 <nil>")
	r.want("others", into.get("a"), "miss reason=absent")
	merged, err := r.open("g", mib, only).Merge(background, r.path("e"))
	r.want("merge", words(merged.Taken, r.open("g", mib).usage().Entries, err), "2 2 <nil>")

	r.must(gpu.Prune(background, 0))
	r.want("pruned", words(gpu.usage().Entries, r.open("d", mib).usage().Entries), "0 1")
	_, err = blobstore.Open(background, blobstore.Config{Dir: r.path("h"), Only: "../x"})
	r.want("backend", said(err), "error invalid")
}

// Names in an archive lead nowhere, sizes are not believed, and what is not
// trusted is not taken.
func TestHostileArchive(t *testing.T) {
	r := newRig(t)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, text string) {
		h.Size = int64(len(text))
		r.must(w.WriteHeader(&h))
		_, err := w.Write([]byte(text))
		r.must(err)
	}
	add(tar.Header{Name: "../../outside/key.bin", Mode: 0o600}, "k")
	add(tar.Header{Name: "test/1/0/kernel.bin", Mode: 0o600}, "x")
	add(tar.Header{Name: "test/1/0/key.bin", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "")
	add(tar.Header{Name: "tmp/1/0/key.bin", Mode: 0o600}, "k")
	add(tar.Header{Name: "test/1/0/key.bin", Mode: 0o600}, strings.Repeat("k", 2*mib))
	add(tar.Header{Name: "test/1/0/key.bin", Mode: 0o600}, "alone")
	add(tar.Header{Name: "test/1/1/key.bin", Mode: 0o600}, "alone, too")
	r.must(w.Close())
	s := r.open("d", mib)
	in, err := s.Import(background, bytes.NewReader(archive.Bytes()))
	r.want("import", words(in.Taken, in.Rejected[fault.Format], in.Rejected[fault.TooLarge], err), "0 6 1 <nil>")
	r.want("entries", s.usage().Entries, 0)

	r.write(r.path("trust.json"), []byte(`{"keys":[]}`))
	u := r.open("u", mib)
	u.put("k", "v")
	var plain bytes.Buffer
	_, err = u.Export(background, &plain)
	r.must(err)
	trusting := r.open("t", mib, func(c *blobstore.Config) { c.Trust = r.path("trust.json") })
	in, err = trusting.Import(background, &plain)
	r.want("unsigned", words(in.Taken, in.Rejected[fault.Unsigned], err), "0 1 <nil>")
}

// P12: an entry of an archive whose producer has no library or no build is not taken.
func TestArchiveOfTheUnknown(t *testing.T) {
	r := newRig(t)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for i, id := range []frame.Identity{{Library: "1.0"}, {Build: "b1"}} {
		key := fmt.Sprint("k", i)
		file, err := frame.Encode(frame.ID{Backend: backend, Key: key}, frame.Entry{Created: r.now(), Identity: id, Payload: []byte("v")}, nil)
		r.must(err)
		file.Seal(frame.ID{Backend: backend, Key: key})
		for _, part := range []struct {
			name string
			text []byte
		}{{"key.bin", []byte(key)}, {"kernel.bin", append(file.Head, file.Payload...)}} {
			r.must(w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%s/%d/0/%s", backend, i, part.name), Mode: 0o600, Size: int64(len(part.text))}))
			_, err := w.Write(part.text)
			r.must(err)
		}
	}
	r.must(w.Close())
	s := r.open("d", mib)
	r.want("import, entries", words(s.bring(archive.Bytes()), s.usage().Entries), "map[disabled:2] 0")
}

// P5: an import into a directory that cannot be written is an error, and its entries are not
// told as rejected.
func TestImportThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	from := r.open("from", mib)
	r.want("put", words(from.put("j", "v"), from.put("k", "v")), "ok ok")
	s := r.open("d", mib)
	r.fault("mkdir", syscall.EIO)
	in, err := s.Import(background, bytes.NewReader(from.exported()))
	r.want("import", words(said(err), in.Taken, in.Rejected), "refused reason=degraded 0 map[]")
}

// P3, P4: an archive's file with holes is refused before it is filled with them.
func TestSparseArchive(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 64*mib)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, text string) {
		h.Size, h.Mode = int64(len(text)), 0o600
		r.must(w.WriteHeader(&h))
		_, err := w.Write([]byte(text))
		r.must(err)
	}
	place := "test/" + s.Bucket("k") + "/0/"
	add(tar.Header{Name: place + "key.bin"}, "k")
	holes := fmt.Sprintf("%-512s.", "1\n0\n1\n") // a map of the one byte that is there, and that byte
	add(tar.Header{Name: "stand-in", PAXRecords: map[string]string{"not.sparse.major": "1", "not.sparse.minor": "0",
		"not.sparse.name": place + "kernel.bin", "not.sparse.realsize": words(32 * mib)}}, holes)
	r.must(w.Close())
	// The library writes no such records, but their names are under no checksum.
	text := bytes.ReplaceAll(archive.Bytes(), []byte("not.sparse."), []byte("GNU.sparse."))
	h := tar.NewReader(bytes.NewReader(text))
	_, _ = h.Next()
	second, err := h.Next()
	r.must(err)
	r.want("it claims", words(second.Name == place+"kernel.bin", second.Size), words(true, 32*mib))
	r.want("allocation", allocated(func() {
		in, err := s.Import(background, bytes.NewReader(text))
		r.want("import", words(in.Taken, in.Rejected, err), "0 map[format:1] <nil>")
	}) < mib, true)
}

// P4: an entry of an archive that is not taken counts once, for the reason of the file that is bad.
func TestRejectedCountOnce(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	for i, size := range []int{10, 200 * kib, 10} {
		s.fill(i, i, size)
	}
	var archive, odd bytes.Buffer
	_, err := s.Export(background, &archive)
	r.must(err)
	into := r.open("e", 100*kib)
	in, err := into.Import(background, &archive)
	r.want("into a smaller store", words(in.Taken, in.Rejected, err, into.has(0, 1, 2)), "2 map[too_large:1] <nil> [0 2]")

	w := tar.NewWriter(&odd)
	add := func(name, text string) {
		r.must(w.WriteHeader(&tar.Header{Name: "test/1/" + name, Mode: 0o600, Size: int64(len(text))}))
		_, err := w.Write([]byte(text))
		r.must(err)
	}
	add("0/key.bin", strings.Repeat("k", blobstore.LongestKey+1))
	add("0/kernel.bin", "of a key that is too long")
	add("1/kernel.bin", "without a key")
	add("2/key.bin", "without a kernel")
	add("3/key.bin", "key")
	add("3/kernel.bin", strings.Repeat("x", 101*kib))
	add("4/key.bin", "key")
	add("4/kernel.bin", "no kernel")
	r.must(w.Close())
	in, err = into.Import(background, &odd)
	r.want("odd ones", words(in.Taken, in.Rejected, err), "0 map[format:3 too_large:2] <nil>")
}

// Merge reads other directories and leaves them as they are.
func TestMerge(t *testing.T) {
	r := newRig(t)
	for _, dir := range []string{"one", "two"} {
		s := r.open(dir, mib)
		s.put("k-"+dir, dir)
		s.put("both", dir)
		s.shut()
	}
	s := r.open("d", mib)
	got, err := s.Merge(background, r.path("one"), r.path("two"))
	r.want("merge", words(got.Taken, len(got.Rejected), err), "4 0 <nil>")
	r.want("entries", s.usage().Entries, 3)
	r.want("the first stays", s.get("both"), "one")
	r.want("audit", s.audit(), "ok")
	r.must(os.Chmod(r.path("two"), 0o777))
	_, err = s.Merge(background, r.path("two"))
	r.want("unsafe", said(err), "error refused")
	_, err = s.Merge(background, r.path("nowhere"))
	r.want("absent", said(err), "error io")
}

// List, Inspect and Verify describe what is there.
func TestInspect(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	s.put("a", "va", putOptions{cost: 2, requires: []string{"fma", "avx2", "fma"}})
	s.get("a")
	s.get("a")
	s.put("bad", "x")
	r.flip(s.kernel("bad"), -1)
	info, err := s.Inspect(background, "test/"+s.Bucket("a")+"/0")
	r.want("inspect", words(info.Key, info.Cost, info.Uses, info.Producer.Driver, info.Requires, info.Flaw.None(), err), "a 2s 2 d1 [avx2 fma] true <nil>")
	_, err = s.Inspect(background, "test/1/0")
	r.want("absent", strings.Contains(err.Error(), "not found"), true)
	_, err = s.Inspect(background, "../x")
	r.want("odd", said(err), "error invalid")
	r.fault("rename", syscall.EACCES)
	bad, err := s.Verify(background, true)
	r.want("verify that may not move it, and empties it", words(len(bad), bad[0].SetAside, err, s.usage().Quarantined, s.usage().Entries), "1 true <nil> 0 1")
	r.heal()
	s.put("bad", "x")
	r.flip(s.kernel("bad"), -1)
	bad, err = s.Verify(background, true)
	r.want("verify", words(len(bad), bad[0].Key, bad[0].Flaw.Reason, bad[0].SetAside, err), "1 bad checksum true <nil>")
	r.want("repaired", words(s.verify(), s.usage().Quarantined, s.usage().Entries), "0 1 1")
	r.want("audit", s.audit(), "ok")
}
