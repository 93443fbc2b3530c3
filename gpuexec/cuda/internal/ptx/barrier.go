package ptx

import "math/bits"

// barriers is how many a block has.
const barriers = 16

// barrierOp is an op at a barrier.
type barrierOp struct {
	id     int
	count  int // the register that says how many threads meet; -1 = all that have not ended
	arrive bool
	vote   string // popc, and, or; empty = none
	pred   int    // that is voted on
	not    bool
	dst    int // a register for popc, else a predicate
}

// arrive has a group wait at a barrier, or pass it.
func (w *warp) arrive(at int, o *op) {
	g := &w.groups[at]
	if !o.bar.arrive {
		g.waits = true
		return
	}
	w.b.arrived[o.bar.id] += w.threads(g.mask)
	g.pc++
}

// threads is how many threads lanes count as: those that ended or never were come with
// the last of their warp.
func (w *warp) threads(mask uint32) int {
	if mask == w.live {
		return WarpSize
	}
	return bits.OnesCount32(mask)
}

// release lets threads go on whose barrier has all that it waits for.
func (b *block) release() bool {
	released := false
	for id := range barriers {
		waiting, arrived, need, yes, everybody := 0, b.arrived[id], -1, 0, true // waiting and yes are lanes
		for _, w := range b.warps {
			var here uint32
			for i := range w.groups {
				g := &w.groups[i]
				o := &b.e.ops[g.pc]
				if !g.waits || o.bar.id != id {
					continue
				}
				here |= g.mask
				waiting += bits.OnesCount32(g.mask)
				if o.bar.count >= 0 {
					need = int(w.r[o.bar.count][bits.TrailingZeros32(g.mask)])
				}
				yes += bits.OnesCount32(w.votes(o.bar, g.mask))
			}
			everybody = everybody && here == w.live
			if here != 0 {
				arrived += w.threads(here)
			}
		}
		if waiting == 0 || need < 0 && !everybody || arrived < need {
			continue
		}
		b.arrived[id] = 0
		released = true
		for _, w := range b.warps {
			w.pass(id, yes, waiting)
		}
	}
	return released
}

// votes are the lanes whose predicate is set.
func (w *warp) votes(o *barrierOp, mask uint32) uint32 {
	switch {
	case o.vote == "":
		return 0
	case o.not:
		return mask &^ w.p[o.pred]
	}
	return mask & w.p[o.pred]
}

// pass lets the groups of a barrier go on, and tells them what was voted.
func (w *warp) pass(id, yes, voters int) {
	for i := range w.groups {
		g := &w.groups[i]
		o := &w.b.e.ops[g.pc]
		if !g.waits || o.bar.id != id {
			continue
		}
		switch o.bar.vote {
		case "popc":
			for lane := range WarpSize {
				if g.mask>>lane&1 != 0 {
					w.r[o.bar.dst][lane] = uint64(yes)
				}
			}
		case "or":
			w.setPred(o.bar.dst, g.mask, yes > 0)
		case "and":
			w.setPred(o.bar.dst, g.mask, yes == voters)
		}
		g.waits = false
		g.pc++
	}
	w.merge()
}

func (w *warp) setPred(p int, mask uint32, value bool) {
	w.p[p] &^= mask
	if value {
		w.p[p] |= mask
	}
}

// barrier compiles bar.sync, bar.arrive, bar.red and bar.warp.sync.
func (c *compiler) barrier() {
	c.in.take("cta")
	c.in.take("aligned")
	if c.in.take("warp") != "" {
		if c.in.take("sync") == "" {
			c.fail("bar.warp is not known here")
		}
		c.count(1)
		o := c.op(warpSync, func(*warp, uint32) {})
		o.arg = c.src(c.in.args[0], u32)
		c.emit(o)
		return
	}
	b := &barrierOp{count: -1}
	args := c.in.args
	switch c.in.take("sync", "arrive", "red") {
	case "arrive":
		b.arrive = true
		c.count(2)
	case "red":
		if len(args) < 3 {
			c.fail("a vote with %d operands", len(args))
		}
		b.vote = c.in.take("popc", "and", "or")
		switch t := c.in.take("pred", "u32"); {
		case b.vote == "popc" && t == "u32":
			b.dst = c.dst(args[0], 4)
		case b.vote != "popc" && b.vote != "" && t == "pred":
			b.dst = c.predDst(args[0])
		default:
			c.fail("no such vote")
		}
		b.pred, b.not = c.predicate(args[len(args)-1])
		args = args[1 : len(args)-1]
	case "":
		c.fail("no such barrier")
	}
	if len(args) < 1 || len(args) > 2 || args[0].kind != 'n' || args[0].value >= barriers {
		c.fail("want the number of a barrier, and how many threads meet there")
	}
	b.id = int(args[0].value)
	if len(args) == 2 {
		b.count = c.src(args[1], u32)
	}
	o := c.op(barrier, nil)
	o.bar = b
	c.emit(o)
}
