package gemm

import (
	"crypto/sha256"
	"testing"
	"unsafe"
)

// BenchmarkPackKeys packs one head's keys out of the rows of all heads, as
// attention does for each request.
func BenchmarkPackKeys(b *testing.B) {
	const tokens, head, row = 128, 32, 3 * 384
	keys := make([]float32, tokens*row)
	for _, s := range Sets() {
		b.Run(s.Name(), func(b *testing.B) {
			dst := make([]float32, s.PackedLen(head, tokens))
			b.SetBytes(4 * tokens * head)
			for b.Loop() {
				if err := s.PackStrided(dst, keys, head, tokens, 1, row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPackValues packs one head's values, which lie in rows already.
func BenchmarkPackValues(b *testing.B) {
	const tokens, head, row = 128, 32, 3 * 384
	values := make([]float32, tokens*row)
	for _, s := range Sets() {
		b.Run(s.Name(), func(b *testing.B) {
			dst := make([]float32, s.PackedLen(tokens, head))
			b.SetBytes(4 * tokens * head)
			for b.Loop() {
				if err := s.PackStrided(dst, values, tokens, head, row, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPackOrVerify packs a weight as a file has it, or takes the digest over it packed: what a
// start costs without and with packed weights in a store, at least.
func BenchmarkPackOrVerify(b *testing.B) {
	const k, n = 384, 1536
	s, weight := Best(), make([]float32, k*n)
	dst := make([]float32, s.PackedLen(k, n))
	b.Run("pack", func(b *testing.B) {
		b.SetBytes(4 * k * n)
		for b.Loop() {
			if err := s.Pack(dst, weight, k, n, true); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(4 * k * n)
		for b.Loop() {
			sha256.Sum256(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)))
		}
	})
}
