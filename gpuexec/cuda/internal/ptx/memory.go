package ptx

import (
	"encoding/binary"
	"math/bits"
	"strings"
)

// at is the memory at an address in a space.
func (w *warp) at(in space, lane int, address uint64, size int) []byte {
	if address&uint64(size-1) != 0 {
		w.fault(Misaligned, "lane %d: %d bytes at %#x", lane, size, address)
	}
	var from []byte
	begin := address
	switch {
	case in == inShared:
		from = w.b.shared
	case in == inLocal:
		from = w.own(lane)
	case address < ownMemory:
		p, err := w.b.l.Memory.Bytes(address, size)
		if err != nil || len(p) < size {
			w.fault(IllegalAddress, "lane %d: %d bytes at %#x: %v", lane, size, address, err)
		}
		return p
	default:
		from, begin = w.window(lane, address)
	}
	if begin+uint64(size) > uint64(len(from)) || begin > uint64(len(from)) {
		w.fault(IllegalAddress, "lane %d: %d bytes at %#x", lane, size, address)
	}
	return from[begin:][:size]
}

// own is a thread's memory.
func (w *warp) own(lane int) []byte {
	n := w.b.e.local
	return w.local[lane*n:][:n]
}

// window is the interpreter's memory of an address, and the place in it.
func (w *warp) window(lane int, address uint64) ([]byte, uint64) {
	begin := address &^ windowMask
	switch address & windowMask {
	case sharedWindow:
		return w.b.shared, begin
	case localWindow:
		return w.own(lane), begin
	case dataWindow:
		return w.b.e.module.data, begin
	case paramWindow:
		return w.b.l.Params, begin
	}
	return nil, 0
}

func get(p []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(p))
	case 4:
		return uint64(binary.LittleEndian.Uint32(p))
	}
	return binary.LittleEndian.Uint64(p)
}

