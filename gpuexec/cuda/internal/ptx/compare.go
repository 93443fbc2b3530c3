package ptx

import "math/bits"

// comparisons are by what a is to b: -1 less, 0 equal, 1 more.
var comparisons = map[string]func(int) bool{
	"eq": func(n int) bool { return n == 0 }, "ne": func(n int) bool { return n != 0 },
	"lt": func(n int) bool { return n < 0 }, "le": func(n int) bool { return n <= 0 },
	"gt": func(n int) bool { return n > 0 }, "ge": func(n int) bool { return n >= 0 },
}

// unsignedNames are other names of comparisons.
var unsignedNames = map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}

// relation takes the comparison of an instruction on two values of a type.
func (c *compiler) relation(t typ) func(a, b uint64) bool {
	names := []string{"lo", "ls", "hi", "hs", "num", "nan"}
	for name := range comparisons {
		names = append(names, name, name+"u")
	}
	name := c.in.take(names...)
	if other := unsignedNames[name]; other != "" && t.kind == 'u' {
		name = other
	}
	is := comparisons[name]
	if t.kind != 'f' {
		if is == nil || t.kind == 't' || t.kind == 'b' && name != "eq" && name != "ne" || t.size < 2 {
			c.fail("%s.%s of type %s is not known here", c.in.name, name, t)
		}
		return func(a, b uint64) bool {
			switch {
			case a == b:
				return is(0)
			case t.less(a, b):
				return is(-1)
			}
			return is(1)
		}
	}
	return c.floatRelation(t, name)
}

// floatRelation: a comparison with a NaN is false, but true of those whose name ends with u.
func (c *compiler) floatRelation(t typ, name string) func(a, b uint64) bool {
	is, unordered := comparisons[name], false
	if is == nil && len(name) == 3 && name[2] == 'u' {
		is, unordered = comparisons[name[:2]], true
	}
	switch {
	case name == "num":
		is = func(int) bool { return true }
	case name == "nan":
		is, unordered = func(int) bool { return false }, true
	}
	ftz := c.in.take("ftz") != ""
	if is == nil || t.size < 4 || ftz && t.size != 4 {
		c.fail("%s.%s of type %s is not known here", c.in.name, name, t)
	}
	return func(a, b uint64) bool {
		if ftz {
			a, b = flush(a), flush(b)
		}
		switch x, y := t.float(a), t.float(b); {
		case x != x || y != y:
			return unordered
		case x < y:
			return is(-1)
		case x > y:
			return is(1)
		}
		return is(0)
	}
}

// compare gives the predicate's lanes of a comparison.
func (c *compiler) compare(t typ, a, b argument) func(w *warp, m uint32) uint32 {
	is := c.relation(t)
	x, y := c.src(a, t), c.src(b, t)
	return func(w *warp, m uint32) uint32 { return eachIs(&w.r[x], &w.r[y], m, is) }
}

// setp sets one predicate or two, to a comparison, joined with a third.
func (c *compiler) setp() {
	t := c.typ()
	join := c.in.take("and", "or", "xor")
	c.count(3 + min(1, len(join)))
	compare := c.compare(t, c.in.args[1], c.in.args[2])
	d, other := c.in.args[0], argument{kind: '_'}
	if d.kind == '|' {
		d, other = d.list[0], d.list[1]
	}
	p, q := c.predDst(d), c.predDst(other)
	with, not := 0, false
	if join != "" {
		with, not = c.predicate(c.in.args[3])
	}
	c.plain(func(w *warp, m uint32) {
		yes := compare(w, m)
		no := ^yes
		switch join {
		case "and":
			yes, no = yes&w.pred(with, not), no&w.pred(with, not)
		case "or":
			yes, no = yes|w.pred(with, not), no|w.pred(with, not)
		case "xor":
			yes, no = yes^w.pred(with, not), no^w.pred(with, not)
		}
		w.p[p] = w.p[p]&^m | yes&m
		w.p[q] = w.p[q]&^m | no&m
	})
}

// set is setp into a register: all ones, or 1.0.
func (c *compiler) set() {
	t := c.typ()
	to := c.typ()
	c.count(3)
	value, ok := map[typ]uint64{{'u', 4}: mask(4), {'s', 4}: mask(4), {'f', 4}: 0x3f800000}[to]
	if !ok {
		c.fail("set of type %s is not known here", to)
	}
	compare, d := c.compare(t, c.in.args[1], c.in.args[2]), c.dst(c.in.args[0], 4)
	c.plain(func(w *warp, m uint32) {
		yes := compare(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			w.r[d][i] = value & -uint64(yes>>i&1)
		}
	})
}
