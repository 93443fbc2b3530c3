package ptx_test

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/ptx"
)

// instruction is PTX that makes %d of %a, %b and %c, each of some bits, and what it is to make.
type instruction struct {
	text string // %p is a predicate, too
	bits [4]int // of d, a, b and c; 0 = not used
	want func(a, b, c uint64) uint64
}

// kernel is the text of a kernel that does an instruction with numbers out of memory: 32
// bytes a thread, each number 8 of them.
func kernel(body string, bits [4]int) []byte {
	var b strings.Builder
	b.WriteString(".version 9.5\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x)\n{\n.reg .pred %p, %q;\n.reg .b32 %t<9>;\n.reg .b64 %w<9>;\n")
	for i, name := range []string{"d", "a", "b", "c"} {
		if bits[i] > 0 {
			fmt.Fprintf(&b, ".reg .b%d %%%s;\n", max(16, bits[i]), name)
		}
	}
	b.WriteString("ld.param.u64 %w0, [x];\nmov.u32 %t0, %ctaid.x;\nmov.u32 %t1, %ntid.x;\nmov.u32 %t2, %tid.x;\nmad.lo.s32 %t0, %t0, %t1, %t2;\nmul.wide.u32 %w1, %t0, 32;\nadd.s64 %w0, %w0, %w1;\n")
	for i, name := range []string{"d", "a", "b", "c"} {
		if i > 0 && bits[i] > 0 {
			fmt.Fprintf(&b, "ld.global.b%d %%%s, [%%w0+%d];\n", bits[i], name, 8*i)
		}
	}
	fmt.Fprintf(&b, "%s\nst.global.b%d [%%w0], %%d;\nret;\n}\n", body, bits[0])
	return []byte(b.String())
}

// perform runs an instruction on each three numbers.
func perform(t testing.TB, body string, bits [4]int, in [][3]uint64) []uint64 {
	t.Helper()
	e, m := entry(t, kernel(body, bits), "k"), memory{}
	var flat []uint64
	for _, v := range in {
		flat = append(flat, 0, v[0], v[1], v[2])
	}
	flat = append(flat, make([]uint64, 4*32)...)
	address := put(m, flat)
	l := ptx.Launch{Grid: [3]uint32{uint32(len(in)+31) / 32, 1, 1}, Block: [3]uint32{32, 1, 1}, Params: params(e, address), Memory: m}
	if err := e.Run(background, l); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	out := make([]uint64, len(in))
	for i, v := range list[uint64](m, address, len(flat)) {
		if i%4 == 0 && i/4 < len(in) {
			out[i/4] = v
		}
	}
	return out
}

// numbers are triples of edges, of n bits where that is the type, and random ones.
func numbers(bits [4]int, edges []uint64) (in [][3]uint64) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, a := range edges {
		for _, b := range edges {
			for _, c := range edges {
				if bits[3] > 0 || c == edges[0] {
					in = append(in, [3]uint64{a, b, c})
				}
			}
		}
	}
	for range 600 {
		in = append(in, [3]uint64{rnd.Uint64(), rnd.Uint64() >> rnd.IntN(64), rnd.Uint64() >> rnd.IntN(64)})
	}
	for i := range in {
		for j := range 3 {
			in[i][j] &= ones(bits[j+1])
		}
	}
	return in
}

func ones(n int) uint64 { return 1<<n - 1 }

var integerEdges = []uint64{0, 1, 2, 3, 15, 16, 31, 32, 33, 63, 64, 255, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 63, 1<<63 - 1, 1<<64 - 1}

// sign is a number of n bits with its sign.
func sign(v uint64, n int) int64 { return int64(v<<(64-n)) >> (64 - n) }

// whole is a number of n bits, with its sign or without.
func whole(v uint64, n int, signed bool) *big.Int {
	if signed {
		return big.NewInt(sign(v, n))
	}
	return new(big.Int).SetUint64(v)
}

