//go:build unix

package blobstore_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/frame/hashlist"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P4, P3: every byte flipped and every shorter length of both files; package frame
// goes through every bit.
func TestEveryByte(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k1", "some-kernel-bytes", putOptions{bytes: 64})
	dir := s.place("k1")
	pristine := map[string][]byte{}
	for _, name := range []string{"key.bin", "kernel.bin"} {
		pristine[name] = r.read(filepath.Join(dir, name))
	}
	damaged := func(name string, text []byte, want ...string) {
		t.Helper()
		for n, p := range pristine {
			r.write(filepath.Join(dir, n), p)
		}
		r.write(filepath.Join(dir, name), text)
		r.wantOf(name, s.get("k1"), want...)
		r.want("moved away", r.exists(dir), false)
	}
	for name, text := range pristine {
		for at := range text {
			flipped := append([]byte(nil), text...)
			flipped[at] ^= 1 << (at % 8)
			want := []string{"miss reason=checksum*"}
			switch {
			case name == "kernel.bin" && at < 8:
				want = []string{"miss reason=format field=magic"}
			case name == "kernel.bin" && at >= 12 && at < 20:
				want = []string{"miss reason=truncated*", "miss reason=trailing*"}
			}
			damaged(name, flipped, want...)
		}
		for n := range len(text) {
			damaged(name, text[:n], "miss reason=truncated*")
		}
		damaged(name, append(text[:len(text):len(text)], 'x'), "miss reason=trailing*")
	}
	r.want("quarantine is bounded", s.usage().Quarantined <= 32, true)
	r.want("put", s.put("k1", "again"), "ok")
	r.want("get", s.get("k1"), "again")
	r.want("audit", s.audit(), "ok")
}

// P4, P3: of kernels of many pieces damage at random places and around the end of
// every piece.
func TestEveryPiece(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t)
	s := r.open("d", 64*mib, sync_(blobstore.None))
	for _, pieces := range []int{5, 70} {
		key := fmt.Sprint(pieces, " pieces")
		blob := bytes.Repeat([]byte("some kernel"), (pieces*hashlist.Piece+random.IntN(hashlist.Piece))/11)
		r.must(s.Put(background, backend, key, blob, 0))
		size := len(r.read(s.kernel(key)))
		var places []int
		for end := frame.Preamble; end+1 < size; end += hashlist.Piece {
			sides := []int{end - 1, end, end + 1}
			if pieces > 5 { // package frame tries all of them
				sides = sides[random.IntN(3):][:1]
			}
			places = append(places, sides...)
		}
		for range 20 {
			places = append(places, frame.Preamble+random.IntN(size-frame.Preamble))
		}
		wants := func(what string, at int, want string) { // and moves back what was set aside
			t.Helper()
			r.want(fmt.Sprint(what, " at ", at, " of ", size), s.get(key), want)
			r.want("moved away", r.exists(s.place(key)), false)
			r.must(os.MkdirAll(filepath.Dir(s.place(key)), 0o700))
			r.must(os.Rename(r.path("d/quarantine/"+r.names("d/quarantine")[0]), s.place(key)))
		}
		for _, at := range places {
			bit := byte(1) << random.IntN(8)
			r.flipIn(s.kernel(key), at, bit)
			wants("flipped", at, "miss reason=checksum")
			r.flipIn(s.kernel(key), at, bit)
		}
		b, miss, err := s.Get(background, backend, key)
		r.want("whole", words(bytes.Equal(b.Payload, blob), miss.None(), err), "true true <nil>")
		slices.Sort(places)
		for _, at := range slices.Backward(places) {
			r.must(os.Truncate(s.kernel(key), int64(at)))
			wants("cut", at, "miss reason=truncated")
		}
	}
}

// flipIn flips bits of one byte where it lies.
func (r *rig) flipIn(path string, at int, bits byte) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	r.must(err)
	var b [1]byte
	_, err = f.ReadAt(b[:], int64(at))
	b[0] ^= bits
	if err == nil {
		_, err = f.WriteAt(b[:], int64(at))
	}
	r.must(errors.Join(err, f.Close()))
}

