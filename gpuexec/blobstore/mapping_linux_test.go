package blobstore_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// putToMap stores data, and map_ gives what is mapped: it is unmapped after the test, and first
// checked to lie as vectors want it.
func (s *shop) putToMap(key string, data []byte) string {
	var room []byte
	return said(hidden.PutToMap(background, s.Store, backend, key, data, 0, &room))
}

func (s *shop) map_(key string, n int) []byte {
	s.r.t.Helper()
	room := []byte("used before")
	data, unmap, err := hidden.MapBlob(background, s.Store, backend, key, int64(n), &room)
	if err != nil {
		s.r.t.Fatal(err)
	}
	if data == nil {
		if unmap != nil {
			s.r.t.Error("a miss is to be unmapped")
		}
		return nil
	}
	s.r.t.Cleanup(unmap)
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(data))); at%64 != 0 {
		s.r.t.Errorf("%s: %d bytes at %#x, want a multiple of 64", key, n, at)
	}
	return data
}

func random(n int) []byte {
	text := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(text) // it gives no error
	return text
}

// P3: data comes back as it was stored, mapped from its file, whatever the head's length is.
func TestMapped(t *testing.T) {
	r := newRig(t)
	for _, extra := range []int{0, 1, 5, 17, 40, 63, 64, 65} {
		r.id.Driver = "d" + strings.Repeat("x", extra)
		s := r.open(fmt.Sprint("d", extra), 8*mib)
		for _, n := range []int{1, 64, 4096, 100001, 2*mib + 3} {
			key := fmt.Sprint("k", n)
			r.want("before", s.map_(key, n) == nil, true)
			r.want("put", s.putToMap(key, random(n)), "ok")
			r.want("mapped", bytes.Equal(s.map_(key, n), random(n)), true)
			r.want("in the file", bytes.Contains(r.read("/proc/self/maps"), []byte(s.kernel(key))), true)
			r.want("as another length", words(s.map_(key, n-1) == nil, s.map_(key, n+1) == nil), "true true")
		}
		r.want("verify", s.verify(), 0)
	}
}

