package gemm

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A number is rounded to the bfloat16 next to it, and to the even one of two; a NaN stays
// one, and what bfloat16 has stays as it is.
func TestHalvesAreTheNearest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(bits uint32) {
		v := math.Float32frombits(bits)
		got := math.Float32frombits(half(v))
		low, high := math.Float32frombits(bits&^0xffff), math.Float32frombits(bits&^0xffff+1<<16)
		want := low
		switch down, up := math.Abs(float64(v)-float64(low)), math.Abs(float64(high)-float64(v)); {
		case math.IsInf(float64(high), 0): // 2^128 is where it would be
			if bits&0xffff >= 0x8000 {
				want = high
			}
		case up < down, up == down && bits>>16&1 == 1:
			want = high
		}
		if v != v && got == got || v == v && math.Float32bits(got) != math.Float32bits(want) || half(v)&0xffff != 0 {
			t.Fatalf("%#08x becomes %#08x, want %#08x", bits, math.Float32bits(got), math.Float32bits(want))
		}
	}
	for range 1 << 20 {
		check(rng.Uint32())
	}
	for high := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			check(high<<16 | low)
		}
	}
}

// E8: every set gives the same bits with bfloat16, and attention's keys are not packed so.
func TestHalvesOfEverySet(t *testing.T) {
	const m, n, k = 15, 70, 1100
	rng := rand.New(rand.NewPCG(3, 4))
	a, w := random(rng, m*k), random(rng, n*k)
	var want []float32
	for _, s := range Sets() {
		s = s.Halves()
		x := Args{M: m, N: n, K: k, A: a, LDA: k, B: make([]float32, s.PackedLen(k, n)), C: make([]float32, m*n), LDC: n}
		if len(x.B) > (n+31)/32*32*k/2 {
			t.Errorf("%s: %d numbers packed", s.Name(), len(x.B))
		}
		if err := s.Pack(x.B, w, k, n, true); err != nil {
			t.Fatal(err)
		}
		if err := s.Run(&x, 0, s.Blocks(m, n, k)); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if !same(x.C[i], want[i]) {
				t.Fatalf("%s: number %d is %v, want %v", s.Name(), i, x.C[i], want[i])
			}
		}
		want = x.C
		if err := s.PackKeys(x.B, a, 8, 8, 8, 1); err == nil {
			t.Errorf("%s packs keys", s.Name())
		}
	}
}
