package gemm

import "github.com/kiln-cache/kiln/fault"

// columns is what the kernel that packs keys does: eight rows of numbers, stride bytes
// apart, become columns of a panel whose rows are step bytes apart. A block is eight
// numbers of each.
type columns struct {
	from   *float32
	stride uintptr
	to     *float32
	step   uintptr
	blocks uintptr // at least 1
	scale  float32
}

// PackKeys is PackStrided of the transpose of n rows of k numbers, stride numbers apart,
// each times scale: the right-hand side of q kT. A set of Halves packs none.
func (s *Set) PackKeys(dst, rows []float32, k, n, stride int, scale float32) error {
	if s.halves {
		return fault.Invalidf("gemm: pack keys", "the set packs as bfloat16, which attention does not")
	}
	if s.kind == generic || k%8 != 0 {
		err := s.PackStrided(dst, rows, k, n, 1, stride)
		for i := range dst {
			dst[i] *= scale
		}
		return err
	}
	if need, ok := span(n, k, stride); k < 0 || n < 0 || stride < 0 || !ok || len(rows) < need || len(dst) != s.PackedLen(k, n) {
		return fault.Invalidf("gemm: pack keys", "%d rows of %d, %d apart, out of %d numbers into %d, want %d into %d",
			n, k, stride, len(rows), len(dst), need, s.PackedLen(k, n))
	}
	if k == 0 || n == 0 {
		return nil
	}
	t := columns{stride: uintptr(4 * stride), step: uintptr(4 * s.width), scale: scale}
	if empty := s.Padded(n) - n; empty >= 8 {
		clear(dst[len(dst)-s.width*k:])
	}
	var eight [8 * keysPart]float32 // the last rows, with zeros behind them
	for j := 0; j < n; j += 8 {
		panel := dst[j/s.width*s.width*k+j%s.width:]
		for at := 0; at < k; at += keysPart {
			part := min(keysPart, k-at)
			t.from, t.to, t.blocks = &rows[j*stride+at], &panel[at*s.width], uintptr(part/8)
			if n-j < 8 {
				for i := range n - j {
					copy(eight[i*keysPart:], rows[(j+i)*stride+at:][:part])
				}
				t.from, t.stride = &eight[0], 4*keysPart
			}
			s.transpose(&t)
		}
	}
	return nil
}

// keysPart is how many numbers of a row one call of the kernel takes.
const keysPart = 64