// cut is n bits of a number from one on.
func cut(v *big.Int, from, n int) uint64 {
	v = new(big.Int).Rsh(v, uint(from))
	return new(big.Int).And(v, new(big.Int).SetUint64(ones(n))).Uint64()
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// exactly is one of the four ways to join two numbers.
func exactly(name string, a, b *big.Int) *big.Int {
	switch name {
	case "add":
		return new(big.Int).Add(a, b)
	case "sub":
		return new(big.Int).Sub(a, b)
	}
	return new(big.Int).Mul(a, b)
}

// integerInstructions are those of a type of n bits.
func integerInstructions(n int, signed bool) (all []instruction) {
	kind := map[bool]string{true: "s", false: "u"}[signed]
	add := func(form string, bits [4]int, want func(a, b, c uint64) uint64) {
		all = append(all, instruction{strings.ReplaceAll(form, "#", fmt.Sprintf("%s%d", kind, n)), bits, want})
	}
	two, three := [4]int{n, n, n}, [4]int{n, n, n, n}
	num := func(v uint64) *big.Int { return whole(v, n, signed) }
	for _, name := range []string{"add", "sub", "mul.lo"} {
		add(name+".# %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return cut(exactly(name, num(a), num(b)), 0, n) })
	}
	add("mul.hi.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return cut(exactly("mul", num(a), num(b)), n, n) })
	add("mad.lo.# %d, %a, %b, %c;", three, func(a, b, c uint64) uint64 { return cut(exactly("add", exactly("mul", num(a), num(b)), num(c)), 0, n) })
	add("mad.hi.# %d, %a, %b, %c;", three, func(a, b, c uint64) uint64 {
		return cut(exactly("add", new(big.Int).Rsh(exactly("mul", num(a), num(b)), uint(n)), num(c)), 0, n)
	})
	if n < 64 {
		add("mul.wide.# %d, %a, %b;", [4]int{2 * n, n, n}, func(a, b, _ uint64) uint64 { return cut(exactly("mul", num(a), num(b)), 0, 2*n) })
		add("mad.wide.# %d, %a, %b, %c;", [4]int{2 * n, n, n, 2 * n}, func(a, b, c uint64) uint64 {
			return cut(exactly("add", exactly("mul", num(a), num(b)), new(big.Int).SetUint64(c)), 0, 2*n)
		})
	}
	add("min.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
		if num(a).Cmp(num(b)) <= 0 {
			return a
		}
		return b
	})
	add("max.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
		if num(a).Cmp(num(b)) >= 0 {
			return a
		}
		return b
	})
	add("div.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
		if b == 0 {
			return ones(n)
		}
		return cut(new(big.Int).Quo(num(a), num(b)), 0, n)
	})
	add("rem.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
		if b == 0 {
			return a
		}
		return cut(new(big.Int).Rem(num(a), num(b)), 0, n)
	})
	add("sad.# %d, %a, %b, %c;", three, func(a, b, c uint64) uint64 {
		return cut(exactly("add", new(big.Int).Abs(exactly("sub", num(a), num(b))), num(c)), 0, n)
	})
	for name, is := range map[string]func(int) bool{"eq": func(c int) bool { return c == 0 }, "ne": func(c int) bool { return c != 0 }, "lt": func(c int) bool { return c < 0 },
		"le": func(c int) bool { return c <= 0 }, "gt": func(c int) bool { return c > 0 }, "ge": func(c int) bool { return c >= 0 }} {
		add("setp."+name+".# %p, %a, %b;\nselp.b32 %d, 1, 0, %p;", [4]int{32, n, n}, func(a, b, _ uint64) uint64 { return truth(is(num(a).Cmp(num(b)))) })
	}
	add("shr.# %d, %a, %b;", [4]int{n, n, 32}, func(a, b, _ uint64) uint64 { return cut(num(a), int(min(b, 64)), n) })
	if signed {
		add("neg.# %d, %a;", [4]int{n, n}, func(a, _, _ uint64) uint64 { return cut(new(big.Int).Neg(num(a)), 0, n) })
		add("abs.# %d, %a;", [4]int{n, n}, func(a, _, _ uint64) uint64 { return cut(new(big.Int).Abs(num(a)), 0, n) })
	}
	if n > 16 {
		add("bfe.# %d, %a, %b, %c;", [4]int{n, n, 32, 32}, func(a, b, c uint64) (v uint64) {
			for i := range uint64(n) { // the manual's own words
				pos, length, msb := b&255, c&255, uint64(n-1)
				bit := uint64(0)
				if signed && length > 0 {
					bit = a >> min(pos+length-1, msb) & 1
				}
				if i < length && pos+i <= msb {
					bit = a >> (pos + i) & 1
				}
				v |= bit << i
			}
			return v
		})
		add("bfind.# %d, %a;", [4]int{32, n}, func(a, _, _ uint64) uint64 { return highest(num(a), n, false) })
		add("bfind.shiftamt.# %d, %a;", [4]int{32, n}, func(a, _, _ uint64) uint64 { return highest(num(a), n, true) })
	}
	return all
}

