package ptx_test

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

// Conversions between integers keep the lower bits, or the nearest number that there is,
// and the sign goes on in a larger register.
func TestConversionsOfIntegers(t *testing.T) {
	for _, from := range []string{"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"} {
		for _, to := range []string{"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"} {
			var n, size int
			fmt.Sscan(from[1:], &n)
			fmt.Sscan(to[1:], &size)
			for _, sat := range []bool{false, true} {
				text := "cvt." + map[bool]string{true: "sat."}[sat] + to + "." + from + " %d, %a;"
				c := instruction{text, [4]int{max(size, 32), max(n, 32)}, func(a, _, _ uint64) uint64 {
					v := whole(a&ones(n), n, from[0] == 's')
					if low, high := limits(size, to[0] == 's'); sat && v.Cmp(low) < 0 {
						v = low
					} else if sat && v.Cmp(high) > 0 {
						v = high
					}
					return cut(whole(cut(v, 0, size), size, to[0] == 's'), 0, max(size, 32))
				}}
				check(t, c, numbers(c.bits, integerEdges))
			}
		}
	}
}

// limits are the least and the most number of n bits.
func limits(n int, signed bool) (low, high *big.Int) {
	one := big.NewInt(1)
	if signed {
		high = new(big.Int).Lsh(one, uint(n-1))
		return new(big.Int).Neg(high), high.Sub(new(big.Int).Set(high), one)
	}
	return new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(one, uint(n)), one)
}

// Conversions of floats to integers round as they say, and end at the limits.
func TestConversionsOfFloats(t *testing.T) {
	round := map[string]func(float64) float64{"rni": math.RoundToEven, "rzi": math.Trunc, "rmi": math.Floor, "rpi": math.Ceil}
	edges := append(append([]uint64{}, edges32...), 0x4effffff, 0x4f000000, 0xcf000000, 0x4f800000, 0x5f000000, 0xdf000000, 0x5f800000, 0x40200000, 0xc0200000, 0x40600000)
	for mode, f := range round {
		for _, to := range []string{"u16", "s16", "u32", "s32", "u64", "s64"} {
			var size int
			fmt.Sscan(to[1:], &size)
			check(t, instruction{"cvt." + mode + "." + to + ".f32 %d, %a;", [4]int{max(size, 32), 32}, func(a, _, _ uint64) uint64 {
				v := cut(nearest(f(single(a)), size, to[0] == 's', size == 64), 0, size)
				return cut(whole(v, size, to[0] == 's'), 0, max(size, 32))
			}}, numbers([4]int{32, 32}, edges))
		}
		check(t, instruction{"cvt." + mode + ".f32.f32 %d, %a;", [4]int{32, 32}, func(a, _, _ uint64) uint64 { return canonical(f(single(a))) }}, numbers([4]int{32, 32}, edges))
		check(t, instruction{"cvt." + mode + ".s32.f64 %d, %a;", [4]int{32, 64}, func(a, _, _ uint64) uint64 {
			return cut(nearest(f(math.Float64frombits(a)), 32, true, true), 0, 32)
		}}, numbers([4]int{32, 64}, edges64))
	}
	others := []instruction{
		{"cvt.sat.f32.f32 %d, %a;", [4]int{32, 32}, func(a, _, _ uint64) uint64 {
			if v := single(a); v > 0 {
				return canonical(min(v, 1))
			}
			return 0
		}},
		{"cvt.f64.f32 %d, %a;", [4]int{64, 32}, func(a, _, _ uint64) uint64 { return math.Float64bits(single(a)) }},
		{"cvt.rn.f32.u32 %d, %a;", [4]int{32, 32}, func(a, _, _ uint64) uint64 { return uint64(math.Float32bits(float32(uint32(a)))) }},
		{"cvt.rn.f32.s64 %d, %a;", [4]int{32, 64}, func(a, _, _ uint64) uint64 { return uint64(math.Float32bits(float32(int64(a)))) }},
		{"cvt.rn.f32.u64 %d, %a;", [4]int{32, 64}, func(a, _, _ uint64) uint64 { return uint64(math.Float32bits(float32(a))) }},
		{"cvt.rn.f64.s64 %d, %a;", [4]int{64, 64}, func(a, _, _ uint64) uint64 { return math.Float64bits(float64(int64(a))) }},
		{"cvt.rn.f64.u64 %d, %a;", [4]int{64, 64}, func(a, _, _ uint64) uint64 { return math.Float64bits(float64(a)) }},
	}
	for _, mode := range []string{"rn", "rz", "rm", "rp"} {
		others = append(others, instruction{"cvt." + mode + ".f32.f64 %d, %a;", [4]int{32, 64}, func(a, _, _ uint64) uint64 {
			return rounded("add", mode, math.Float64frombits(a), math.Copysign(0, math.Float64frombits(a)), 0)
		}}, instruction{"cvt." + mode + ".f32.s32 %d, %a;", [4]int{32, 32}, func(a, _, _ uint64) uint64 {
			return rounded("add", mode, float64(int32(a)), 0, 0)
		}})
	}
	for _, c := range others {
		check(t, c, numbers(c.bits, append(edges64, integerEdges...)))
	}
}

