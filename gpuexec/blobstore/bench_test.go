//go:build unix

package blobstore_test

import (
	"fmt"
	"path/filepath"
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

// P7: what a full directory costs, by the number of its entries: the first store after
// an open, any later one, and an open. None of them may grow with it.
func BenchmarkFull(b *testing.B) {
	for _, entries := range []int{100, 1000, 10_000, 100_000} {
		r := newRig(b)
		cfg := func(c *blobstore.Config) { blobstore.SetFS(c, nil) }
		s := r.open("d", 1000*mib, cfg)
		s.put("first", "v", putOptions{bytes: 850})
		key, kernel := r.read(s.place("first", "key.bin")), r.read(s.kernel("first"))
		s.shut()
		for i := range entries {
			r.write(filepath.Join(s.cfg.Dir, backend, fmt.Sprint(i), "0", "key.bin"), key)
			r.write(filepath.Join(s.cfg.Dir, backend, fmt.Sprint(i), "0", "kernel.bin"), kernel)
		}
		s = r.open("d", int64(entries*small), cfg)
		n := 0
		put := func() { n++; s.put(fmt.Sprintf("%08d", n), "v", putOptions{bytes: 850}) }
		b.Run(fmt.Sprintf("first/%d", entries), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				s.reopen()
				b.StartTimer()
				put()
			}
		})
		b.Run(fmt.Sprintf("put/%d", entries), func(b *testing.B) {
			for range b.N {
				put()
			}
		})
		b.Run(fmt.Sprintf("open/%d", entries), func(b *testing.B) {
			for range b.N {
				s.reopen()
			}
		})
	}
}
