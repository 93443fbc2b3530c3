//go:build unix

package blobstore_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

var byHand = map[string]func(r *rig, s *shop){
	"no quarantine":       func(r *rig, s *shop) { r.must(os.RemoveAll(r.path("d/quarantine"))); r.flip(s.kernel("k1"), -1) },
	"a file for a bucket": func(r *rig, s *shop) { r.must(os.RemoveAll(s.bucket("k1"))); r.write(s.bucket("k1"), []byte("x")) },
	"a link for a bucket": func(r *rig, s *shop) {
		r.must(os.RemoveAll(s.bucket("k1")))
		r.must(os.Symlink("/nowhere", s.bucket("k1")))
	},
	"a file for a slot": func(r *rig, s *shop) { r.must(os.RemoveAll(s.place("k1"))); r.write(s.place("k1"), []byte("x")) },
	"a link for a slot": func(r *rig, s *shop) {
		r.must(os.RemoveAll(s.place("k1")))
		r.must(os.Symlink("/nowhere", s.place("k1")))
	},
	"no slot":       func(r *rig, s *shop) { r.must(os.RemoveAll(s.place("k1"))) },
	"no bucket":     func(r *rig, s *shop) { r.must(os.RemoveAll(s.bucket("k1"))) },
	"an empty slot": func(r *rig, s *shop) { r.must(os.Remove(s.kernel("k1"))); r.must(os.Remove(s.place("k1", "key.bin"))) },
	"no kernel":     func(r *rig, s *shop) { r.must(os.Remove(s.kernel("k1"))) },
	"no key":        func(r *rig, s *shop) { r.must(os.Remove(s.place("k1", "key.bin"))) },
	"a folder for the kernel": func(r *rig, s *shop) {
		r.must(os.Remove(s.kernel("k1")))
		r.must(os.MkdirAll(s.kernel("k1")+"/x", 0o700))
	},
	"a file for the backend": func(r *rig, s *shop) { r.must(os.RemoveAll(r.path("d/test"))); r.write(r.path("d/test"), []byte("x")) },
}

// P4, P5: what somebody put in the place of a folder, or took out of one, by hand costs the keys
// that it is in the way of at most: a put of one replaces it, and a repair counts anew.
func TestFoldersChangedByHand(t *testing.T) {
	for what, change := range byHand {
		for _, repair := range []bool{false, true} {
			for _, again := range []bool{false, true} {
				t.Run(fmt.Sprint(what, repair, again), func(t *testing.T) {
					r := newRig(t)
					s := r.open("d", mib, policy(blobstore.LRU))
					r.want("put", words(s.put("k1", "v"), s.put("j", "w")), "ok ok")
					change(r, s)
					others := "w"
					if what == "a file for the backend" {
						others = "miss reason=absent"
					}
					if again {
						s.reopen()
					}
					if repair {
						_, err := s.Verify(background, true)
						r.must(err)
						r.want("audit", s.audit(), "ok")
					} else {
						s.get("k1")
					}
					r.want("another", s.get("j"), others)
					r.want("put", words(s.put("k1", "new"), s.get("k1"), s.put("i", "u"), s.get("i")), "ok new ok u")
					_, err := s.Verify(background, true)
					r.must(err)
					bad, err := s.Verify(background, false)
					r.want("bad", words(len(bad), err), "0 <nil>")
					r.want("audit", words(s.audit(), s.get("k1"), s.get("j")), words("ok", "new", others))
					r.must(s.Prune(background, 0))
					r.want("audit", words(s.audit(), s.usage().Entries), "ok 0")
				})
			}
		}
	}
}

// P5, P7: an entry whose folder is not there any more, since something else is, keeps no other
// from being evicted, and no byte.
func TestEvictionOfWhatWasChangedByHand(t *testing.T) {
	for what, change := range byHand {
		if what == "a file for the backend" {
			continue
		}
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprint(what, shared), func(t *testing.T) {
				r := newRig(t)
				s := r.open("d", 10*small, func(c *blobstore.Config) { c.Shared = shared })
				s.fill(1, 10, 1)
				change(r, &shop{s.Store, r, s.cfg})
				for i := range 30 {
					r.want("put", s.put(fmt.Sprint("n", i), "v"), "ok")
				}
				r.want("entries, audit", words(s.usage().Entries, s.audit()), "10 ok")
				r.want("pruned", words(s.Prune(background, 0), s.usage().Entries), "<nil> 0")
			})
		}
	}
}

// P5, P7: what is evicted goes also where the folder that it would go to was removed.
func TestEvictionWithoutAFolderForIt(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	r.want("put", s.put("k1", "v"), "ok")
	r.must(os.RemoveAll(r.path("d/tmp")))
	r.want("pruned", words(s.Prune(background, 0), s.usage().Entries, r.exists(s.kernel("k1"))), "<nil> 0 false")
	s.reopen()
	r.want("audit", s.audit(), "ok")
}

func (s *shop) bucket(key string) string { return s.r.path("d/test/" + s.Bucket(key)) }

// P14, P5: a base that cannot be listed when the store opens is told with its path and cause,
// and left out.
func TestBaseThatCannotBeListed(t *testing.T) {
	r := newRig(t)
	r.open("base", mib).put("k", "v")
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.Bases = []string{r.path("base")}
		blobstore.SetFS(c, func(root string) vfs.FS {
			if root == r.path("base") {
				return blind{vfs.Dir(root), "."}
			}
			return vfs.Dir(root)
		})
	})
	r.want("told", words(r.log.count(r.path("base")), r.log.count("too many open files"), s.Stats().Reasons[fault.Degraded]), "1 1 1")
	r.want("get", words(s.get("k"), s.put("k", "own"), s.get("k")), "miss reason=absent ok own")
}
