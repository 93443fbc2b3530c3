//go:build unix

package blobstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// What the levels of durability cost at 64 KiB.
func BenchmarkDurability(b *testing.B) {
	for _, level := range []blobstore.Durability{blobstore.None, blobstore.File, blobstore.Full} {
		b.Run(string(level), func(b *testing.B) {
			r := newRig(b)
			s := r.open("d", 8*mib, sync_(level), func(c *blobstore.Config) { blobstore.SetFS(c, nil) })
			text := payload("v", 64*kib)
			n := 0
			for b.Loop() {
				n++
				r.must(s.Put(background, backend, fmt.Sprint(n), text, time.Second))
			}
		})
	}
}

// Eight writers of one directory store as much together as one does alone.
func BenchmarkWriters(b *testing.B) {
	for _, level := range []blobstore.Durability{blobstore.None, blobstore.Full} {
		for _, writers := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d", level, writers), func(b *testing.B) {
				r := newRig(b)
				var next atomic.Int64
				var wg sync.WaitGroup
				stores := make([]*shop, writers)
				for i := range stores {
					stores[i] = r.open("d", 8*mib, sync_(level), func(c *blobstore.Config) { blobstore.SetFS(c, nil) })
				}
				b.ResetTimer()
				for _, s := range stores {
					wg.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							if err := s.Put(background, backend, fmt.Sprint(i), payload("v", kib), time.Second); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
