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
