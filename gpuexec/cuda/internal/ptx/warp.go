package ptx

import (
	"context"
	"math"
	"math/bits"
)

const (
	allLanes  = ^uint32(0)
	turn      = 1 << 14 // ops that a warp runs before others do
	fairShare = 1 << 12 // ops that some lanes run before others of the warp, which are behind, do
)

// group is the lanes of a warp that are at one place.
type group struct {
	mask    uint32
	pc      int
	ran     int    // ops
	members uint32 // that a warpSync waits for; 0 = none
	waits   bool   // at a barrier
}

// warp is 32 threads. Groups at one place become one. Of others the one that is furthest
// behind goes on, so that it reaches the place where the paths meet.
type warp struct {
	b      *block
	r      []lanes
	p      []uint32
	live   uint32 // lanes whose thread has not ended
	groups []group
	op     *op // that runs
	first  int // thread of the block
	local  []byte
}

// block is the threads that share memory.
type block struct {
	e       *Entry
	l       *Launch
	warps   []*warp
	shared  []byte
	index   [3]uint32
	arrived [barriers]int // threads that went on
}

// grid runs all blocks.
func (e *Entry) grid(ctx context.Context, l Launch, threads int) (err error) {
	b := &block{e: e, l: &l, shared: make([]byte, e.shared+int(l.Dynamic))}
	for first := 0; first < threads; first += WarpSize {
		w := &warp{b: b, first: first, r: make([]lanes, e.regs), p: make([]uint32, e.preds), local: make([]byte, WarpSize*e.local)}
		for _, f := range e.fixed {
			w.fill(f)
		}
		b.warps = append(b.warps, w)
	}
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(*Fault)
			if !ok {
				panic(r)
			}
			err = f
		}
	}()
	for z := range l.Grid[2] {
		for y := range l.Grid[1] {
			for x := range l.Grid[0] {
				b.index = [3]uint32{x, y, z}
				if err := b.run(ctx, threads); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// specials are the values of special registers.
var specials = map[string]func(w *warp, lane int) uint64{
	"laneid": func(_ *warp, lane int) uint64 { return uint64(lane) }, "warpid": func(w *warp, _ int) uint64 { return uint64(w.first / WarpSize) },
	"nwarpid":     func(w *warp, _ int) uint64 { return uint64(len(w.b.warps)) },
	"lanemask_eq": func(_ *warp, lane int) uint64 { return 1 << lane },
	"lanemask_lt": func(_ *warp, lane int) uint64 { return 1<<lane - 1 },
	"lanemask_le": func(_ *warp, lane int) uint64 { return 2<<lane - 1 },
	"lanemask_gt": func(_ *warp, lane int) uint64 { return uint64(^uint32(2<<lane - 1)) },
	"lanemask_ge": func(_ *warp, lane int) uint64 { return uint64(^uint32(1<<lane - 1)) },
	"tid.x":       func(w *warp, lane int) uint64 { return uint64(w.first+lane) % uint64(w.b.l.Block[0]) },
	"tid.y": func(w *warp, lane int) uint64 {
		return uint64(w.first+lane) / uint64(w.b.l.Block[0]) % uint64(w.b.l.Block[1])
	},
	"tid.z": func(w *warp, lane int) uint64 {
		return uint64(w.first+lane) / uint64(w.b.l.Block[0]) / uint64(w.b.l.Block[1])
	},
}

func init() {
	for i, axis := range []string{"x", "y", "z"} {
		specials["ntid."+axis] = func(w *warp, _ int) uint64 { return uint64(w.b.l.Block[i]) }
		specials["nctaid."+axis] = func(w *warp, _ int) uint64 { return uint64(w.b.l.Grid[i]) }
		specials["ctaid."+axis] = func(w *warp, _ int) uint64 { return uint64(w.b.index[i]) }
	}
}

// fill gives a fixed register its value.
func (w *warp) fill(f fixed) {
	value := f.value
	if f.dynamic {
		value += uint64(w.b.e.shared)
	}
	special := specials[f.special]
	for lane := range WarpSize {
		if special != nil {
			value = special(w, lane)
		}
		w.r[f.reg][lane] = value
	}
}

// run runs one block. What it finds in shared and local memory means nothing.
func (b *block) run(ctx context.Context, threads int) error {
	poison(b.shared)
	for _, w := range b.warps {
		w.live = allLanes >> (WarpSize - min(WarpSize, threads-w.first))
		w.groups = append(w.groups[:0], group{mask: w.live})
		poison(w.local)
		for _, f := range b.e.fixed {
			if len(f.special) > 5 && f.special[:5] == "ctaid" {
				w.fill(f)
			}
		}
	}
	b.arrived = [barriers]int{}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		ran, live := false, false
		for _, w := range b.warps {
			ran = w.run() || ran
			live = live || w.live != 0
		}
		if !live {
			return nil
		}
		if !b.release() && !ran {
			b.deadlock()
		}
	}
}

func poison(p []byte) {
	for i := range p {
		p[i] = 0xff
	}
}

// deadlock says where the first thread waits.
func (b *block) deadlock() {
	for _, w := range b.warps {
		for _, g := range w.groups {
			panic(b.e.fault(Deadlock, b.e.ops[g.pc].line, "the lanes %#x of warp %d wait here for ever", g.mask, w.first/WarpSize))
		}
	}
}

func (w *warp) fault(kind Kind, format string, args ...any) {
	panic(w.b.e.fault(kind, w.op.line, format, args...))
}

// pick is the group that goes on, and the place where it may meet another; -1 = none.
func (w *warp) pick() (at, meet int) {
	at, meet = -1, math.MaxInt
	for i := range w.groups {
		g := &w.groups[i]
		if g.waits || g.members != 0 {
			continue
		}
		if at < 0 || g.ran/fairShare < w.groups[at].ran/fairShare || g.ran/fairShare == w.groups[at].ran/fairShare && g.pc < w.groups[at].pc {
			at = i
		}
	}
	for i := range w.groups {
		if g := &w.groups[i]; at >= 0 && i != at && !g.waits && g.members == 0 && g.pc > w.groups[at].pc {
			meet = min(meet, g.pc)
		}
	}
	return at, meet
}

// run runs the warp for a turn, or until all its threads wait or have ended. It reports
// whether any ran.
func (w *warp) run() bool {
	ops, left := w.b.e.ops, turn
	for left > 0 {
		at, meet := w.pick()
		if at < 0 {
			break
		}
		g := &w.groups[at]
		begin := left
		for together := true; together && left > 0 && g.pc != meet; left-- {
			o := &ops[g.pc]
			w.op = o
			m := g.mask
			if o.guard >= 0 {
				if o.not {
					m &^= w.p[o.guard]
				} else {
					m &= w.p[o.guard]
				}
			}
			switch {
			case o.kind == plain:
				if m != 0 {
					o.run(w, m)
				}
				g.pc++
			case o.kind == branch && m == g.mask:
				g.pc = o.target
				together = len(w.groups) == 1
			case m == 0:
				g.pc++
			default:
				g.ran += begin - left
				begin = left
				w.control(at, o, m)
				together = false
			}
		}
		if at < len(w.groups) {
			w.groups[at].ran += begin - left
		}
		w.merge()
	}
	return left < turn
}

// merge makes one of groups that are at one place.
func (w *warp) merge() {
	for i := 0; i < len(w.groups); i++ {
		a := &w.groups[i]
		for j := len(w.groups) - 1; j > i; j-- {
			b := &w.groups[j]
			if a.pc == b.pc && a.members == b.members && a.waits == b.waits {
				a.mask |= b.mask
				a.ran = max(a.ran, b.ran)
				w.drop(j)
			}
		}
	}
}

func (w *warp) drop(i int) {
	w.groups[i] = w.groups[len(w.groups)-1]
	w.groups = w.groups[:len(w.groups)-1]
}

// split takes the lanes of m out of a group, which has more, into one of their own.
func (w *warp) split(at int, m uint32) *group {
	if w.groups[at].mask == m {
		return &w.groups[at]
	}
	other := w.groups[at]
	other.mask = m
	w.groups[at].mask &^= m
	w.groups = append(w.groups, other)
	return &w.groups[len(w.groups)-1]
}

// control runs what changes where lanes are, for the lanes m of a group. The others go on.
func (w *warp) control(at int, o *op, m uint32) {
	rest := w.groups[at].mask &^ m
	if rest != 0 {
		w.split(at, rest).pc++
	}
	switch o.kind {
	case branch:
		w.groups[at].pc = o.target
	case indexed:
		for left := m; left != 0; {
			index := w.r[o.arg][bits.TrailingZeros32(left)]
			var same uint32
			for i := range WarpSize {
				if left>>i&1 != 0 && w.r[o.arg][i] == index {
					same |= 1 << i
				}
			}
			if index >= uint64(len(o.targets)) {
				w.fault(Undefined, "a branch to label %d of %d", index, len(o.targets))
			}
			left &^= same
			w.split(at, same).pc = o.targets[index]
		}
	case leave:
		w.live &^= m
		w.drop(at)
		w.meet()
	case trap:
		w.fault(Trap, "trap")
	case warpSync:
		w.gather(at, o, m)
	case barrier:
		w.arrive(at, o)
	}
}

// gather has lanes wait for the others that they name.
func (w *warp) gather(at int, o *op, m uint32) {
	for left := m; left != 0; {
		members := uint32(w.r[o.arg][bits.TrailingZeros32(left)])
		var same uint32
		for i := range WarpSize {
			if left>>i&1 != 0 && uint32(w.r[o.arg][i]) == members {
				same |= 1 << i
			}
		}
		if same&^members != 0 {
			w.fault(Undefined, "the lanes %#x are not among their members %#x", same, members)
		}
		left &^= same
		w.split(at, same).members = members
	}
	w.merge()
	w.meet()
}

// meet runs each warpSync whose members are all there.
func (w *warp) meet() {
	for i := range w.groups {
		g := &w.groups[i]
		if g.members == 0 || g.members&w.live != g.mask {
			continue
		}
		o := &w.b.e.ops[g.pc]
		w.op = o
		o.run(w, g.mask)
		g.members = 0
		g.pc++
	}
}
