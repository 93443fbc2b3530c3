package gemm

import (
	"math"
	"unsafe"
)

// computeGeneric runs the portable kernel: on a copy of the panel in float32, where it is
// of bfloat16.
func (s *Set) computeGeneric(t *tile) {
	if !s.halves || t.k == 0 {
		tileGeneric(t)
		return
	}
	var wide [4 * depth]float32
	whole := *t
	half := unsafe.Slice(t.b, 2*t.k)
	for {
		k := min(len(half)/2, depth)
		for i, pair := range half[:2*k] {
			bits := math.Float32bits(pair)
			at := i/2*4 + i%2
			wide[at], wide[at+2] = math.Float32frombits(bits<<16), math.Float32frombits(bits&^0xffff)
		}
		whole.b, whole.k = &wide[0], uintptr(k)
		tileGeneric(&whole)
		if half = half[2*k:]; len(half) == 0 { // else the pointer would be behind A
			return
		}
		whole.start, whole.lds = t.c, t.ldc
		whole.a = (*float32)(unsafe.Add(unsafe.Pointer(whole.a), 4*k))
	}
}

// tileGeneric is the kernel in portable Go, with the bits of the assembly.
func tileGeneric(t *tile) {
	const width = 4
	b := unsafe.Slice(t.b, width*t.k)
	for r := range t.rows {
		var a []float32
		if t.k > 0 { // else there need not be an A at all
			a = unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(t.a), r*t.lda)), t.k)
		}
		start := (*[width]float32)(unsafe.Add(unsafe.Pointer(t.start), r*t.lds))
		s0, s1, s2, s3 := start[0], start[1], start[2], start[3]
		for i, x := range a {
			row := (*[width]float32)(b[width*i:])
			s0 = fma32(x, row[0], s0)
			s1 = fma32(x, row[1], s1)
			s2 = fma32(x, row[2], s2)
			s3 = fma32(x, row[3], s3)
		}
		*(*[width]float32)(unsafe.Add(unsafe.Pointer(t.c), r*t.ldc)) = [width]float32{s0, s1, s2, s3}
	}
}

// fma32 is x*y + z with one rounding. The product of two float32 is exact in
// float64, so only the sum rounds, to 53 bits and then to 24. The second
// rounding errs only if the first one landed on a tie between two float32 (or
// below the normal numbers, where ties lie elsewhere); then the sum is
// rounded to odd first, which keeps the tie apart from its neighbours.
// Source: S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded
// sums: proved algorithms using rounding to odd" (IEEE TC 57, 2008).
func fma32(x, y, z float32) float32 {
	const (
		below    = 1<<29 - 1 // bits of a float64 that a float32 does not have
		tie      = 1 << 28
		exponent = 0x7ff << 52
		smallest = (1023 - 126) << 52 // of a normal float32
	)
	p := float64(x) * float64(y)
	s := p + float64(z)
	if bits := math.Float64bits(s); bits&below == tie || bits&exponent < smallest {
		return float32(toOdd(p, float64(z), s))
	}
	return float32(s)
}

// toOdd gives p + z rounded to odd, where s is their rounded sum: exact, or
// else the neighbour of the exact sum whose last bit is set. Source of the
// error term: D. E. Knuth, The Art of Computer Programming 2, 4.2.2 (TwoSum).
func toOdd(p, z, s float64) float64 {
	v := s - p
	e := (p - (s - v)) + (z - v)
	bits := math.Float64bits(s)
	if e == 0 || bits&1 == 1 || math.IsInf(s, 0) || math.IsNaN(s) {
		return s
	}
	if (e > 0) == (s > 0) {
		bits++ // the exact sum lies further from zero
	} else {
		bits--
	}
	return math.Float64frombits(bits)
}
