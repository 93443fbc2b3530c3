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

// The first put at the capacity after an open costs as much whatever the number of
// entries (SPEC P7).
func BenchmarkFirstEviction(b *testing.B) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU, blobstore.Cost} {
		for _, entries := range []int{1_000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", p, entries), func(b *testing.B) {
				r := newRig(b)
				s := r.open("d", int64(entries)*small, policy(p), func(c *blobstore.Config) { blobstore.SetFS(c, nil) })
				for i := range entries {
					r.must(s.Put(background, backend, fmt.Sprint(i), payload("v", 100), time.Duration(i*7919%entries+1)))
				}
				s.SaveIndex()
				n := entries
				for b.Loop() {
					b.StopTimer()
					s.reopen()
					b.StartTimer()
					n++
					r.must(s.Put(background, backend, fmt.Sprint(n), payload("v", 100), time.Duration(n*7919%entries+1)))
				}
			})
		}
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
