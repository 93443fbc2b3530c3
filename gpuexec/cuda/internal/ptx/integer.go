package ptx

import "math/bits"

var (
	u32 = typ{'u', 4}
	u64 = typ{'u', 8}
)

// signed extends the sign of a value of so many bytes to 64 bits.
func signed(v uint64, size int) uint64 {
	n := 64 - 8*size
	return uint64(int64(v<<n) >> n)
}

// widen is a value as 64 bits, by its type.
func (t typ) widen(v uint64) uint64 {
	if t.kind == 's' {
		return signed(v, t.size)
	}
	return v & mask(t.size)
}

// integer takes the type of an instruction that only integers have.
func (c *compiler) integer() typ {
	t := c.typ()
	if t.kind == 'f' || t.kind == 't' || t.size < 2 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	return t
}

// bitwise takes a type of bits.
func (c *compiler) bitwise() typ {
	t := c.typ()
	if t.kind != 'b' || t.size < 2 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	return t
}

// unary, binary and ternary compile an instruction whose operands are all of a type.
func (c *compiler) unary(t typ, f func(a uint64) uint64) {
	c.count(2)
	c.map1(c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), f)
}

func (c *compiler) binary(t typ, f func(a, b uint64) uint64) {
	c.count(3)
	c.map2(c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], t), f)
}

func (c *compiler) ternary(t typ, f func(a, b, c uint64) uint64) {
	c.count(4)
	c.map3(c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], t), c.src(c.in.args[3], t), f)
}

// arithmetic compiles add, sub, min, max, div, rem and abs of integers.
func (c *compiler) arithmetic(t typ) {
	if t.kind == 'b' || t.size < 2 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	all := mask(t.size)
	switch c.in.name {
	case "add":
		c.binary(t, func(a, b uint64) uint64 { return (a + b) & all })
	case "sub":
		c.binary(t, func(a, b uint64) uint64 { return (a - b) & all })
	case "min":
		c.binary(t, func(a, b uint64) uint64 { return t.least(a, b) })
	case "max":
		c.binary(t, func(a, b uint64) uint64 { return t.most(a, b) })
	case "div":
		c.binary(t, func(a, b uint64) uint64 { return t.quotient(a, b) })
	case "neg", "abs":
		if t.kind != 's' {
			c.fail("%s of type %s is not known here", c.in.name, t)
		}
		if c.in.name == "neg" {
			c.unary(t, func(a uint64) uint64 { return -a & all })
			return
		}
		c.unary(t, func(a uint64) uint64 {
			if int64(signed(a, t.size)) < 0 {
				return -a & all
			}
			return a
		})
	}
}

func (t typ) less(a, b uint64) bool {
	if t.kind == 's' {
		return int64(signed(a, t.size)) < int64(signed(b, t.size))
	}
	return a < b
}

func (t typ) least(a, b uint64) uint64 {
	if t.less(b, a) {
		return b
	}
	return a
}

func (t typ) most(a, b uint64) uint64 {
	if t.less(a, b) {
		return b
	}
	return a
}

// quotient of a division by 0 is all ones, as GPUs have it; the manual does not say.
func (t typ) quotient(a, b uint64) uint64 {
	switch {
	case b == 0:
		return mask(t.size)
	case t.kind == 's':
		return uint64(int64(signed(a, t.size))/int64(signed(b, t.size))) & mask(t.size)
	}
	return a / b
}

func (c *compiler) rem() {
	t := c.integer()
	c.binary(t, func(a, b uint64) uint64 { return (a - t.quotient(a, b)*b) & mask(t.size) })
}

// high is the upper half of a product.
func (t typ) high(a, b uint64) uint64 {
	if t.size < 8 {
		return t.widen(a) * t.widen(b) >> (8 * t.size) & mask(t.size)
	}
	h, _ := bits.Mul64(a, b)
	if t.kind == 's' {
		if int64(a) < 0 {
			h -= b
		}
		if int64(b) < 0 {
			h -= a
		}
	}
	return h
}

