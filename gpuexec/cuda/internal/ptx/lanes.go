package ptx

import "math/bits"

// The loops over the lanes of registers are most of the work. A warp belongs to one
// goroutine, so the race detector has nothing to find in them, and would make them 15 times
// slower; global memory is touched elsewhere.

// map1, map2 and map3 compute a register from others, in each lane.
func (c *compiler) map1(d, a int, f func(a uint64) uint64) {
	c.plain(func(w *warp, m uint32) { each1(&w.r[d], &w.r[a], m, f) })
}

func (c *compiler) map2(d, a, b int, f func(a, b uint64) uint64) {
	c.plain(func(w *warp, m uint32) { each2(&w.r[d], &w.r[a], &w.r[b], m, f) })
}

func (c *compiler) map3(d, a, b, third int, f func(a, b, c uint64) uint64) {
	c.plain(func(w *warp, m uint32) { each3(&w.r[d], &w.r[a], &w.r[b], &w.r[third], m, f) })
}

//go:norace
func each1(d, a *lanes, m uint32, f func(a uint64) uint64) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = f(a[i])
	}
}

//go:norace
func each2(d, a, b *lanes, m uint32, f func(a, b uint64) uint64) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = f(a[i], b[i])
	}
}

//go:norace
func each3(d, a, b, c *lanes, m uint32, f func(a, b, c uint64) uint64) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = f(a[i], b[i], c[i])
	}
}

//go:norace
//go:nocheckptr
func eachAdd(d, a, b *lanes, m uint32) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = bits32(f32(a[i]) + f32(b[i]))
	}
}

//go:norace
//go:nocheckptr
func eachMul(d, a, b *lanes, m uint32) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = bits32(f32(a[i]) * f32(b[i]))
	}
}

//go:norace
//go:nocheckptr
func eachFMA(d, a, b, c *lanes, m uint32) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = bits32(fma(f32(a[i]), f32(b[i]), f32(c[i])))
	}
}

//go:norace
func eachMove(d, a *lanes, m uint32) {
	if m == allLanes {
		*d = *a
		return
	}
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		d[i] = a[i]
	}
}

// eachWhere takes a in the lanes of yes, else b.
//
//go:norace
func eachWhere(d, a, b *lanes, m, yes uint32) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		if yes>>i&1 != 0 {
			d[i] = a[i]
		} else {
			d[i] = b[i]
		}
	}
}

//go:norace
func eachIs(a, b *lanes, m uint32, is func(a, b uint64) bool) (yes uint32) {
	for ; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m) & 31
		if is(a[i], b[i]) {
			yes |= 1 << i
		}
	}
	return yes
}

// bounds are the least and the highest number of some lanes.
//
//go:norace
func (a *lanes) bounds(m uint32) (low, high uint64) {
	low = ^uint64(0)
	for ; m != 0; m &= m - 1 {
		v := a[bits.TrailingZeros32(m)&31]
		low, high = min(low, v), max(high, v)
	}
	return low, high
}
