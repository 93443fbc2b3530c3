package ptx

import "math"

// cvt converts between types; registers may be larger than their types.
func (c *compiler) cvt() {
	from := c.typ()
	to := c.typ()
	c.count(2)
	mode, whole := c.rounding(), c.in.take("rni", "rzi", "rmi", "rpi")
	ftz, sat := c.in.take("ftz") != "", c.in.take("sat") != ""
	if ftz && from != (typ{'f', 4}) && to != (typ{'f', 4}) || from.kind == 'b' || to.kind == 'b' {
		c.fail("cvt from %s to %s is not known here", from, to)
	}
	d, bytes := c.wide(c.in.args[0], to.size)
	a := c.loose(c.in.args[1], from)
	var f func(uint64) uint64
	switch {
	case !from.isFloat() && !to.isFloat() && mode == 0 && whole == "":
		f = integers(from, to, sat)
	case !from.isFloat() && to.isFloat() && mode != 0 && !sat:
		f = c.toFloat(from, to, mode)
	case from.isFloat() && !to.isFloat() && whole != "":
		f = toInteger(from, to, whole[1])
	case from.isFloat() && to.isFloat() && (mode != 0) == (formats[to].precision < formats[from].precision) && (whole == "" || from == to):
		f = between(from, to, mode, whole, sat)
	default:
		c.fail("cvt from %s to %s in this mode is not known here", from, to)
	}
	c.map1(d, a, func(v uint64) uint64 {
		v &= mask(from.size)
		if ftz && from.size == 4 {
			v = flush(v)
		}
		v = f(v)
		if ftz && to == (typ{'f', 4}) {
			v = flush(v)
		}
		if to.kind == 's' {
			return signed(v, to.size) & mask(bytes)
		}
		return v
	})
}

func (t typ) isFloat() bool { return t.kind == 'f' || t.kind == 't' }

// integers converts between integers: the lower bits, or the nearest that there is.
func integers(from, to typ, sat bool) func(uint64) uint64 {
	if !sat {
		return func(v uint64) uint64 { return from.widen(v) & mask(to.size) }
	}
	low, high := to.bounds()
	return func(v uint64) uint64 {
		v = from.widen(v)
		switch {
		case from.kind == 's' && int64(v) < low:
			v = uint64(low)
		case (from.kind == 'u' || int64(v) > 0) && v > high:
			v = high
		}
		return v & mask(to.size)
	}
}

// bounds are the least and the most integer of a type.
func (t typ) bounds() (low int64, high uint64) {
	if t.kind == 's' {
		return -1 << (8*t.size - 1), mask(t.size) >> 1
	}
	return 0, mask(t.size)
}

// decode is the value of a float's bits.
func (t typ) decode(v uint64) float64 {
	switch {
	case t.size == 8:
		return f64(v)
	case t.size == 4:
		return float64(f32(v))
	case t.kind == 't':
		return float64(f32(v << 16))
	}
	exponent, fraction := int(v>>10&31), float64(v&1023)
	f := math.Ldexp(1024+fraction, exponent-25)
	switch {
	case exponent == 0:
		f = math.Ldexp(fraction, -24)
	case exponent == 31 && fraction != 0:
		return math.NaN()
	case exponent == 31:
		f = math.Inf(1)
	}
	if v>>15 != 0 {
		f = -f
	}
	return f
}

// encode is the bits of a value that the type has.
func (t typ) encode(f float64) uint64 {
	switch {
	case t.size > 2:
		return t.bits(f)
	case f != f:
		return 0x7fff
	case t.kind == 't':
		return uint64(math.Float32bits(float32(f)) >> 16)
	}
	var sign uint64
	if math.Signbit(f) {
		sign, f = 1<<15, -f
	}
	switch {
	case math.IsInf(f, 0):
		return sign | 31<<10
	case f < math.Ldexp(1, -14):
		return sign | uint64(math.Ldexp(f, 24))
	}
	fraction, e := math.Frexp(f)
	return sign | uint64(e+14)<<10 | uint64(math.Ldexp(fraction, 11))&1023
}

// toFloat converts an integer. One of 64 bits has one rounding, to the nearest.
func (c *compiler) toFloat(from, to typ, mode byte) func(uint64) uint64 {
	if from.size == 8 && mode != 'n' || to.size < 4 {
		c.fail("cvt from %s to %s in this mode is not known here", from, to)
	}
	return func(v uint64) uint64 {
		v = from.widen(v)
		switch {
		case from.size < 8:
			return to.encode(formats[to].round(float64(int64(v)), mode))
		case to.size == 8 && from.kind == 's':
			return bits64(float64(int64(v)))
		case to.size == 8:
			return bits64(float64(v))
		case from.kind == 's':
			return bits32(float32(int64(v)))
		}
		return bits32(float32(v))
	}
}

// toInteger converts a float to the nearest integer that there is. A NaN is 0, but the
// highest bit alone where 64 bits are on a side.
func toInteger(from, to typ, mode byte) func(uint64) uint64 {
	low, high := to.bounds()
	return func(v uint64) uint64 {
		f := integral(from.decode(v), mode)
		switch {
		case f != f && (from.size == 8 || to.size == 8):
			return 1 << (8*to.size - 1)
		case f != f:
			return 0
		case f <= float64(low):
			return uint64(low) & mask(to.size)
		case f >= float64(high):
			return high
		case to.kind == 's':
			return uint64(int64(f)) & mask(to.size)
		}
		return uint64(f)
	}
}

// between converts between floats, or rounds to a whole number.
func between(from, to typ, mode byte, whole string, sat bool) func(uint64) uint64 {
	return func(v uint64) uint64 {
		f := from.decode(v)
		if whole != "" {
			f = integral(f, whole[1])
		}
		if mode != 0 {
			f = formats[to].round(f, mode)
		}
		switch {
		case sat && !(f > 0):
			f = 0
		case sat && f > 1:
			f = 1
		}
		return to.encode(f)
	}
}