// multiply compiles mul and mad of integers.
func (c *compiler) multiply(t typ) {
	if t.kind == 'b' || t.size < 2 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	size, half := t.size, c.in.take("lo", "hi", "wide")
	var product func(a, b uint64) uint64
	switch {
	case half == "lo":
		product = func(a, b uint64) uint64 { return a * b }
	case half == "hi":
		product = t.high
	case half == "wide" && t.size < 8:
		size *= 2
		product = func(a, b uint64) uint64 { return t.widen(a) * t.widen(b) }
	default:
		c.fail("%s without .lo, .hi or .wide", c.in.name)
	}
	all, to := mask(size), typ{t.kind, size}
	if c.in.name == "mul" {
		c.count(3)
		c.map2(c.dst(c.in.args[0], size), c.src(c.in.args[1], t), c.src(c.in.args[2], t), func(a, b uint64) uint64 { return product(a, b) & all })
		return
	}
	c.count(4)
	c.map3(c.dst(c.in.args[0], size), c.src(c.in.args[1], t), c.src(c.in.args[2], t), c.src(c.in.args[3], to),
		func(a, b, third uint64) uint64 { return (product(a, b) + third) & all })
}

// sad is |a - b| + c.
func (c *compiler) sad() {
	t := c.integer()
	c.ternary(t, func(a, b, third uint64) uint64 { return (t.most(a, b) - t.least(a, b) + third) & mask(t.size) })
}

// logic compiles and, or, xor and not of bits; of predicates, too.
func (c *compiler) logic() {
	ops := map[string]func(a, b uint64) uint64{
		"and": func(a, b uint64) uint64 { return a & b }, "or": func(a, b uint64) uint64 { return a | b },
		"xor": func(a, b uint64) uint64 { return a ^ b }, "not": func(a, _ uint64) uint64 { return ^a },
	}
	f, args := ops[c.in.name], c.in.args
	if c.in.name == "not" && len(args) == 2 {
		args = append(args[:2:2], args[1])
	}
	if len(args) != 3 {
		c.fail("%s with %d operands", c.in.name, len(args))
	}
	if c.in.take("pred") == "" {
		t := c.bitwise()
		c.map2(c.dst(args[0], t.size), c.src(args[1], t), c.src(args[2], t), func(a, b uint64) uint64 { return f(a, b) & mask(t.size) })
		return
	}
	d := c.predDst(args[0])
	a, notA := c.predicate(args[1])
	b, notB := c.predicate(args[2])
	c.plain(func(w *warp, m uint32) {
		v := uint32(f(uint64(w.pred(a, notA)), uint64(w.pred(b, notB))))
		w.p[d] = w.p[d]&^m | v&m
	})
}

// pred is a predicate in all lanes.
func (w *warp) pred(p int, not bool) uint32 {
	if not {
		return ^w.p[p]
	}
	return w.p[p]
}

// lop3 has a table of what each three bits give.
func (c *compiler) lop3() {
	t := c.bitwise()
	if len(c.in.args) != 5 || c.in.args[4].kind != 'n' || c.in.args[4].value > 255 || t.size != 4 {
		c.fail("want three operands and a table")
	}
	table := c.in.args[4].value
	c.in.args = c.in.args[:4]
	c.ternary(t, func(x, y, z uint64) (v uint64) {
		for i := range uint64(8) {
			if table>>i&1 != 0 {
				v |= (x ^ (i>>2&1 - 1)) & (y ^ (i>>1&1 - 1)) & (z ^ (i&1 - 1))
			}
		}
		return v & mask(4)
	})
}

// shift compiles shl and shr: what is shifted further than there are bits is gone.
func (c *compiler) shift() {
	t := c.typ()
	if t.kind == 'f' || t.kind == 't' || t.size < 2 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	c.count(3)
	f := func(a, n uint64) uint64 { return a << n & mask(t.size) }
	if c.in.name == "shr" {
		f = func(a, n uint64) uint64 {
			if t.kind == 's' {
				return uint64(int64(signed(a, t.size))>>n) & mask(t.size)
			}
			return a >> n
		}
	} else if t.kind != 'b' {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	c.map2(c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], u32), f)
}

// funnel compiles shf: 32 bits out of two registers.
func (c *compiler) funnel() {
	t := c.bitwise()
	left, wrap := c.in.take("l", "r") == "l", c.in.take("wrap", "clamp") == "wrap"
	if t.size != 4 {
		c.fail("shf of type %s is not known here", t)
	}
	c.ternary(u32, func(low, high, count uint64) uint64 {
		n := min(count, 32)
		if wrap {
			n = count & 31
		}
		if both := high<<32 | low; !left {
			return both >> n & mask(4)
		}
		return (high<<32 | low) << n >> 32
	})
}
