package ptx

import (
	"math/bits"
	"sync"
)

// together appends an op that the lanes run at once that register members names.
func (c *compiler) together(members argument, run func(w *warp, m uint32)) {
	o := c.op(warpSync, run)
	o.arg = c.src(members, u32)
	c.emit(o)
}

// shuffle reads a register of another lane.
func (c *compiler) shuffle() {
	t := c.bitwise()
	mode := c.in.take("up", "down", "bfly", "idx")
	if c.in.take("sync") == "" || mode == "" || t.size != 4 {
		c.fail("want shfl.sync of 32 bits")
	}
	c.count(5)
	d, valid := c.in.args[0], argument{kind: '_'}
	if d.kind == '|' {
		d, valid = d.list[0], d.list[1]
	}
	to, p := c.dst(d, 4), c.predDst(valid)
	a, b, bounds := c.src(c.in.args[1], t), c.src(c.in.args[2], u32), c.src(c.in.args[3], u32)
	c.together(c.in.args[4], func(w *warp, m uint32) {
		from := w.r[a]
		for left := m; left != 0; left &= left - 1 {
			lane := bits.TrailingZeros32(left) & 31
			source, ok := shuffled(mode, lane, int(w.r[b][lane]&31), int(w.r[bounds][lane]))
			if !ok {
				source = lane
			}
			value := uint64(quietNaN) // of a lane that is not here the manual does not say it
			if m>>source&1 != 0 {
				value = from[source]
			}
			w.r[to][lane] = value
			w.setPred(p, 1<<lane, ok)
		}
	})
}

// shuffled is the lane that one reads from, and whether that is within its segment.
func shuffled(mode string, lane, b, bounds int) (source int, ok bool) {
	segment, clamp := bounds>>8&31, bounds&31
	first := lane & segment
	last := first | clamp&^segment
	switch mode {
	case "up":
		source = lane - b
		return source, source >= last
	case "down":
		source = lane + b
	case "bfly":
		source = lane ^ b
	default:
		source = first | b&^segment
	}
	return source, source <= last
}

// vote asks a predicate of all lanes.
func (c *compiler) vote() {
	c.in.take("sync")
	mode := c.in.take("all", "any", "uni", "ballot")
	kind := c.in.take("pred", "b32")
	if mode == "" || (mode == "ballot") != (kind == "b32") || kind == "" {
		c.fail("no such vote")
	}
	c.count(3)
	p, not := c.predicate(c.in.args[1])
	if mode == "ballot" {
		d := c.dst(c.in.args[0], 4)
		c.together(c.in.args[2], func(w *warp, m uint32) { w.setAll(d, m, uint64(w.pred(p, not)&m)) })
		return
	}
	d := c.predDst(c.in.args[0])
	c.together(c.in.args[2], func(w *warp, m uint32) {
		yes := w.pred(p, not) & m
		w.setPred(d, m, mode == "any" && yes != 0 || mode != "any" && yes == m || mode == "uni" && yes == 0)
	})
}

func (w *warp) setAll(d int, m uint32, value uint64) {
	for ; m != 0; m &= m - 1 {
		w.r[d][bits.TrailingZeros32(m)&31] = value
	}
}

func (c *compiler) activemask() {
	if t := c.bitwise(); t.size != 4 {
		c.fail("activemask of type %s is not known here", t)
	}
	c.count(1)
	d := c.dst(c.in.args[0], 4)
	c.plain(func(w *warp, m uint32) { w.setAll(d, m, uint64(m)) })
}

// match finds the lanes that have the same value.
func (c *compiler) match() {
	t := c.bitwise()
	mode := c.in.take("any", "all")
	if c.in.take("sync") == "" || mode == "" || t.size < 4 {
		c.fail("no such match")
	}
	c.count(3)
	d, same := c.in.args[0], argument{kind: '_'}
	if mode == "all" && d.kind == '|' {
		d, same = d.list[0], d.list[1]
	}
	to, p, a := c.dst(d, 4), c.predDst(same), c.src(c.in.args[1], t)
	c.together(c.in.args[2], func(w *warp, m uint32) {
		for left := m; left != 0; left &= left - 1 {
			lane := bits.TrailingZeros32(left) & 31
			var equal uint32
			for i := range WarpSize {
				if m>>i&1 != 0 && w.r[a][i] == w.r[a][lane] {
					equal |= 1 << i
				}
			}
			if mode == "all" && equal != m {
				equal = 0
			}
			w.r[to][lane] = uint64(equal)
			w.setPred(p, 1<<lane, equal == m)
		}
	})
}

