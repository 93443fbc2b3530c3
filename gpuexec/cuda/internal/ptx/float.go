package ptx

import (
	"cmp"
	"math"
	"math/bits"
)

// quietNaN is what float32 arithmetic gives for a NaN.
const quietNaN = 0x7fffffff

//go:norace
//go:nocheckptr
func f32(v uint64) float32    { return math.Float32frombits(uint32(v)) }
func f64(v uint64) float64    { return math.Float64frombits(v) }
func bits64(f float64) uint64 { return math.Float64bits(f) }

//go:norace
//go:nocheckptr
func bits32(f float32) uint64 {
	if f != f {
		return quietNaN
	}
	return uint64(math.Float32bits(f))
}

// odd is the exact s + e as a float64, for a rounding to fewer bits: where it has to round,
// the last bit is 1. e is what s lacks, less than its last bit; of it the sign counts.
func odd(s, e float64) float64 {
	if b := math.Float64bits(s); e != 0 && b&1 == 0 && !math.IsInf(s, 0) && s == s {
		if (e > 0) == (s > 0) {
			return math.Float64frombits(b + 1)
		}
		return math.Float64frombits(b - 1)
	}
	return s
}

// sum is a + b, odd.
func sum(a, b float64) float64 {
	s := a + b
	part := s - a
	return odd(s, (a-(s-part))+(b-part))
}

// quotient is a / b of two float32, odd.
func quotient(a, b float64) float64 {
	q := a / b
	if q == 0 || math.IsInf(q, 0) || math.IsInf(b, 0) {
		return q
	}
	return odd(q, math.Copysign(1, b)*math.FMA(-q, b, a))
}

// root is the square root of a float32, odd.
func root(a float64) float64 {
	s := math.Sqrt(a)
	if math.IsInf(s, 0) {
		return s
	}
	return odd(s, math.FMA(-s, s, a))
}

// fma is a * b + c of float32, exactly rounded.
//
//go:norace
//go:nocheckptr
func fma(a, b, c float32) float32 {
	p, third := float64(a)*float64(b), float64(c) // the product is exact
	s := p + third
	if p != 0 && math.Float64bits(s)&(1<<28-1) == 0 { // s may lie between two float32, and not be exact
		s = sum(p, third)
	}
	return float32(s)
}

// format is a kind of float: its bits of precision, and the exponents of its last bit where
// that is least and where it is highest.
type format struct{ precision, low, high int }

var formats = map[typ]format{{'f', 2}: {11, -24, 5}, {'t', 2}: {8, -133, 120}, {'f', 4}: {24, -149, 104}, {'f', 8}: {53, -1074, 971}}

// round gives x to a format: n to the nearest, z to zero, m down, p up.
func (f format) round(x float64, mode byte) float64 {
	if x == 0 || x != x || math.IsInf(x, 0) {
		return x
	}
	_, e := math.Frexp(x)
	last := max(e-f.precision, f.low)
	y := integral(math.Ldexp(x, -last), mode)
	if most := math.Ldexp(1, f.precision) - 1; last > f.high || last == f.high && math.Abs(y) > most {
		if mode == 'n' || mode == 'p' && x > 0 || mode == 'm' && x < 0 {
			return math.Copysign(math.Inf(1), x)
		}
		return math.Copysign(math.Ldexp(most, f.high), x)
	}
	return math.Ldexp(y, last)
}

func integral(x float64, mode byte) float64 {
	switch mode {
	case 'z':
		return math.Trunc(x)
	case 'm':
		return math.Floor(x)
	case 'p':
		return math.Ceil(x)
	}
	return math.RoundToEven(x)
}

func flush(v uint64) uint64 {
	if v&0x7f800000 == 0 {
		return v & 0x80000000
	}
	return v
}

func saturate(v uint64) uint64 {
	if f := f32(v); !(f > 0) { // of NaN, too
		return 0
	} else if f > 1 {
		return uint64(math.Float32bits(1))
	}
	return v
}

// rounding takes the mode of an instruction.
func (c *compiler) rounding() byte {
	if m := c.in.take("rn", "rz", "rm", "rp"); m != "" {
		return m[1]
	}
	return 0
}

