package hashlist

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is the definition: the digests of the pieces, one after the other.
func list(text []byte) (all []byte) {
	for piece := range slices.Chunk(text, Piece) {
		sum := sha256.Sum256(piece)
		all = append(all, sum[:]...)
	}
	return all
}

// keep is a hash that remembers what was written.
type keep struct{ bytes.Buffer }

func (*keep) Sum(b []byte) []byte { return b }
func (*keep) Size() int           { return 0 }
func (*keep) BlockSize() int      { return 1 }

func noise(n int, seed uint64) []byte {
	text := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(text)
	return text
}

// P3: however a text is cut into parts, its list is that of its pieces.
func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(0, 6*Piece), rapid.SampledFrom([]int{0, 1, Piece - 1, Piece, Piece + 1, 2 * Piece, 4*Piece + 1, 67*Piece + 3, 96 * Piece})).Draw(t, "size")
		text := noise(size, rapid.Uint64().Draw(t, "seed"))
		var parts [][]byte
		for rest := text; len(rest) > 0; {
			n := rapid.OneOf(rapid.IntRange(0, len(rest)), rapid.Just(len(rest))).Draw(t, "part")
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		var got keep
		Write(&got, parts...)
		if !bytes.Equal(got.Bytes(), list(text)) {
			t.Fatalf("%d bytes in %d parts: another list", size, len(parts))
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	text := noise(10<<20, 1)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Write(sha256.New(), text)
	}
}

func BenchmarkSHA256(b *testing.B) {
	text := noise(10<<20, 1)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		_ = sha256.Sum256(text)
	}
}
