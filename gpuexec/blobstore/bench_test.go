package blobstore_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

var sizes = []int{64 * kib, mib, 10 * mib}

// ratio runs a and b in turn and reports how many times as long as b a takes,
// each by its fastest of several rounds of this very run.
func ratio(b *testing.B, a, base func()) {
	best := [2]time.Duration{time.Hour, time.Hour}
	for b.Loop() {
		for i, do := range []func(){a, base} {
			begin := time.Now()
			do()
			best[i] = min(best[i], time.Since(begin))
		}
	}
	b.ReportMetric(float64(best[0])/float64(best[1]), "ratio")
	b.ReportMetric(float64(best[0].Microseconds()), "us")
	b.ReportMetric(0, "ns/op")
}

// Loading against reading and hashing the same two files. Goal 1.5 at 10 MiB, 3 at 64 KiB.
func BenchmarkGet(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dKiB", size/kib), func(b *testing.B) {
			r := newRig(b)
			s := r.open("d", 64*mib, func(c *blobstore.Config) { c.FS = nil })
			s.put("k", "v", putOptions{bytes: size})
			paths := []string{s.place("k", "key.bin"), s.kernel("k")}
			ratio(b, func() {
				if got := s.get("k"); got != "v" {
					b.Fatal(got)
				}
			}, func() {
				for _, p := range paths {
					text, err := os.ReadFile(p)
					if err != nil {
						b.Fatal(err)
					}
					sink = sha256.Sum256(text)
				}
			})
		})
	}
}

var sink [32]byte

// Storing with durability none against writing the same two files. Goal 2 at 10 MiB.
func BenchmarkPut(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dKiB", size/kib), func(b *testing.B) {
			r := newRig(b)
			s := r.open("d", 40*mib, func(c *blobstore.Config) { c.FS = nil })
			text := payload("v", size)
			r.must(os.Mkdir(r.path("w"), 0o700))
			n := 0
			ratio(b, func() {
				n++
				if err := s.Put(background, backend, fmt.Sprint(n), text, time.Second); err != nil {
					b.Fatal(err)
				}
			}, func() {
				dir := r.path(fmt.Sprintf("w/%d", n%4)) // as the store: the same number of entries stay
				r.must(os.RemoveAll(dir))
				r.must(os.Mkdir(dir, 0o700))
				r.must(os.WriteFile(filepath.Join(dir, "key.bin"), []byte("k"), 0o600))
				r.must(os.WriteFile(filepath.Join(dir, "kernel.bin"), text, 0o600))
			})
		})
	}
}

// What the levels of durability cost at 64 KiB.
func BenchmarkDurability(b *testing.B) {
	for _, level := range []blobstore.Durability{blobstore.None, blobstore.File, blobstore.Full} {
		b.Run(string(level), func(b *testing.B) {
			r := newRig(b)
			s := r.open("d", 8*mib, sync_(level), func(c *blobstore.Config) { c.FS = nil })
			text := payload("v", 64*kib)
			n := 0
			for b.Loop() {
				n++
				r.must(s.Put(background, backend, fmt.Sprint(n), text, time.Second))
			}
		})
	}
}

// Opening against a recursive listing with sizes. Goal 2 at 10,000 entries.
func BenchmarkOpen(b *testing.B) {
	r := newRig(b)
	const entries = 10_000
	cfg := r.config("d", 1<<30)
	cfg.FS = nil
	s, err := blobstore.Open(background, cfg)
	r.must(err)
	for i := range entries {
		r.must(s.Put(background, backend, fmt.Sprint("key", i), []byte("v"), time.Second))
	}
	r.must(s.Close(background))
	ratio(b, func() {
		s, err := blobstore.Open(background, cfg)
		r.must(err)
		r.must(s.Close(background))
	}, func() {
		var bytes int64
		r.must(filepath.Walk(cfg.Dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil {
				bytes += info.Size()
			}
			return err
		}))
	})
}

// Storing into a full directory of many entries: one goes for each.
func BenchmarkEvict(b *testing.B) {
	for _, entries := range []int{100, 5000} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			r := newRig(b)
			s := r.open("d", int64(entries)*1000, func(c *blobstore.Config) { c.FS = nil })
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