// ends wraps what is done to operands and results: ftz and sat.
func (c *compiler) ends(t typ, f func(a, b, c uint64) uint64) func(a, b, c uint64) uint64 {
	ftz, sat := c.in.take("ftz") != "", c.in.take("sat") != ""
	if (ftz || sat) && t.size != 4 {
		c.fail("%s of type %s with .ftz or .sat is not known here", c.in.name, t)
	}
	whole := f
	if ftz {
		whole = func(a, b, c uint64) uint64 { return flush(f(flush(a), flush(b), flush(c))) }
	}
	if !sat {
		return whole
	}
	return func(a, b, c uint64) uint64 { return saturate(whole(a, b, c)) }
}

// float compiles an instruction of n float operands.
func (c *compiler) float(t typ, n int, f func(a, b, c uint64) uint64) {
	if t.kind != 'f' || t.size < 4 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	f = c.ends(t, f)
	c.count(1 + n)
	var args [3]int
	for i := range 3 {
		args[i] = c.src(c.in.args[min(i, n-1)+1], t)
	}
	c.map3(c.dst(c.in.args[0], t.size), args[0], args[1], args[2], f)
}

// zero is the sum of x and y, which is 0: its sign is that of both, else as it is rounded.
func zero(x, y float64, mode byte) float64 {
	if math.Signbit(x) == math.Signbit(y) {
		return x + y
	}
	if mode == 'm' {
		return math.Copysign(0, -1)
	}
	return 0
}

// add32 is x + y in a mode.
func add32(x, y float64, mode byte) uint64 {
	s := sum(x, y)
	if s == 0 {
		s = zero(x, y, mode)
	}
	return bits32(float32(formats[typ{'f', 4}].round(s, mode)))
}

// floatArithmetic compiles add, sub and mul.
func (c *compiler) floatArithmetic(t typ) {
	mode := cmp.Or(c.rounding(), 'n')
	if t.size == 8 && mode != 'n' {
		c.fail("%s of type %s in this mode is not known here", c.in.name, t)
	}
	name := c.in.name
	switch {
	case t.size == 8 && name == "add":
		c.float(t, 2, func(a, b, _ uint64) uint64 { return bits64(f64(a) + f64(b)) })
	case t.size == 8 && name == "sub":
		c.float(t, 2, func(a, b, _ uint64) uint64 { return bits64(f64(a) - f64(b)) })
	case t.size == 8:
		c.float(t, 2, func(a, b, _ uint64) uint64 { return bits64(f64(a) * f64(b)) })
	case mode == 'n' && len(c.in.mods) == 0:
		c.nearest(t)
	case name == "add":
		c.float(t, 2, func(a, b, _ uint64) uint64 { return add32(float64(f32(a)), float64(f32(b)), mode) })
	case name == "sub":
		c.float(t, 2, func(a, b, _ uint64) uint64 { return add32(float64(f32(a)), -float64(f32(b)), mode) })
	default:
		c.float(t, 2, func(a, b, _ uint64) uint64 {
			return bits32(float32(formats[t].round(float64(f32(a))*float64(f32(b)), mode)))
		})
	}
}

// nearest compiles add, sub and mul of float32 as they are most often.
func (c *compiler) nearest(t typ) {
	c.count(3)
	d, a, b := c.dst(c.in.args[0], 4), c.src(c.in.args[1], t), c.src(c.in.args[2], t)
	switch c.in.name {
	case "add":
		c.plain(func(w *warp, m uint32) { eachAdd(&w.r[d], &w.r[a], &w.r[b], m) })
	case "sub":
		c.map2(d, a, b, func(a, b uint64) uint64 { return bits32(f32(a) - f32(b)) })
	default:
		c.plain(func(w *warp, m uint32) { eachMul(&w.r[d], &w.r[a], &w.r[b], m) })
	}
}

// fma compiles fma, and mad of floats, which is the same.
func (c *compiler) fma(t typ) {
	mode := c.rounding()
	if mode == 0 || t.size == 8 && mode != 'n' {
		c.fail("%s of type %s in this mode is not known here", c.in.name, t)
	}
	switch {
	case t.size == 8:
		c.float(t, 3, func(a, b, third uint64) uint64 { return bits64(math.FMA(f64(a), f64(b), f64(third))) })
	case mode == 'n' && len(c.in.mods) == 0 && t.kind == 'f' && t.size == 4:
		c.count(4)
		d, a, b, third := c.dst(c.in.args[0], 4), c.src(c.in.args[1], t), c.src(c.in.args[2], t), c.src(c.in.args[3], t)
		c.plain(func(w *warp, m uint32) { eachFMA(&w.r[d], &w.r[a], &w.r[b], &w.r[third], m) })
	default:
		c.float(t, 3, func(a, b, third uint64) uint64 {
			return add32(float64(f32(a))*float64(f32(b)), float64(f32(third)), mode)
		})
	}
}