func put(p []byte, size int, v uint64) {
	switch size {
	case 1:
		p[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(p, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(p, uint32(v))
	default:
		binary.LittleEndian.PutUint64(p, v)
	}
}

// access is a load or store of one or more registers of a size.
type access struct {
	in     space
	base   int // register of the address
	offset uint64
	size   int   // of each register's value in memory
	regs   []int //
	extend func(uint64) uint64
}

// access takes what is common to loads and stores.
func (c *compiler) access(address, list argument) (a access, t typ, values []argument) {
	t = c.typ()
	a.size = t.size
	for _, drop := range [][]string{{"weak", "volatile", "relaxed", "acquire", "release"}, {"cta", "cluster", "gpu", "sys"}, {"ca", "cg", "cs", "lu", "cv", "wb", "wt"}, {"nc"}} {
		c.in.take(drop...)
	}
	for i := 0; i < len(c.in.mods); i++ { // hints for caches
		if strings.HasPrefix(c.in.mods[i], "L1::") || strings.HasPrefix(c.in.mods[i], "L2::") {
			c.in.take(c.in.mods[i])
			i--
		}
	}
	for i, m := range c.in.mods {
		if s, ok := spaces[m]; ok {
			a.in = s
			c.in.mods = append(c.in.mods[:i:i], c.in.mods[i+1:]...)
			break
		}
	}
	values = []argument{list}
	if v := c.in.take("v2", "v4", "v8"); v != "" {
		values = list.list
		if list.kind != '{' || len(values) != int(v[1]-'0') || len(values)*t.size > 32 {
			c.fail("%s with %d registers", v, len(values))
		}
	}
	a.in, a.base, a.offset = c.base(a.in, address)
	return a, t, values
}

// base is the register of an address, what is added to it, and the space that is left to be looked for.
func (c *compiler) base(in space, address argument) (space, int, uint64) {
	if address.kind != '[' {
		c.fail("%s: want an address", c.in.name)
	}
	b := address.list[0]
	switch b.kind {
	case 'v':
		if in == generic || b.sym.space != in {
			c.fail("%s is in another space", b.sym.name)
		}
		offset := b.value
		b.value = 0
		f := c.address(b)
		if in == inParam || in == inConst {
			in = generic
		}
		return in, c.constant(f), offset
	case 'r':
		offset := b.value
		b.value = 0
		if n := c.regSize(b); n != 8 && (n != 4 || in != inShared && in != inLocal) {
			c.fail("an address of %d bytes", n)
		}
		if in == inParam || in == inConst {
			in = generic
		}
		return in, c.register(b.reg), offset
	case 'n':
		return in, c.constant(fixed{value: b.value}), 0
	}
	c.fail("no address that is known here")
	return 0, 0, 0
}

func (c *compiler) regSize(a argument) int { return c.f.regs[a.reg] }

func (c *compiler) load() {
	c.count(2)
	a, t, values := c.access(c.in.args[1], c.in.args[0])
	for _, v := range values {
		reg, bytes := c.wide(v, t.size)
		a.regs = append(a.regs, reg)
		if t.kind == 's' && bytes > t.size {
			a.extend = func(v uint64) uint64 { return signed(v, t.size) & mask(bytes) }
		}
	}
	c.plain(func(w *warp, m uint32) { a.load(w, m) })
}

func (c *compiler) store() {
	c.count(2)
	a, t, values := c.access(c.in.args[0], c.in.args[1])
	for _, v := range values {
		a.regs = append(a.regs, c.loose(v, t))
	}
	if a.in == generic && len(c.in.args[0].list) > 0 {
		if s := c.in.args[0].list[0].sym; s != nil && (s.space == inConst || c.kernelParam(s)) {
			c.fail("a store to what is constant")
		}
	}
	c.plain(func(w *warp, m uint32) { a.store(w, m) })
}

// whole is the memory that all lanes touch, and where it begins, if that is one piece.
func (a *access) whole(w *warp, m uint32) ([]byte, uint64) {
	switch a.in {
	case inShared:
		return w.b.shared, 0
	case inLocal:
		return nil, 0
	}
	low, high := w.r[a.base].bounds(m)
	low, high = low+a.offset, high+a.offset
	bytes := uint64(a.size * len(a.regs))
	if high+bytes >= ownMemory || high+bytes < high || high-low > 1<<31 {
		if low == high && low&windowMask == paramWindow {
			return w.b.l.Params, paramWindow
		}
		return nil, 0
	}
	p, err := w.b.l.Memory.Bytes(low, int(high-low+bytes))
	if err != nil || uint64(len(p)) < high-low+bytes {
		return nil, 0
	}
	return p, low
}

// piece is the memory of one lane.
func (a *access) piece(w *warp, lane int, whole []byte, begin uint64) []byte {
	address, bytes := w.r[a.base][lane&31]+a.offset, uint64(a.size*len(a.regs))
	if a.in == inShared || a.in == inLocal {
		address &= 1<<32 - 1
	}
	if at := address - begin; whole != nil && at < uint64(len(whole)) && bytes <= uint64(len(whole))-at && address&(bytes-1) == 0 {
		return whole[at:][:bytes]
	}
	return w.at(a.in, lane, address, int(bytes))
}

func (a *access) load(w *warp, m uint32) {
	if a.in == inShared && a.size == 4 && a.extend == nil {
		m = a.loadShared(w, m)
	}
	whole, begin := a.whole(w, m)
	for left := m; left != 0; left &= left - 1 {
		lane := bits.TrailingZeros32(left) & 31
		p := a.piece(w, lane, whole, begin)
		for i, reg := range a.regs {
			v := get(p[i*a.size:], a.size)
			if a.extend != nil {
				v = a.extend(v)
			}
			w.r[reg][lane] = v
		}
	}
}

func (a *access) store(w *warp, m uint32) {
	if a.in == inShared && a.size == 4 {
		m = a.storeShared(w, m)
	}
	whole, begin := a.whole(w, m)
	for left := m; left != 0; left &= left - 1 {
		lane := bits.TrailingZeros32(left) & 31
		p := a.piece(w, lane, whole, begin)
		for i, reg := range a.regs {
			put(p[i*a.size:], a.size, w.r[reg][lane])
		}
	}
}

// loadShared and storeShared do the usual access to shared memory, up to the first lane
// that has no right address; what they leave has the lanes from there on.
//
//go:norace
func (a *access) loadShared(w *warp, m uint32) uint32 {
	base, shared, bytes := &w.r[a.base], w.b.shared, uint64(4*len(a.regs))
	for ; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m) & 31
		at := (base[lane] + a.offset) & mask(4)
		if at+bytes > uint64(len(shared)) || at&(bytes-1) != 0 {
			break
		}
		for _, reg := range a.regs {
			w.r[reg][lane] = uint64(binary.LittleEndian.Uint32(shared[at:]))
			at += 4
		}
	}
	return m
}

//go:norace
func (a *access) storeShared(w *warp, m uint32) uint32 {
	base, shared, bytes := &w.r[a.base], w.b.shared, uint64(4*len(a.regs))
	for ; m != 0; m &= m - 1 {
		lane := bits.TrailingZeros32(m) & 31
		at := (base[lane] + a.offset) & mask(4)
		if at+bytes > uint64(len(shared)) || at&(bytes-1) != 0 {
			break
		}
		for _, reg := range a.regs {
			binary.LittleEndian.PutUint32(shared[at:], uint32(w.r[reg][lane]))
			at += 4
		}
	}
	return m
}
