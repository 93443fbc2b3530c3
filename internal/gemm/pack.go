package gemm

import (
	"math"

	"github.com/kiln-cache/kiln/fault"
)

// PackedLen is the length of a packed K x N matrix, in numbers: the last panel is
// filled up with zero columns. It is the largest int where that overflows.
func (s *Set) PackedLen(k, n int) int {
	if k <= 0 || n <= 0 {
		return 0
	}
	if n > math.MaxInt-s.width || k > math.MaxInt/(s.panels(n)*s.width) {
		return math.MaxInt
	}
	return s.panels(n) * s.row * k
}

// Pack arranges a K x N right-hand matrix for this set. The source is row-major
// K x N or, if transposed, row-major N x K (the weights of a linear layer are
// [out, in]). dst takes PackedLen(k, n) numbers.
func (s *Set) Pack(dst, w []float32, k, n int, transposed bool) error {
	if transposed {
		return s.PackStrided(dst, w, k, n, 1, k)
	}
	return s.PackStrided(dst, w, k, n, n, 1)
}

// PackStrided is Pack of a matrix whose element (i, j) lies at
// w[i*rowStride + j*columnStride]: a slice of a larger tensor, straight or
// transposed, such as one head's keys among the rows of all heads.
func (s *Set) PackStrided(dst, w []float32, k, n, rowStride, columnStride int) error {
	const op = "gemm: pack"
	if k < 0 || n < 0 || rowStride < 0 || columnStride < 0 {
		return fault.Invalidf(op, "K, N and strides are %d, %d, %d, %d: none may be negative", k, n, rowStride, columnStride)
	}
	if need := s.PackedLen(k, n); len(dst) != need {
		return fault.Invalidf(op, "dst has %d numbers: %d x %d packed as %s takes %d", len(dst), k, n, s.Layout(), need)
	}
	if k == 0 || n == 0 {
		return nil
	}
	rows, ok := span(k, 1, rowStride)
	columns, ok2 := span(n, 1, columnStride)
	if !ok || !ok2 || rows > math.MaxInt-columns || len(w) < rows+columns-1 {
		return fault.Invalidf(op, "the source has %d numbers: %d x %d with strides %d and %d reaches beyond", len(w), k, n, rowStride, columnStride)
	}
	if s.halves {
		s.packHalves(dst, w, k, n, rowStride, columnStride)
		return nil
	}
	for j := 0; j < n; j += s.width {
		s.packPanel(dst[j*k:][:s.width*k], w[j*columnStride:], min(s.width, n-j), rowStride, columnStride)
	}
	return nil
}

// packHalves packs as bfloat16: the columns of a panel's first half lie in the low bits of
// its numbers, those of its second half in the high ones.
func (s *Set) packHalves(dst, w []float32, k, n, rowStride, columnStride int) {
	panel := make([]float32, s.width*k)
	for j := 0; j < n; j += s.width {
		s.packPanel(panel, w[j*columnStride:], min(s.width, n-j), rowStride, columnStride)
		to := dst[j/s.width*s.row*k:]
		for from := panel; len(from) > 0; from, to = from[s.width:], to[s.row:] {
			low, high := from[:s.row], from[s.row:s.width]
			for i, v := range low {
				to[i] = math.Float32frombits(half(v)>>16 | half(high[i]))
			}
		}
	}
}

// half is v rounded to bfloat16, in the high bits.
func half(v float32) uint32 {
	bits := math.Float32bits(v)
	if v != v {
		return bits&^0xffff | 1<<22 // and stays a NaN
	}
	return (bits + 0x7fff + bits>>16&1) &^ 0xffff
}

// packPanel fills one panel, row after row, from the given number of columns.
func (s *Set) packPanel(panel, w []float32, columns, rowStride, columnStride int) {
	if columns < s.width {
		clear(panel)
	}
	if columnStride == 1 {
		for at, from := 0, 0; at < len(panel); at, from = at+s.width, from+rowStride {
			copy(panel[at:at+s.width], w[from:from+columns])
		}
		return
	}
	// Four columns at a time: each store then fills a quarter of a vector and
	// four source rows stay in the cache.
	j := 0
	for ; j+4 <= columns; j += 4 {
		w0, w1, w2, w3 := w[j*columnStride:], w[(j+1)*columnStride:], w[(j+2)*columnStride:], w[(j+3)*columnStride:]
		for at, from := j, 0; at+4 <= len(panel); at, from = at+s.width, from+rowStride {
			four := (*[4]float32)(panel[at:])
			four[0], four[1], four[2], four[3] = w0[from], w1[from], w2[from], w3[from]
		}
	}
	for ; j < columns; j++ {
		column := w[j*columnStride:]
		for at, from := j, 0; at < len(panel); at, from = at+s.width, from+rowStride {
			panel[at] = column[from]
		}
	}
}
