package gemm

import (
	"math"

	"github.com/kiln-cache/kiln/fault"
)

// vectors are what the gelu kernel works on: whole vectors, at least one.
type vectors struct {
	from, to *float32
	bytes    uintptr
}

// HasGELU reports whether the set has a kernel for GELU. The portable one has none: there
// package kernels is faster.
func (s *Set) HasGELU() bool { return s.kind != generic }

// GELU writes x/2 (1 + erf(x/sqrt 2)) of each number to dst, which may be x itself. The
// bits are those of the gelu in gpuexec/cpu/internal/kernels, with every set.
func (s *Set) GELU(dst, x []float32) error {
	if len(dst) != len(x) {
		return fault.Invalidf("gemm: gelu", "%d numbers into %d", len(x), len(dst))
	}
	whole := len(x) / (s.width / 2) * (s.width / 2)
	if s.kind == generic {
		whole = 0
	}
	for at := 0; at < whole; at += callFloats {
		s.gelu(&vectors{&x[at], &dst[at], uintptr(4 * min(callFloats, whole-at))})
	}
	for i := whole; i < len(x); i++ {
		dst[i] = gelu(x[i])
	}
	return nil
}

// gelu is the kernel in portable Go, with the bits of the assembly. Package kernels says
// how it computes. Each conversion is a rounding that a processor must not leave out.
func gelu(x float32) float32 {
	a := float32(math.Abs(float64(x)))
	if a > 6 {
		a = 6
	}
	square := float32((6 - a) * (6 - a))
	u := a - 2
	terms := [...]float32{5.554232302529272e-06, -4.850094683206407e-06, 6.991635927988682e-07, 7.411110800603637e-07,
		-2.8665979812103615e-07, -4.110482265673454e-08, 3.9002706841984036e-08, -1.3910003149320005e-09,
		-3.0288145325130245e-09, 3.896251377089044e-10, 1.1795887877585898e-10, -2.232129758805712e-11}
	for n := len(terms); n > 1; n = (n + 1) / 2 {
		for i := 0; i < n; i += 2 {
			terms[i/2] = terms[i]
			if i+1 < n {
				terms[i/2] += float32(terms[i+1] * u)
			}
		}
		u = float32(u * u)
	}
	h := float32(float32(a*float32(float32(square*square)*square)) * terms[0])
	if x < 0 {
		x = 0
	}
	return x - h
}