// highest is the place of the highest bit that is not the sign.
func highest(v *big.Int, n int, amount bool) uint64 {
	if v.Sign() < 0 {
		v = new(big.Int).Not(v)
	}
	at := v.BitLen() - 1
	if at >= 0 && amount {
		at = n - 1 - at
	}
	return uint64(uint32(at))
}

// bitInstructions are those of n bits without a sign.
func bitInstructions(n int) (all []instruction) {
	add := func(form string, bits [4]int, want func(a, b, c uint64) uint64) {
		all = append(all, instruction{strings.ReplaceAll(form, "#", fmt.Sprintf("b%d", n)), bits, want})
	}
	two := [4]int{n, n, n}
	add("and.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return a & b })
	add("or.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return a | b })
	add("xor.# %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return a ^ b })
	add("not.# %d, %a;", two, func(a, _, _ uint64) uint64 { return a ^ ones(n) })
	add("cnot.# %d, %a;", two, func(a, _, _ uint64) uint64 { return truth(a == 0) })
	add("mov.# %d, %a;", two, func(a, _, _ uint64) uint64 { return a })
	add("shl.# %d, %a, %b;", [4]int{n, n, 32}, func(a, b, _ uint64) uint64 {
		return cut(new(big.Int).Lsh(new(big.Int).SetUint64(a), uint(min(b, 64))), 0, n)
	})
	add("setp.ne.# %p|%q, %a, %b;\nselp.b32 %d, 1, 0, %q;", [4]int{32, n, n}, func(a, b, _ uint64) uint64 { return truth(a == b) })
	if n < 32 {
		return all
	}
	add("popc.# %d, %a;", [4]int{32, n}, func(a, _, _ uint64) uint64 { return uint64(strings.Count(fmt.Sprintf("%b", a), "1")) })
	add("clz.# %d, %a;", [4]int{32, n}, func(a, _, _ uint64) uint64 { return uint64(n - new(big.Int).SetUint64(a).BitLen()) })
	add("brev.# %d, %a;", two, func(a, _, _ uint64) (v uint64) {
		for i := range n {
			v |= a >> i & 1 << (n - 1 - i)
		}
		return v
	})
	add("bfi.# %d, %a, %c, %b, 7;", [4]int{n, n, 32, n}, func(a, b, c uint64) uint64 { return inserted(a, b, 7, c, n) })
	add("bfi.# %d, %a, %c, 3, %b;", [4]int{n, n, 32, n}, func(a, b, c uint64) uint64 { return inserted(a, 3, b, c, n) })
	half := fmt.Sprintf(".reg .b%d %%low, %%high;\n", n/2)
	add(half+"mov.# {%low, %high}, %a;\nmov.# %d, {%high, %low};", two, func(a, _, _ uint64) uint64 { return bits.RotateLeft64(a, n/2)&ones(n) | a>>(n/2) })
	return all
}

func inserted(a, pos, length, c uint64, n int) uint64 {
	for i := uint64(0); i < length&255 && pos&255+i < uint64(n); i++ {
		c = c&^(1<<(pos&255+i)) | a>>i&1<<(pos&255+i)
	}
	return c
}

// Instructions on integers do what the manual says, at the edges of their types, too.
func TestIntegers(t *testing.T) {
	all := []instruction{
		{"shf.l.wrap.b32 %d, %a, %b, %c;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return (b<<32 | a) << (c & 31) >> 32 }},
		{"shf.l.clamp.b32 %d, %a, %b, %c;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return (b<<32 | a) << min(c, 32) >> 32 }},
		{"shf.r.wrap.b32 %d, %a, %b, %c;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return (b<<32 | a) >> (c & 31) & ones(32) }},
		{"shf.r.clamp.b32 %d, %a, %b, %c;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return (b<<32 | a) >> min(c, 32) & ones(32) }},
		{"lop3.b32 %d, %a, %b, %c, 0xE2;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return (a & b) | (c &^ b) }},
		{"lop3.b32 %d, %a, %b, %c, 0x1;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return ^(a | b | c) & ones(32) }},
		{"prmt.b32 %d, %a, %b, 0x2761;", [4]int{32, 32, 32}, func(a, b, _ uint64) uint64 { return a>>8&255 | b>>16&255<<8 | b>>24<<16 | a>>16&255<<24 }},
		{"prmt.b32 %d, %a, %b, 0x88F8;", [4]int{32, 32, 32}, func(a, b, _ uint64) uint64 {
			s := uint64(uint8(int8(a) >> 7))
			return s | uint64(uint8(int8(b>>24)>>7))<<8 | s<<16 | s<<24 | s
		}},
		{"setp.ne.u32 %q, %a, %a;\nsetp.lt.and.s32 %p, %a, %b, %q;\nselp.b32 %d, 1, 0, %p;", [4]int{32, 32, 32}, func(_, _, _ uint64) uint64 { return 0 }},
		{"setp.eq.s32 %q, %c, 1;\nsetp.lt.or.u32 %p, %a, %b, !%q;\nselp.b32 %d, 1, 0, %p;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 { return truth(a < b || c != 1) }},
		{"setp.ne.u32 %q, %a, %a;\nsetp.lo.u32 %p, %a, %b;\nxor.pred %p, %p, %q;\nnot.pred %q, %p;\n@!%q bra ON;\nmov.b32 %a, 7;\nON:\nmov.b32 %d, %a;", [4]int{32, 32, 32}, func(a, b, _ uint64) uint64 {
			if a < b {
				return a
			}
			return 7
		}},
		{"slct.b32.s32 %d, %a, %b, %c;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 {
			if int32(c) >= 0 {
				return a
			}
			return b
		}},
		{"set.lt.u32.s32 %d, %a, %b;", [4]int{32, 32, 32}, func(a, b, _ uint64) uint64 { return ones(32) * truth(int32(a) < int32(b)) }},
	}
	for _, n := range []int{16, 32, 64} {
		all = append(append(append(all, integerInstructions(n, true)...), integerInstructions(n, false)...), bitInstructions(n)...)
	}
	for _, c := range all {
		check(t, c, numbers(c.bits, integerEdges))
	}
}

// check compares an instruction with what it is to give.
func check(t *testing.T, c instruction, in [][3]uint64) {
	t.Helper()
	for i, got := range perform(t, c.text, c.bits, in) {
		if want := c.want(in[i][0], in[i][1], in[i][2]); got != want {
			t.Errorf("%s of %#x is %#x, want %#x", c.text, in[i], got, want)
			return
		}
	}
}

// float32 and float64 edges.
var (
	edges32 = []uint64{0, 1 << 31, 1, 0x80000001, 0x7fffff, 0x800000, 0x807fffff, 0x3f800000, 0xbf800000, 0x3f800001, 0x3f000000, 0x4b800000, 0x4b000001, 0x33800000, 0xb3800001, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000}
	edges64 = []uint64{0, 1 << 63, 1, 0x3ff0000000000000, 0xbff8000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000001, 0x3ca0000000000000, 0x41e0000000000000, 0xc3e0000000000000}
)

// exact is the exact result of float32 arithmetic; nil where that is no number.
func exact(name string, a, b, c float64) *big.Float {
	f := func(v float64) *big.Float { return new(big.Float).SetPrec(700).SetFloat64(v) }
	z := f(0)
	switch name {
	case "add":
		return z.Add(f(a), f(b))
	case "sub":
		return z.Sub(f(a), f(b))
	case "mul":
		return z.Mul(f(a), f(b))
	case "fma":
		return z.Add(z.Mul(f(a), f(b)), f(c))
	case "div":
		return z.Quo(f(a), f(b))
	case "rcp":
		return z.Quo(f(1), f(a))
	case "sqrt":
		return z.Sqrt(f(a))
	}
	panic(name)
}

// rounded is what float32 arithmetic gives in a mode.
func rounded(name, mode string, a, b, c float64) uint64 {
	natural := map[string]float64{"add": a + b, "sub": a - b, "mul": a * b, "fma": a*b + c, "div": a / b, "rcp": 1 / a, "sqrt": math.Sqrt(a)}[name]
	if math.IsNaN(natural) {
		return 0x7fffffff
	}
	if math.IsInf(natural, 0) {
		return uint64(math.Float32bits(float32(natural)))
	}
	if b == 0 && name == "div" || a == 0 && (name == "rcp" || name == "sqrt") || math.IsInf(a, 0) || math.IsInf(b, 0) {
		return uint64(math.Float32bits(float32(natural)))
	}
	x := exact(name, a, b, c)
	if x.Sign() == 0 {
		if mode == "rm" && (name == "add" && (a != 0 || math.Signbit(a) != math.Signbit(b)) || name == "sub" && (a != 0 || math.Signbit(a) == math.Signbit(b)) ||
			name == "fma" && (c != 0 || math.Signbit(a*b) != math.Signbit(c))) {
			return 1 << 31
		}
		return uint64(math.Float32bits(float32(natural)))
	}
	near, _ := x.Float32()
	at := new(big.Float).SetFloat64(float64(near))
	step := func(to float64) float32 { return math.Nextafter32(near, float32(to)) }
	switch cmp := at.Cmp(x); {
	case (mode == "rm" || mode == "rz" && x.Sign() > 0) && cmp > 0:
		near = step(math.Inf(-1))
	case (mode == "rp" || mode == "rz" && x.Sign() < 0) && cmp < 0:
		near = step(math.Inf(1))
	}
	if near == 0 {
		near = float32(math.Copysign(0, float64(x.Sign())))
	}
	return uint64(math.Float32bits(near))
}

func single(v uint64) float64 { return float64(math.Float32frombits(uint32(v))) }

// floats32 are triples that round in interesting ways.
func floats32(bits [4]int) [][3]uint64 {
	in := numbers(bits, edges32)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2000 { // a sum that lies near the middle of two numbers
		a, b := uint64(rnd.Uint32()), uint64(rnd.Uint32N(1<<23))|127<<23
		product := float32(single(a) * single(b))
		c := uint64(math.Float32bits(-product)) ^ uint64(rnd.IntN(4))
		if rnd.IntN(2) == 0 {
			c = uint64(math.Float32bits(product)) &^ 0xfff
		}
		in = append(in, [3]uint64{a, b & ones(bits[2]), c & ones(bits[3])})
	}
	return in
}

// Arithmetic of float32 is exactly rounded in every mode, small numbers included, and a
// NaN is the one that GPUs make.
func TestFloat32(t *testing.T) {
	operands := map[string]int{"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "rcp": 1, "sqrt": 1}
	for name, n := range operands {
		text, in := "%d, %a, %b, %c", [4]int{32, 32, 32, 32}
		for i := n + 1; i < 4; i++ {
			in[i] = 0
		}
		text = text[:4*n+2]
		for _, mode := range []string{"rn", "rz", "rm", "rp"} {
			c := instruction{name + "." + mode + ".f32 " + text + ";", in, func(a, b, c uint64) uint64 { return rounded(name, mode, single(a), single(b), single(c)) }}
			check(t, c, floats32(in))
		}
	}
}

// flushed is a float32 without small numbers.
func flushed(v uint64) uint64 {
	if f := math.Abs(single(v)); f < 0x1p-126 {
		return v & (1 << 31)
	}
	return v
}

func canonical(v float64) uint64 {
	if v != v {
		return 0x7fffffff
	}
	return uint64(math.Float32bits(float32(v)))
}

// What else there is of floats.
func TestFloats(t *testing.T) {
	one, two := [4]int{32, 32}, [4]int{32, 32, 32}
	less := func(a, b float64) bool { return a < b || a == b && math.Signbit(a) && !math.Signbit(b) }
	all := []instruction{
		{"add.ftz.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
			return flushed(rounded("add", "rn", single(flushed(a)), single(flushed(b)), 0))
		}},
		{"mul.rn.sat.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
			v := single(rounded("mul", "rn", single(a), single(b), 0))
			if !(v > 0) {
				return 0
			}
			return uint64(math.Float32bits(float32(min(v, 1))))
		}},
		{"fma.rn.ftz.f32 %d, %a, %b, %c;", [4]int{32, 32, 32, 32}, func(a, b, c uint64) uint64 {
			return flushed(rounded("fma", "rn", single(flushed(a)), single(flushed(b)), single(flushed(c))))
		}},
		{"min.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
			x, y := single(a), single(b)
			if y != y || less(x, y) {
				return canonical(x)
			}
			return canonical(y)
		}},
		{"max.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 {
			x, y := single(a), single(b)
			if y != y || less(y, x) {
				return canonical(x)
			}
			return canonical(y)
		}},
		{"max.NaN.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return nan(a, b, math.Max(single(a), single(b))) }},
		{"neg.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return a ^ 1<<31 }},
		{"abs.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return a &^ (1 << 31) }},
		{"copysign.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return b&^(1<<31) | a&(1<<31) }},
		{"ex2.approx.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return canonical(math.Exp2(single(a))) }},
		{"ex2.approx.ftz.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return flushed(canonical(math.Exp2(single(flushed(a))))) }},
		{"lg2.approx.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return canonical(math.Log2(single(a))) }},
		{"tanh.approx.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return canonical(math.Tanh(single(a))) }},
		{"rsqrt.approx.f32 %d, %a;", one, func(a, _, _ uint64) uint64 { return canonical(1 / math.Sqrt(single(a))) }},
		{"div.full.f32 %d, %a, %b;", two, func(a, b, _ uint64) uint64 { return rounded("div", "rn", single(a), single(b), 0) }},
		{"testp.finite.f32 %p, %a;\nselp.u32 %d, 1, 0, %p;", one, func(a, _, _ uint64) uint64 { return truth(!math.IsNaN(single(a)) && !math.IsInf(single(a), 0)) }},
	}
	for name, is := range map[string]func(x, y float64) bool{
		"lt": func(x, y float64) bool { return x < y }, "le": func(x, y float64) bool { return x <= y }, "eq": func(x, y float64) bool { return x == y },
		"ne": func(x, y float64) bool { return x < y || x > y }, "ltu": func(x, y float64) bool { return !(x >= y) }, "geu": func(x, y float64) bool { return !(x < y) },
		"equ": func(x, y float64) bool { return x == y || x != x || y != y }, "neu": func(x, y float64) bool { return x != y },
		"num": func(x, y float64) bool { return x == x && y == y }, "nan": func(x, y float64) bool { return x != x || y != y },
	} {
		all = append(all, instruction{"setp." + name + ".f32 %p, %a, %b;\nselp.b32 %d, 1, 0, %p;", two, func(a, b, _ uint64) uint64 { return truth(is(single(a), single(b))) }},
			instruction{"setp." + name + ".ftz.f32 %p, %a, %b;\nselp.b32 %d, 1, 0, %p;", two, func(a, b, _ uint64) uint64 { return truth(is(single(flushed(a)), single(flushed(b)))) }})
	}
	for _, c := range all {
		check(t, c, floats32(c.bits))
	}
	double := math.Float64frombits
	for _, c := range []instruction{
		{"add.f64 %d, %a, %b;", [4]int{64, 64, 64}, func(a, b, _ uint64) uint64 { return math.Float64bits(double(a) + double(b)) }},
		{"fma.rn.f64 %d, %a, %b, %c;", [4]int{64, 64, 64, 64}, func(a, b, c uint64) uint64 { return math.Float64bits(math.FMA(double(a), double(b), double(c))) }},
		{"div.rn.f64 %d, %a, %b;", [4]int{64, 64, 64}, func(a, b, _ uint64) uint64 { return math.Float64bits(double(a) / double(b)) }},
		{"sqrt.rn.f64 %d, %a;", [4]int{64, 64}, func(a, _, _ uint64) uint64 { return math.Float64bits(math.Sqrt(double(a))) }},
		{"setp.gt.f64 %p, %a, %b;\nselp.b32 %d, 1, 0, %p;", [4]int{32, 64, 64}, func(a, b, _ uint64) uint64 { return truth(double(a) > double(b)) }},
	} {
		check(t, c, numbers(c.bits, edges64))
	}
}

// nan is v, but a NaN where one of two numbers is.
func nan(a, b uint64, v float64) uint64 {
	if x, y := single(a), single(b); x != x || y != y {
		return 0x7fffffff
	}
	return canonical(v)
}
