package gemm

import "testing"

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