// nearest is the integer of n bits that is nearest to a whole number.
func nearest(f float64, n int, signed, wide bool) *big.Int {
	low, high := limits(n, signed)
	switch {
	case f != f && wide:
		return new(big.Int).Lsh(big.NewInt(1), uint(n-1))
	case f != f:
		return new(big.Int)
	case math.IsInf(f, 1):
		return high
	case math.IsInf(f, -1):
		return low
	}
	v, _ := big.NewFloat(f).Int(nil)
	if v.Cmp(low) < 0 {
		return low
	}
	if v.Cmp(high) > 0 {
		return high
	}
	return v
}

// Floats of 16 bits: each is the float32 that it says, and comes back; a float32 between
// two becomes the nearer, the even one in the middle.
func TestFloatsOf16Bits(t *testing.T) {
	half := func(v uint64) float64 { // the format's own definition
		s, e, f := 1-2*float64(v>>15), float64(v>>10&31), float64(v&1023)
		switch {
		case e == 31 && f != 0:
			return math.NaN()
		case e == 31:
			return s * math.Inf(1)
		case e == 0:
			return s * f * 0x1p-24
		}
		return s * (1024 + f) * math.Exp2(e-25)
	}
	brain := func(v uint64) float64 { return single(v << 16) }
	for kind, value := range map[string]func(uint64) float64{"f16": half, "bf16": brain} {
		var all, between [][3]uint64
		for v := range uint64(1 << 16) {
			all = append(all, [3]uint64{v})
			if a, b := value(v), value(v+1); v&0x7fff < 0x7bff && a-a == 0 && b-b == 0 {
				middle := (a + b) / 2
				between = append(between, [3]uint64{uint64(math.Float32bits(float32(middle)))})
			}
		}
		up := instruction{"cvt.f32." + kind + " %d, %a;", [4]int{32, 16}, func(a, _, _ uint64) uint64 { return canonical(value(a)) }}
		check(t, up, all)
		down := instruction{"cvt.rn." + kind + ".f32 %d, %a;", [4]int{16, 32}, nil}
		for i, got := range perform(t, down.text, down.bits, between) {
			if got&1 != 0 {
				t.Fatalf("%s: the middle %v becomes %#x, which is odd", kind, single(between[i][0]), got)
			}
		}
		for i, got := range perform(t, "cvt.f32."+kind+" %t3, %a;\ncvt.rn."+kind+".f32 %d, %t3;", [4]int{16, 16}, all) {
			if v := value(all[i][0]); v == v && got != all[i][0] {
				t.Fatalf("%s: %#x comes back as %#x", kind, all[i][0], got)
			}
		}
	}
}
