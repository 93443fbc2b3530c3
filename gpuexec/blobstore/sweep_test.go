package blobstore_test

import (
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
