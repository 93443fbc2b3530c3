package blobstore_test

import (
	"os"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// A clock that is set forward while something is stored makes its temporary
// files look old: the hourly sweep must leave them alone (SPEC P9).
func TestSweepLeavesWhatIsBeingWritten(t *testing.T) {
	r := newRig(t)
	var hourly func()
	armed := false
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.After = func(d time.Duration, f func()) func() bool {
			if d == time.Hour {
				hourly = f
			}
			return func() bool { return true }
		}
		c.FS = func(root string) vfs.FS {
			return vfs.Watch(vfs.Dir(root), func(op string) error {
				if armed && op == "write" {
					armed = false
					r.clock(2 * time.Hour)
					hourly()
				}
				return nil
			})
		}
	})
	r.write(r.path("d/tmp/left"), []byte("by somebody"))
	armed = true
	r.want("put", s.put("k", "v"), "ok")
	r.want("fired", armed, false)
	r.want("get", s.get("k"), "v")
	if _, err := vfs.Dir(r.path("d")).Lstat("tmp/left"); err == nil {
		t.Error("what somebody else left is there still")
	}
}

// P14: what hides an entry of a base goes with that entry: when it was replaced or
// removed, not when its base is away for a while.
func TestSweepHidden(t *testing.T) {
	r := newRig(t)
	base := r.open("base", mib)
	for _, key := range []string{"removed", "replaced", "stays"} {
		base.put(key, "of the base")
	}
	base.shut()
	r.write(r.path("d/mark/hidden-torn"), nil) // nobody can tell what it hides
	s := r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
	for _, key := range []string{"removed", "replaced", "stays"} {
		r.flip(r.path("base/test/"+s.Bucket(key)+"/0/kernel.bin"), -1)
		r.want(key, s.get(key), "miss reason=checksum")
	}
	marks := func() int { return len(r.names("d/mark")) }
	r.want("marks", marks(), 4)
	s.reopen()
	r.want("swept in vain", marks(), 4)
	r.must(os.Rename(r.path("base"), r.path("away")))
	s.shut()
	r.open("d", mib).shut()
	r.want("base away", marks(), 4)
	r.must(os.Rename(r.path("away"), r.path("base")))
	r.must(os.RemoveAll(r.path("base/test/" + s.Bucket("removed"))))
	r.must(os.WriteFile(r.path("base/test/"+s.Bucket("replaced")+"/0/kernel.bin"), []byte("another"), 0o600))
	s = r.open("d", mib, func(c *blobstore.Config) { c.Bases = []string{r.path("base")} })
	r.want("swept", marks(), 2)
	r.want("hidden still", s.get("stays"), "miss reason=absent")
}