// P4: damage heals, is counted by reason, and lies in quarantine.
func TestHeals(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k1", "v1", putOptions{bytes: 100})
	r.flip(s.kernel("k1"), -3)
	r.want("get", s.get("k1"), "miss reason=checksum")
	r.want("count", s.Count(fault.Checksum), 1)
	r.want("quarantined", s.usage().Quarantined, 1)
	r.want("get", s.get("k1"), "miss reason=absent")
	r.want("put", s.put("k1", "v1", putOptions{bytes: 100}), "ok")
	r.want("get", s.get("k1"), "v1")
	r.want("audit", s.audit(), "ok")
	r.want("verify", s.verify(), 0)
	r.flip(s.kernel("k1"), -1)
	r.want("put over damage", s.put("k1", "healed"), "ok")
	r.want("get", s.get("k1"), "healed")
	r.want("size", s.audit(), "ok")
}

// P4, R1: foreign contents have their reasons; half an entry is a miss and is replaced.
func TestForeignContents(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	for i := 1; i <= 7; i++ {
		s.put(fmt.Sprintf("k%d", i), fmt.Sprintf("v%d", i), putOptions{bytes: 50})
	}
	r.write(s.kernel("k1"), append(r.read(s.kernel("k1")), 0))
	r.write(s.kernel("k2"), nil)
	r.write(s.kernel("k3"), []byte("garbage-that-is-no-kernel"))
	r.write(s.kernel("k5"), make([]byte, len(r.read(s.kernel("k5")))))
	r.must(os.Remove(s.kernel("k6")))
	r.must(os.Remove(s.place("k7", "key.bin")))
	for key, want := range map[string]string{
		"k1": "miss reason=trailing", "k2": "miss reason=truncated", "k3": "miss reason=format field=magic", "k4": "v4",
		"k5": "miss reason=format field=magic", "k6": "miss reason=truncated field=kernel.bin", "k7": "miss reason=truncated field=key.bin",
	} {
		r.want(key, s.get(key), want)
	}
	r.want("entries", s.usage().Entries, 1)
	for _, key := range []string{"k6", "k7"} {
		r.want("put", s.put(key, "w"), "ok")
		r.want("get", s.get(key), "w")
	}
	r.want("audit", s.audit(), "ok")
}

// P4: what is not ours in the directory is passed over and left alone.
func TestForeignThings(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k1", "v1")
	s.put("k2", "v2")
	s.shut()
	r.write(r.path("d/readme.txt"), []byte("hello"))
	r.write(r.path("d/test/junk"), []byte("x"))
	r.must(os.MkdirAll(r.path("d/test/12345"), 0o700))
	r.must(os.MkdirAll(r.path("d/test/abc/deep/deeper"), 0o700))
	r.must(os.Symlink("../../outside", r.path("d/test/99")))
	r.must(syscall.Mkfifo(r.path("d/test/12345/0"), 0o600))
	r.write(r.path("outside/0/key.bin"), []byte("k9"))
	r.must(os.Symlink(".", r.path("d/loop")))
	r.must(os.Symlink("../../outside/0", r.path("d/test/12345/1")))
	s.reopen()
	r.want("k1", s.get("k1"), "v1")
	r.want("k2", s.get("k2"), "v2")
	r.want("entries", s.usage().Entries, 2)
	r.want("verify", s.verify(), 0)
	r.want("outside", r.exists(r.path("outside/0/key.bin")), true)
	r.want("readme", r.exists(r.path("d/readme.txt")), true)
	bucket := r.path("d/test/" + s.Bucket("k3"))
	r.must(os.Symlink("../../outside", bucket))
	r.want("bucket is a link", s.get("k3"), "miss reason=absent")
	r.want("put", s.put("k3", "v3"), "ok")
	r.want("get", s.get("k3"), "v3")
	r.want("audit", s.audit(), "ok")
}

