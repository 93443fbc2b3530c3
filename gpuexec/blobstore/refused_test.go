//go:build unix

package blobstore_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"os"
	"sync/atomic"
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

func (s *shop) exported() []byte {
	s.r.t.Helper()
	var archive bytes.Buffer
	_, err := s.Export(background, &archive)
	s.r.must(err)
	return archive.Bytes()
}

// bring imports an archive, and gives what was rejected.
func (s *shop) bring(archive []byte) string {
	s.r.t.Helper()
	got, err := s.Import(background, bytes.NewReader(archive))
	s.r.must(err)
	return fmt.Sprint(got.Rejected)
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

// P4, P5: an entry that is damaged and can neither be moved nor
// emptied is passed over: it is not served again, a put of its key goes through, and
// nothing else stops.
func TestBadEntryThatIsStuck(t *testing.T) {
	for _, why := range []string{"damaged"} {
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
			}
			r.want("get", s.get("k"), want)
			was := changes.Load()
			r.want("get again", s.get("k"), want)
			r.want("tried again by a get", changes.Load()-was, 0)
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
