//go:build unix

package blobstore_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P5: where it cannot write, a store tries again after pauses that grow, up to ten
// minutes; what goes well ends them.
func TestPausesGrow(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	s := r.open("d", mib, func(c *blobstore.Config) { c.Now = func() time.Time { return now } })
	r.fault("mkdir", syscall.ENOSPC)
	tried := func() bool {
		r.io("")
		r.want("put", s.put("k", "v"), "refused reason=degraded")
		return r.io("mkdir") > 0
	}
	r.want("at first", tried(), true)
	var pauses []time.Duration
	for range 10 {
		var pause time.Duration
		for ; !tried() && pause < time.Hour; pause += 5 * time.Second {
			now = now.Add(5 * time.Second)
		}
		pauses = append(pauses, pause)
	}
	r.want("pauses", words(pauses), "[5s 10s 20s 40s 1m20s 2m40s 5m20s 10m0s 10m0s 10m0s]")
	r.heal()
	now = now.Add(10 * time.Minute)
	r.want("put", s.put("k", "v"), "ok")
	r.fault("mkdir", syscall.ENOSPC)
	r.want("put", s.put("j", "v"), "refused reason=degraded")
	r.heal()
	now = now.Add(5 * time.Second)
	r.want("put", s.put("j", "v"), "ok")
}

// P4, P5: a network file system that lost its hold on a name is asked again, and
// not for ever.
func TestStaleHandle(t *testing.T) {
	r := newRig(t)
	stale := 0
	s := r.open("d", mib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS {
			return vfs.Watch(vfs.Dir(root), func(op string) error {
				if op == "open" && stale > 0 {
					stale--
					return syscall.ESTALE
				}
				return nil
			})
		})
	})
	s.put("k", "v")
	for _, times := range []int{1, 3} {
		stale = times
		r.want("get", s.get("k"), "v")
	}
	stale = 1000
	r.want("get", s.get("k"), "miss reason=degraded")
	r.want("looked", 1000-stale, 4)
}