// P4: links are not followed, FIFOs do not block.
func TestLinksAndPipes(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	for i := 1; i <= 3; i++ {
		s.put(fmt.Sprintf("k%d", i), "v")
	}
	r.write(r.path("stolen"), r.read(s.kernel("k1")))
	r.must(os.Remove(s.kernel("k1")))
	r.must(os.Symlink("../../../../stolen", s.kernel("k1")))
	r.must(os.Remove(s.kernel("k2")))
	r.must(syscall.Mkfifo(s.kernel("k2"), 0o600))
	r.must(os.Remove(s.place("k3", "key.bin")))
	r.must(syscall.Mkfifo(s.place("k3", "key.bin"), 0o600))
	r.want("verify", s.verify(), 3)
	for _, k := range []string{"k1", "k2"} {
		r.want(k, s.get(k), "miss reason=format field=kernel.bin")
	}
	r.want("k3", s.get("k3"), "miss reason=format field=key.bin")
	r.want("stolen", r.exists(r.path("stolen")), true)
	r.want("put", s.put("k1", "new"), "ok")
	r.want("get", s.get("k1"), "new")
}

// P3, P4: lengths are not believed and not allocated; another version stays where it is.
func TestForged(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 64*mib)
	for i, n := range []uint64{1 << 63, 1_000_000_000, 1} {
		k := fmt.Sprintf("k%d", i)
		s.put(k, "v", putOptions{bytes: 10})
		forged, err := frame.Forge(r.read(s.kernel(k)), frame.ID{Backend: backend, Key: k}, "length", n)
		r.must(err)
		r.write(s.kernel(k), forged)
		r.want("allocation", allocated(func() {
			r.wantOf(k, s.get(k), "miss reason=truncated field=length", "miss reason=trailing field=length")
		}) < mib, true)
	}
	s.put("huge", "v")
	r.must(os.Truncate(s.kernel("huge"), 10<<30))
	r.want("allocation", allocated(func() { r.want("huge", s.get("huge"), "miss reason=trailing") }) < mib, true)
	for version, k := range map[uint64]string{1: "older", 999: "newer"} {
		s.put(k, "v")
		forged, err := frame.Forge(r.read(s.kernel(k)), frame.ID{Backend: backend, Key: k}, "format", version)
		r.must(err)
		r.write(s.kernel(k), forged)
		before := s.usage().Quarantined
		r.want("version", s.get(k), "miss reason=outdated field=format")
		r.want("quarantined", s.usage().Quarantined, before)
		r.want("verify", s.verify(), 0)
		r.want("put", s.put(k, "new"), "ok")
		r.want("get", s.get(k), "new")
	}
}

// greedy is a file system that counts the bytes of the largest read of one file.
type greedy struct {
	vfs.FS
	name string
	most *atomic.Int64
}

func (f greedy) Update(name string) (vfs.File, error) {
	file, err := f.FS.Update(name)
	if err == nil && name == f.name {
		return greedyFile{file, f.most}, nil
	}
	return file, err
}

type greedyFile struct {
	vfs.File
	most *atomic.Int64
}

func (f greedyFile) ReadAt(p []byte, offset int64) (int, error) {
	f.most.Store(max(f.most.Load(), int64(len(p))))
	return f.File.ReadAt(p, offset)
}

// P4, P5: a journal that was made long while a store has it open is begun anew, and its
// length is not allocated.
func TestJournalOfAbsurdLength(t *testing.T) {
	r := newRig(t)
	var most atomic.Int64
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS { return greedy{f, "lease/journal", &most} }))
	r.want("put", s.put("k", "v"), "ok")
	r.must(os.Truncate(r.path("d/lease/journal"), 64*mib))
	r.want("put", words(s.put("j", "v"), s.get("k"), s.audit()), "ok v ok")
	if n := most.Load(); n > 4*mib {
		t.Errorf("%d bytes of the journal were read at once", n)
	}
}

// P3: a kernel of one backend is none of another, whatever its key: the digest covers
// the backend.
func TestKernelOfAnotherBackend(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k", "v")
	s.put("k", "w", putOptions{backend: "gpu"})
	other := strings.Replace(s.kernel("k"), "/"+backend+"/", "/gpu/", 1)
	r.write(other, r.read(s.kernel("k")))
	r.want("a copy", s.getOf("gpu", "k"), "miss reason=checksum")
	r.want("set aside", r.exists(other), false)
	r.want("its own", s.get("k"), "v")
}

