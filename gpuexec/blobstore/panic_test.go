//go:build unix

package blobstore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P5: a clock or a hash that panics under the lock of the directory leaves no lock behind,
// and accounts that the next change puts right.
func TestPanicInAChange(t *testing.T) {
	for _, what := range []string{"now", "hash"} {
		r := newRig(t)
		w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
		var armed atomic.Bool
		user := func(name string) {
			if name == what && w.held.Load() && armed.CompareAndSwap(true, false) {
				panic(what)
			}
		}
		st, err := blobstore.Open(background, r.config("d", mib, func(c *blobstore.Config) {
			blobstore.SetFS(c, func(root string) vfs.FS { w.FS = vfs.Dir(root); return w })
			c.Now = func() time.Time { user("now"); return r.now() }
			c.Hash = func(string) uint64 { user("hash"); return 7 }
		}))
		r.must(err)
		s := &shop{Store: st, r: r} // not closed at the end, which would wait for a lock that was left
		armed.Store(true)
		func() {
			defer func() { r.want("panic", recover(), what) }()
			s.put("k", "v")
		}()
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		r.must(s.Put(ctx, backend, "j", []byte("v"), time.Second))
		r.want("accounts", s.audit(), "ok")
		r.must(s.Store.Close(ctx))
		cancel()
	}
}
