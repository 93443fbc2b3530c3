package ptx

import "math/bits"

// counts compiles popc and clz: a count of 32 bits.
func (c *compiler) counts() {
	t := c.bitwise()
	c.count(2)
	f := func(a uint64) uint64 { return uint64(bits.OnesCount64(a)) }
	if c.in.name == "clz" {
		f = func(a uint64) uint64 { return uint64(bits.LeadingZeros64(a) - 64 + 8*t.size) }
	}
	if t.size < 4 {
		c.fail("%s of type %s is not known here", c.in.name, t)
	}
	c.map1(c.dst(c.in.args[0], 4), c.src(c.in.args[1], t), f)
}

// bfind is the place of the highest bit that is no sign, all ones where there is none.
func (c *compiler) bfind() {
	t := c.integer()
	amount := c.in.take("shiftamt") != ""
	c.count(2)
	if t.size < 4 || t.kind == 'b' {
		c.fail("bfind of type %s is not known here", t)
	}
	c.map1(c.dst(c.in.args[0], 4), c.src(c.in.args[1], t), func(a uint64) uint64 {
		if t.kind == 's' && int64(signed(a, t.size)) < 0 {
			a = ^a & mask(t.size)
		}
		n := bits.Len64(a) - 1
		if n >= 0 && amount {
			n = 8*t.size - 1 - n
		}
		return uint64(n) & mask(4)
	})
}

func (c *compiler) brev() {
	t := c.bitwise()
	c.unary(t, func(a uint64) uint64 { return bits.Reverse64(a) >> (64 - 8*t.size) })
}

// cnot is 1 of 0, else 0.
func (c *compiler) cnot() {
	c.unary(c.bitwise(), func(a uint64) uint64 {
		if a == 0 {
			return 1
		}
		return 0
	})
}

// bfe takes a field of bits out of a register; its sign is that of its highest bit.
func (c *compiler) bfe() {
	t := c.integer()
	c.count(4)
	if t.size < 4 || t.kind == 'b' {
		c.fail("bfe of type %s is not known here", t)
	}
	msb := uint64(8*t.size - 1)
	c.map3(c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], u32), c.src(c.in.args[3], u32),
		func(a, pos, n uint64) uint64 {
			pos, n = pos&255, n&255
			v := a >> pos & (1<<n - 1)
			if t.kind == 's' && n > 0 && a>>min(pos+n-1, msb)&1 != 0 {
				v |= ^uint64(0) << min(n, msb+1-min(pos, msb+1))
				if pos > msb {
					v = ^uint64(0)
				}
			}
			return v & mask(t.size)
		})
}

// bfi puts a field of bits into a register.
func (c *compiler) bfi() {
	t := c.bitwise()
	c.count(5)
	if t.size < 4 {
		c.fail("bfi of type %s is not known here", t)
	}
	d, a, b := c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], t)
	pos, n := c.src(c.in.args[3], u32), c.src(c.in.args[4], u32)
	c.plain(func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			at := w.r[pos][i] & 255
			field := (uint64(1)<<(w.r[n][i]&255) - 1) << at
			w.r[d][i] = (w.r[a][i]<<at&field | w.r[b][i]&^field) & mask(t.size)
		}
	})
}

// prmt picks four bytes of two registers; bit 3 of a choice spreads the byte's sign.
func (c *compiler) prmt() {
	t := c.bitwise()
	if t.size != 4 {
		c.fail("prmt of type %s is not known here", t)
	}
	c.ternary(t, func(low, high, choice uint64) (v uint64) {
		for i := range 4 {
			pick := choice >> (4 * i) & 15
			part := (high<<32 | low) >> (8 * (pick & 7)) & 255
			if pick > 7 {
				part = signed(part, 1) >> 8 & 255
			}
			v |= part << (8 * i)
		}
		return v
	})
}

// mov copies a register, takes it apart, or puts it together.
func (c *compiler) mov() {
	c.count(2)
	if c.in.take("pred") != "" {
		d := c.predDst(c.in.args[0])
		p, not := c.predicate(c.in.args[1])
		c.plain(func(w *warp, m uint32) { w.p[d] = w.p[d]&^m | w.pred(p, not)&m })
		return
	}
	t := c.typ()
	switch to, from := c.in.args[0], c.in.args[1]; {
	case to.kind == '{':
		part := c.part(t, len(to.list))
		a := c.src(from, t)
		whole := c.scratch() // as the parts may lie over it
		c.map1(whole, a, func(a uint64) uint64 { return a })
		for i, v := range to.list {
			c.map1(c.dst(v, part.size), whole, func(a uint64) uint64 { return a >> (8 * part.size * i) & mask(part.size) })
		}
	case from.kind == '{':
		part := c.part(t, len(from.list))
		d, sum := c.dst(to, t.size), c.constant(fixed{})
		for i, v := range from.list {
			next := c.scratch()
			c.map2(next, sum, c.src(v, part), func(sum, v uint64) uint64 { return sum | v<<(8*part.size*i) })
			sum = next
		}
		c.map1(d, sum, func(a uint64) uint64 { return a })
	default:
		d, a := c.dst(to, t.size), c.src(from, t)
		c.plain(func(w *warp, m uint32) { eachMove(&w.r[d], &w.r[a], m) })
	}
}

// part is the type of each of n parts.
func (c *compiler) part(t typ, n int) typ {
	if t.kind != 'b' || n != 2 && n != 4 || t.size/n == 0 {
		c.fail("%d parts of %d bytes", n, t.size)
	}
	return typ{'b', t.size / n}
}

// cvta turns an address in a space into one in any, and back.
func (c *compiler) cvta() {
	if t := c.typ(); t != u64 {
		c.fail("addresses of type %s", t)
	}
	back := c.in.take("to") != ""
	windows := map[string]uint64{"shared": sharedWindow, "local": localWindow, "global": 0, "const": 0, "param": 0, "shared::cta": sharedWindow, "param::entry": 0}
	name := c.in.take("shared", "local", "global", "const", "param", "shared::cta", "param::entry")
	if name == "" {
		c.fail("cvta of no space that is known here")
	}
	window := windows[name]
	if back {
		window = -window
	}
	c.binaryConst(window)
}

func (c *compiler) binaryConst(add uint64) {
	c.count(2)
	c.map1(c.dst(c.in.args[0], 8), c.src(c.in.args[1], u64), func(a uint64) uint64 { return a + add })
}

// selp takes one of two by a predicate.
func (c *compiler) selp() {
	t := c.typ()
	c.count(4)
	d, a, b := c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], t)
	p, not := c.predicate(c.in.args[3])
	c.plain(func(w *warp, m uint32) { eachWhere(&w.r[d], &w.r[a], &w.r[b], m, w.pred(p, not)) })
}

// slct takes one of two by a sign.
func (c *compiler) slct() {
	by := c.typ()
	t := c.typ()
	c.count(4)
	if by != (typ{'s', 4}) {
		c.fail("slct by type %s is not known here", by)
	}
	c.map3(c.dst(c.in.args[0], t.size), c.src(c.in.args[1], t), c.src(c.in.args[2], t), c.src(c.in.args[3], by),
		func(a, b, sign uint64) uint64 {
			if int32(sign) >= 0 {
				return a
			}
			return b
		})
}
