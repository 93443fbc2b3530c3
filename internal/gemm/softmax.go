package gemm

import (
	"math"

	"github.com/kiln-cache/kiln/fault"
)

// rows are what a softmax kernel works on. Sizes are in bytes; a row is whole vectors.
type rows struct {
	x      *float32
	bytes  uintptr // of a row
	stride uintptr // from row to row
	count  uintptr // at least 1
}

// callFloats bounds the numbers of one call of a kernel, which cannot be preempted:
// 0.02 ms (SPEC E4).
const callFloats = 64 << 10

// Padded is n rounded up to whole panels.
func (s *Set) Padded(n int) int { return s.panels(n) * s.width }

// Softmax replaces each of count rows of x, stride numbers apart, by e^(x-max) / sum over
// its n numbers. What follows them up to Padded(n) must be -Inf, and may become 0. A
// row with a NaN, with +Inf or with -Inf alone becomes NaN.
//
// The bits are those of the softmax in gpuexec/cpu/internal/kernels, with every set:
// number j is added to partial sum j mod 4, in ascending order; these are added as
// (s0+s1)+(s2+s3); the reciprocal multiplies each number; no step is a fused
// multiply-add, and -Inf adds 0.
func (s *Set) Softmax(x []float32, count, stride, n int) error {
	padded := s.Padded(n)
	if need, ok := span(count, padded, stride); count < 0 || n < 0 || stride < padded || !ok || len(x) < need {
		return fault.Invalidf("gemm: softmax", "%d numbers for %d rows of %d, %d apart", len(x), count, padded, stride)
	}
	if count == 0 || n == 0 {
		return nil
	}
	lanes := s.width / 2
	vectors := (n + lanes - 1) / lanes * lanes
	each := callFloats / vectors
	if s.kind == generic || each == 0 {
		for row := range count {
			softmaxGeneric(x[row*stride:][:n])
		}
		return nil
	}
	for row := 0; row < count; row += each {
		s.softmax(&rows{&x[row*stride], uintptr(4 * vectors), uintptr(4 * stride), uintptr(min(each, count-row))})
	}
	return nil
}

// softmaxGeneric is the kernel in portable Go, with the bits of the assembly. Each
// conversion is a rounding that a processor must not leave out.
func softmaxGeneric(row []float32) {
	largest := float32(math.Inf(-1))
	for _, x := range row {
		if x > largest {
			largest = x
		}
	}
	var sum [4]float32
	for i, x := range row {
		row[i] = exp(x - largest)
		sum[i%4] += row[i]
	}
	factor := 1 / ((sum[0] + sum[1]) + (sum[2] + sum[3]))
	for i := range row {
		row[i] *= factor
	}
}

// exp is e^x for x <= 0 as package kernels computes it, which says how.
func exp(x float32) float32 {
	const (
		lowest  = -87
		perLn2  = 1.44269504088896341
		rounder = 3 << 22
		ln2High = 0.693359375
		ln2Low  = -2.12194440e-4
		one     = 0x3f800000 // the bits of 1
	)
	if x < lowest {
		return 0
	}
	bits := float32(x*perLn2) + rounder
	n := bits - rounder
	r := x - float32(n*ln2High) - float32(n*ln2Low)
	square := float32(r * r)
	p := 0.4999999403953552 + float32(0.1666652113199234*r)
	p += float32((0.04166838899254799 + float32(0.00836874544620514*r)) * square)
	p += float32(0.0013814539415761828 * float32(square*square))
	y := float32(p*square) + r + 1
	return float32(y * math.Float32frombits(math.Float32bits(bits)<<23+one))
}