// redux is one number out of those of all lanes.
func (c *compiler) redux() {
	t := c.typ()
	name := c.in.take("add", "min", "max", "and", "or", "xor")
	f := t.update(name)
	if c.in.take("sync") == "" || f == nil || t.size != 4 || t.isFloat() {
		c.fail("no such redux")
	}
	c.count(3)
	d, a := c.dst(c.in.args[0], 4), c.src(c.in.args[1], t)
	c.together(c.in.args[2], func(w *warp, m uint32) {
		left := m & (m - 1)
		v := w.r[a][bits.TrailingZeros32(m)&31]
		for ; left != 0; left &= left - 1 {
			v = f(v, w.r[a][bits.TrailingZeros32(left)&31])
		}
		w.setAll(d, m, v)
	})
}

// update is what an atomic operation makes of what is there, and its operand.
func (t typ) update(name string) func(old, v uint64) uint64 {
	switch {
	case t.kind == 'f' && t.size > 2 && name == "add":
		return func(old, v uint64) uint64 {
			if t.size == 4 {
				return bits32(f32(old) + f32(v))
			}
			return bits64(f64(old) + f64(v))
		}
	case name == "exch" && t.kind == 'b':
		return func(_, v uint64) uint64 { return v }
	case t.kind == 'b' && name == "and":
		return func(old, v uint64) uint64 { return old & v }
	case t.kind == 'b' && name == "or":
		return func(old, v uint64) uint64 { return old | v }
	case t.kind == 'b' && name == "xor":
		return func(old, v uint64) uint64 { return old ^ v }
	case t.kind != 'u' && t.kind != 's':
		return nil
	case name == "add":
		return func(old, v uint64) uint64 { return (old + v) & mask(t.size) }
	case name == "min":
		return t.least
	case name == "max":
		return t.most
	case name == "inc" && t == u32:
		return func(old, v uint64) uint64 {
			if old >= v {
				return 0
			}
			return old + 1
		}
	case name == "dec" && t == u32:
		return func(old, v uint64) uint64 {
			if old == 0 || old > v {
				return v
			}
			return old - 1
		}
	}
	return nil
}

// atomics keeps the atomic operations of kernels apart that run at once.
var atomics sync.Mutex

// atom compiles atom and red, which gives no old value.
func (c *compiler) atom() {
	args := c.in.args
	if c.in.name == "red" {
		args = append([]argument{{kind: '_'}}, args...)
	}
	if len(args) < 3 || len(args) > 4 {
		c.fail("%s with %d operands", c.in.name, len(c.in.args))
	}
	name := c.in.take("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
	c.in.take("acq_rel")
	a, t, _ := c.access(args[1], args[0])
	f := t.update(name)
	if f == nil && (name != "cas" || t.kind != 'b') || (len(args) == 4) != (name == "cas") || t.size < 4 {
		c.fail("%s.%s of type %s is not known here", c.in.name, name, t)
	}
	d, b := c.dst(args[0], t.size), c.src(args[2], t)
	a.regs = []int{d}
	third := b
	if name == "cas" {
		third = c.src(args[3], t)
	}
	c.plain(func(w *warp, m uint32) {
		atomics.Lock()
		defer atomics.Unlock()
		for ; m != 0; m &= m - 1 {
			lane := bits.TrailingZeros32(m) & 31
			p := a.piece(w, lane, nil, 0)
			old := get(p, t.size)
			v := w.r[b][lane]
			if f != nil {
				put(p, t.size, f(old, v))
			} else if old == v {
				put(p, t.size, w.r[third][lane])
			}
			w.r[d][lane] = old
		}
	})
}