// P4, P8, P14, P15: what is found is what a Get would find.
func TestMappedIsWhatGetFinds(t *testing.T) {
	r := newRig(t)
	data := random(100000)
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	r.write(r.path("trust.json"), fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	signing := func(c *blobstore.Config) {
		c.Trust, c.Signer = r.path("trust.json"), &blobstore.Signer{ID: "ci", Key: private}
	}
	base := r.open("base", mib, signing)
	r.want("signed", base.putToMap("k", data), "ok")
	s := r.open("d", mib, signing, func(c *blobstore.Config) { c.Bases = []string{base.cfg.Dir} })
	r.want("of a base", bytes.Equal(s.map_("k", len(data)), data), true)
	r.clock(1)
	r.want("a later one", s.Stats().Hits, int64(1))
	other := r.open("other", mib)
	r.want("unsigned", other.putToMap("u", data), "ok")
	got, err := s.Merge(background, other.cfg.Dir)
	r.want("merge", words(got.Taken, err), "0 <nil>")
	r.id.Build = "b2"
	r.want("another build", r.open("d", mib, signing).map_("k", len(data)) == nil, true)
	r.id = defaultIdentity()
	for at := range 300 { // the head, the padding and the first data
		r.flip(base.kernel("k"), at)
		d := r.open(fmt.Sprint("over", at), mib, signing, func(c *blobstore.Config) { c.Bases = []string{base.cfg.Dir} })
		r.want(fmt.Sprint("byte ", at, " flipped"), d.map_("k", len(data)) == nil, true)
		d.shut()
		r.flip(base.kernel("k"), at)
	}
	r.want("as it was", bytes.Equal(s.map_("k", len(data)), data), true)
}

// P4, P5: a file that is damaged, or cannot be read or mapped, is a miss; nothing stays mapped.
func TestMappedMisses(t *testing.T) {
	r := newRig(t)
	data := random(100000)
	s := r.open("d", mib)
	r.want("put", s.putToMap("k", data), "ok")
	maps := func() int { return bytes.Count(r.read("/proc/self/maps"), []byte(r.root)) }
	for _, op := range []string{"open", "read", "map"} {
		r.fault(op, syscall.EIO)
		r.want(op, s.map_("k", len(data)) == nil, true)
		r.heal()
		r.want("healed", bytes.Equal(s.map_("k", len(data)), data), true)
	}
	before := maps()
	r.want("shorter", s.map_("k", 7) == nil, true)
	r.flip(s.kernel("k"), 90000)
	r.want("damaged", words(s.map_("k", len(data)) == nil, s.Stats().SetAside, s.usage().Entries), "true 1 0")
	r.want("again", words(s.putToMap("k", data), bytes.Equal(s.map_("k", len(data)), data)), "ok true")
	r.want("mapped", maps(), before+1)
	r.must(os.Truncate(s.kernel("k"), 5000))
	r.want("cut", words(s.map_("k", len(data)) == nil, maps()), words(true, before+1))
	s.shut()
	var room []byte
	_, _, err := hidden.MapBlob(background, s.Store, backend, "k", int64(len(data)), &room)
	r.want("closed", said(err), "error closed")
	r.want("closed", said(hidden.PutToMap(background, s.Store, backend, "k", data, 0, &room)), "error closed")
	s.reopen()

	// Files of several hosts are not mapped: nobody says what they hold later.
	shared := r.open("shared", mib, func(c *blobstore.Config) { c.Shared = true })
	r.want("shared", words(shared.putToMap("k", data), shared.usage().Entries), "refused reason=disabled 0")
	r.want("put", shared.put("k", string(data)), "ok")
	r.want("shared", words(shared.map_("k", len(data)) == nil, maps()), words(true, before+1))
	plain := r.open("plain", mib, on(func(f vfs.FS) vfs.FS { return unmapped{f} }))
	r.want("of a file system that maps nothing", words(plain.putToMap("k", data), plain.map_("k", len(data)) == nil), "ok true")
}

// unmapped is a file system whose files cannot be mapped.
type unmapped struct{ vfs.FS }

func (u unmapped) Open(name string) (vfs.File, error) {
	f, err := u.FS.Open(name)
	return struct{ vfs.File }{f}, err
}

// P7: what is mapped stays as it was when its entry is evicted, replaced or set aside.
func TestMappedOutlivesItsEntry(t *testing.T) {
	r := newRig(t)
	data := random(100000)
	s := r.open("d", 128*kib)
	r.want("put", s.putToMap("k", data), "ok")
	mapped := s.map_("k", len(data))
	r.want("put another", words(s.putToMap("l", random(90000)), s.get("k")), "ok miss reason=absent")
	r.want("evicted", bytes.Equal(mapped, data), true)
	r.must(os.RemoveAll(r.path("d")))
	r.want("removed", bytes.Equal(mapped, data), true)
}

// P8, P14, P15: of the files that are read for a key, the one that is chosen stays mapped.
func TestMappedIsOneFile(t *testing.T) {
	r := newRig(t)
	early, late := random(100000), random(100000)
	late[0]++
	public, private, err := ed25519.GenerateKey(nil)
	r.must(err)
	r.write(r.path("trust.json"), fmt.Appendf(nil, `{"keys":[{"id":"ci","public":%q}]}`, base64.StdEncoding.EncodeToString(public)))
	signing := func(c *blobstore.Config) {
		c.Trust, c.Signer = r.path("trust.json"), &blobstore.Signer{ID: "ci", Key: private}
	}
	open := func() *shop {
		return r.open("d", mib, signing, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
	}
	r.id.Build = "b2"
	other := r.open("d", mib, signing)
	r.want("of another build", other.putToMap("k", random(99999)), "ok")
	other.shut()
	r.id = defaultIdentity()
	first := r.open("d", mib, signing)
	r.want("early", first.putToMap("k", early), "ok")
	first.shut()
	r.clock(1)
	base := r.open("base", mib, signing)
	r.want("late", base.putToMap("k", late), "ok")
	base.shut()
	s := open()
	r.want("the later one", bytes.Equal(s.map_("k", len(late)), late), true)
	r.want("mapped", bytes.Count(r.read("/proc/self/maps"), []byte(r.root)), 1)
}

// K7: data has no instructions: what one processor stored is found on one that has other sets.
func TestMappedNeedsNoInstructionSet(t *testing.T) {
	r := newRig(t)
	data := random(100000)
	r.id.ISA = []string{"avx2"}
	s := r.open("d", mib)
	r.want("put", s.putToMap("k", data), "ok")
	s.shut()
	r.id.ISA = nil
	r.want("mapped", bytes.Equal(r.open("d", mib).map_("k", len(data)), data), true)
}

// P5: a search that begins anew, since a network file system lost a file handle, maps what it finds.
func TestMappedAfterAHandleIsLost(t *testing.T) {
	r := newRig(t)
	data := random(100000)
	var lost atomic.Bool
	s := r.open("d", mib, on(func(f vfs.FS) vfs.FS {
		return vfs.Watch(f, func(op string) error {
			if op == "open" && lost.Swap(false) {
				return syscall.ESTALE
			}
			return nil
		})
	}))
	r.want("put", s.putToMap("k", data), "ok")
	lost.Store(true)
	r.want("mapped", bytes.Equal(s.map_("k", len(data)), data), true)
	r.want("lost", lost.Load(), false)
}

// P7: what one opening maps, and is about to, takes three quarters of the capacity: no program evicts
// at each start what it stores at the next.
func TestRoomToMap(t *testing.T) {
	r := newRig(t)
	data := random(100000)
	s := r.open("d", mib)
	room := func(bytes int64) func() { return hidden.RoomToMap(s.Store, bytes) }
	give := room(3 * mib / 4)
	r.want("full", words(give != nil, room(1) == nil), "true true")
	give()
	give()
	r.want("put", s.putToMap("k", data), "ok")
	var read []byte
	_, unmap, err := hidden.MapBlob(background, s.Store, backend, "k", 100000, &read)
	r.must(err)
	r.want("more than is left", room(3*mib/4-99999) == nil, true)
	r.want("what is left", words(room(3*mib/4-100000) != nil, room(1) == nil), "true true")
	unmap()
	unmap()
	r.want("what was mapped", words(room(100000) != nil, room(1) == nil), "true true")
	r.want("another opening", hidden.RoomToMap(r.open("d", mib).Store, 3*mib/4) != nil, true)
	unlimited := r.open("e", mib, func(c *blobstore.Config) { c.Capacity = limit.Unlimited })
	r.want("unlimited", words(hidden.RoomToMap(unlimited.Store, 1<<40) != nil, hidden.RoomToMap(unlimited.Store, 1<<40) != nil), "true true")
}