// divide compiles div, rcp, sqrt and rsqrt of floats. What is approximate is the nearest.
func (c *compiler) divide(t typ) {
	mode := c.rounding()
	if mode == 0 {
		if c.in.take("approx", "full") == "" {
			c.fail("%s of type %s without a mode", c.in.name, t)
		}
		mode = 'n'
	}
	if t.size == 8 && mode != 'n' {
		c.fail("%s of type %s in this mode is not known here", c.in.name, t)
	}
	operands, exact, double := 1, quotient, func(a, b float64) float64 { return a / b }
	switch c.in.name {
	case "div":
		operands = 2
	case "rcp":
		exact, double = func(a, _ float64) float64 { return quotient(1, a) }, func(a, _ float64) float64 { return 1 / a }
	case "sqrt":
		exact, double = func(a, _ float64) float64 { return root(a) }, func(a, _ float64) float64 { return math.Sqrt(a) }
	case "rsqrt":
		exact = func(a, _ float64) float64 { return 1 / math.Sqrt(a) }
		double = exact
	}
	if t.size == 8 {
		c.float(t, operands, func(a, b, _ uint64) uint64 { return bits64(double(f64(a), f64(b))) })
		return
	}
	c.float(t, operands, func(a, b, _ uint64) uint64 {
		return bits32(float32(formats[typ{'f', 4}].round(exact(float64(f32(a)), float64(f32(b))), mode)))
	})
}

// approximate compiles ex2, lg2, sin, cos and tanh: the exact result, rounded.
func approximate(f func(float64) float64) func(*compiler) {
	return func(c *compiler) {
		t := c.typ()
		if c.in.take("approx") == "" || t.size != 4 {
			c.fail("%s of type %s is not known here", c.in.name, t)
		}
		c.float(t, 1, func(a, _, _ uint64) uint64 { return bits32(float32(f(float64(f32(a))))) })
	}
}

// extreme is the least or most of two floats: of a NaN and a number it is the number.
func extreme(a, b float64, most bool) float64 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	case a == b && math.Signbit(a) == most: // -0 is less than 0
		return b
	case a == b || (a > b) == most:
		return a
	}
	return b
}

// extremes compiles min and max of floats.
func (c *compiler) extremes(t typ) {
	most, nan := c.in.name == "max", c.in.take("NaN") != ""
	c.float(t, 2, func(a, b, _ uint64) uint64 {
		x, y := t.float(a), t.float(b)
		if nan && (x != x || y != y) {
			x, y = math.NaN(), math.NaN()
		}
		return t.bits(extreme(x, y, most))
	})
}

// float is the value of a type's bits, and bits is back, for a value that the type has.
func (t typ) float(v uint64) float64 {
	if t.size == 8 {
		return f64(v)
	}
	return float64(f32(v))
}

func (t typ) bits(f float64) uint64 {
	if t.size == 8 {
		return bits64(f)
	}
	return bits32(float32(f))
}

// signs compiles neg, abs and copysign of floats, which touch one bit.
func (c *compiler) signs(t typ) {
	top := uint64(1) << (8*t.size - 1)
	switch c.in.name {
	case "neg":
		c.float(t, 1, func(a, _, _ uint64) uint64 { return a ^ top })
	case "abs":
		c.float(t, 1, func(a, _, _ uint64) uint64 { return a &^ top })
	default: // the sign is the first operand's
		c.float(t, 2, func(a, b, _ uint64) uint64 { return b&^top | a&top })
	}
}

// testp asks what kind of number a float is.
func (c *compiler) testp() {
	t := c.typ()
	asks := map[string]func(float64) bool{
		"finite": func(f float64) bool { return f-f == 0 }, "infinite": func(f float64) bool { return math.IsInf(f, 0) },
		"number": func(f float64) bool { return f == f }, "notanumber": func(f float64) bool { return f != f },
	}
	ask := asks[c.in.take("finite", "infinite", "number", "notanumber")]
	if ask == nil || t.kind != 'f' || t.size < 4 {
		c.fail("testp of type %s is not known here", t)
	}
	c.count(2)
	d, a := c.predDst(c.in.args[0]), c.src(c.in.args[1], t)
	c.plain(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			w.setPred(d, 1<<i, ask(t.float(w.r[a][i])))
		}
	})
}
