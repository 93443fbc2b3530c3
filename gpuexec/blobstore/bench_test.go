//go:build unix

package blobstore_test

import (
	"fmt"
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

// Storing into a full directory of many entries: one goes for each.
func BenchmarkEvict(b *testing.B) {
	for _, entries := range []int{100, 5000} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			r := newRig(b)
			s := r.open("d", int64(entries)*1000, func(c *blobstore.Config) { blobstore.SetFS(c, nil) })
			n := 0
			put := func() {
				n++
				r.must(s.Put(background, backend, fmt.Sprintf("%08d", n), payload("v", 850), time.Second))
			}
			for range entries + 100 {
				put()
			}
			for b.Loop() {
				put()
			}
		})
	}
}