// P3, P4: what could be stored is read whatever the reader's capacity, and what is
// larger is neither stored nor read into memory.
func TestLargest(t *testing.T) {
	r := newRig(t)
	s := r.open("d", 11*blobstore.Largest)
	huge, err := unix.Mmap(-1, 0, blobstore.Largest, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE) // of which nothing is touched
	r.must(err)
	defer func() { r.must(unix.Munmap(huge)) }()
	r.want("put", said(s.Put(background, backend, "huge", huge, 0)), "refused reason=too_large")
	r.want("stored", words(s.Stats().Stores, s.Count(fault.TooLarge)), "0 1")

	s.put("k", "v")
	text := r.read(s.kernel("k"))
	binary.LittleEndian.PutUint64(text[12:], blobstore.Largest+1) // its size, as frame's doc.go has it
	r.write(s.kernel("k"), text)
	r.must(os.Truncate(s.kernel("k"), blobstore.Largest+1))
	r.want("allocation", allocated(func() { r.want("get", s.get("k"), "miss reason=too_large field=kernel.bin") }) < mib, true)
	r.want("quarantined", s.usage().Quarantined, 1)

	s.put("large", "v", putOptions{bytes: 2 * mib})
	for name, o := range map[string]*shop{
		"over a base":        r.open("e", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("d")} }),
		"read-only":          r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }),
		"read-only, limited": r.open("d", mib, func(c *blobstore.Config) { c.ReadOnly = true }),
	} {
		r.want(name, words(o.get("large"), o.Stats().SetAside), "v 0")
	}
}

func allocated(do func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	do()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}

// P13: a directory with files of somebody else becomes a store beside them, and leaves
// them as they are; not if they lie where a store removes what nobody uses.
func TestForeignDirectoryBecomesAStore(t *testing.T) {
	for _, own := range []string{"tmp", "uses", "quarantine"} {
		r := newRig(t)
		theirs := []string{"notes.txt", "photos/2024/a.jpg", "12345/0/b", "lease/car", own + "/thesis", "mark/one"}
		for _, name := range theirs {
			r.write(r.path("d/"+name), []byte("precious"))
			r.must(os.Chtimes(r.path("d/"+name), time.Time{}, time.Now().Add(-9*time.Hour)))
		}
		_, err := blobstore.Open(background, r.config("d", mib))
		if !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "its folder "+own+" has files") {
			t.Errorf("%s: %v", own, err)
		}
		r.want("nothing was made", words(len(r.names("d")), len(r.names("d/lease"))), words(6, 1))
		r.must(os.Rename(r.path("d/"+own+"/thesis"), r.path("d/thesis")))
		theirs[4] = "thesis"
		s := r.open("d", 3*small, policy(blobstore.LRU))
		s.fill(1, 6, 10)
		bad, err := s.Verify(background, true)
		r.want("verified", words(len(bad), err, s.audit(), s.usage().Entries), "0 <nil> ok 3")
		r.must(s.Prune(background, 0))
		s.reopen()
		for _, name := range theirs {
			r.want(name, string(r.read(r.path("d/"+name))), "precious")
		}
		r.want("audit", words(s.audit(), s.usage().Entries), "ok 0")
	}
}

// P13: names that look like those of a store do not make files a store's.
func TestForeignDigests(t *testing.T) {
	names := []string{
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "d41d8cd98f00b204e9800998ecf8427e",
		"e3b0c44298fc1c149afbf4c8996fb924.jpg", "2026112307220000 holiday.mov", "1a2b-closed", "a", ".hidden",
	}
	for _, name := range names {
		for _, folder := range []string{"tmp", "uses", "quarantine", "lease/owner"} {
			r := newRig(t)
			file := r.path("d/" + folder + "/" + name)
			r.write(file, []byte("precious"))
			r.must(os.Chtimes(file, time.Time{}, time.Now().Add(-48*time.Hour)))
			_, err := blobstore.Open(background, r.config("d", mib))
			if !errors.Is(err, fault.ErrRefused) {
				t.Errorf("%s/%s: %v", folder, name, err)
			}
			r.want(folder+"/"+name, string(r.read(file)), "precious")
			r.want("nothing was made", len(r.names("d")), 1)
		}
	}
}
