package ptx

import "strings"

// lanes are the values of a register in the threads of a warp. A value of fewer than 64
// bits has zeros above them.
type lanes [WarpSize]uint64

// program is what a kernel is run from: its functions in line, each operand a register.
type program struct {
	ops    []op
	regs   int // lanes, constants and special registers included
	preds  int
	fixed  []fixed
	shared int // bytes
	local  int // bytes of each thread
}

// fixed is a register that holds the same for a whole block, or for each thread.
type fixed struct {
	reg     int
	value   uint64
	special string // of %tid.x, without the percent sign
	dynamic bool   // the value counts from the end of Entry.shared on
}

type opKind byte

const (
	plain   opKind = iota // run alone says what it does
	branch                // to target
	indexed               // to one of targets, by a register
	leave                 // the thread ends
	trap
	warpSync // run waits for the members in register args[0]
	barrier
)

// op is an instruction that is ready to run.
type op struct {
	kind    opKind
	not     bool
	guard   int // a predicate; -1 = none
	line    int
	run     func(w *warp, m uint32) // for the lanes of m
	target  int
	targets []int
	arg     int // the register of an index, or of members
	bar     *barrierOp
}

// Addresses above these are those of the interpreter's own memory.
const (
	ownMemory    = uint64(1) << 63
	sharedWindow = 0xA0 << 56
	localWindow  = 0xB0 << 56
	dataWindow   = 0xC0 << 56 // the module's variables
	paramWindow  = 0xD0 << 56
	windowMask   = uint64(0xff) << 56
)

// Bounds that no kernel of NVRTC reaches.
const (
	mostOps   = 1 << 17
	mostCalls = 50 // one within the other
)

// compiler makes a program of a kernel.
type compiler struct {
	p         *parser
	e         *Entry
	constants map[fixed]int
	shared    map[*variable]int
	dynamic   int // the alignment of dynamic shared memory
	calls     []*function
	instance  // that is being compiled
	in        *instruction
}

// instance is a function where it is called.
type instance struct {
	f      *function
	regs   []int // by function.regs; -1 = not seen yet
	places map[*variable]int
	starts []int // of the body's instructions among the ops
}

func (p *parser) compile(f *function) *Entry {
	e := &Entry{name: f.name, module: p.module, maxThreads: f.maxThreads}
	c := &compiler{p: p, e: e, constants: make(map[fixed]int), shared: make(map[*variable]int), dynamic: 1}
	for _, v := range f.params {
		e.params = append(e.params, Param{Size: v.size, Align: v.align, Offset: v.offset})
	}
	c.function(f, nil)
	c.emit(op{kind: leave, guard: -1, line: f.line})
	e.shared = roundUp(e.shared, c.dynamic)
	for key, reg := range c.constants {
		key.reg = reg
		e.fixed = append(e.fixed, key)
	}
	return e
}

// function appends the ops of a function to the program. Its parameters are bound to
// places of its caller.
func (c *compiler) function(f *function, bound map[*variable]int) {
	line := f.line
	if c.in != nil {
		line = c.in.line
	}
	for _, caller := range c.calls {
		if caller == f {
			fail(line, "%s calls itself", f.name)
		}
	}
	if len(c.calls) == mostCalls {
		fail(line, "%d calls within each other", mostCalls)
	}
	c.calls = append(c.calls, f)
	outer, outerIn := c.instance, c.in
	c.instance = instance{f: f, regs: make([]int, len(f.regs)), places: bound, starts: make([]int, len(f.body)+1)}
	if c.places == nil {
		c.places = make(map[*variable]int)
	}
	for i := range c.regs {
		c.regs[i] = -1
	}
	first := len(c.e.ops)
	for i := range f.body {
		in := f.body[i] // a copy: an instruction may be compiled more than once
		in.mods = append([]string(nil), in.mods...)
		c.in, c.starts[i] = &in, len(c.e.ops)
		c.instruction()
	}
	c.starts[len(f.body)] = len(c.e.ops)
	for i := first; i < len(c.e.ops); i++ { // until here targets are -1 - places in this body
		o := &c.e.ops[i]
		if (o.kind == branch || o.kind == indexed) && o.target < 0 {
			o.target = c.starts[-1-o.target]
		}
		for j, t := range o.targets {
			if t < 0 {
				o.targets[j] = c.starts[-1-t]
			}
		}
	}
	c.instance, c.in = outer, outerIn
	c.calls = c.calls[:len(c.calls)-1]
}

func (c *compiler) fail(format string, args ...any) { fail(c.in.line, format, args...) }

func (c *compiler) emit(o op) {
	if len(c.e.ops) == mostOps {
		fail(o.line, "more than %d instructions", mostOps)
	}
	c.e.ops = append(c.e.ops, o)
}

// plain appends an op that touches registers and memory only.
func (c *compiler) plain(run func(w *warp, m uint32)) { c.emit(c.op(plain, run)) }

func (c *compiler) op(kind opKind, run func(w *warp, m uint32)) op {
	o := op{kind: kind, guard: -1, line: c.in.line, run: run}
	if g := c.in.guard; g != nil {
		o.guard, o.not = c.register(g.reg), g.not
	}
	return o
}

// instruction compiles c.in. Whatever of it is left over is not understood, so refused.
func (c *compiler) instruction() {
	do, ok := instructions[c.in.name]
	if !ok {
		c.fail("%s is not known here", c.in.name)
	}
	do(c)
	if len(c.in.mods) > 0 {
		c.fail("%s with .%s is not known here", c.in.name, strings.Join(c.in.mods, "."))
	}
}

// register is the place of a function's register among the program's.
func (c *compiler) register(r int) int {
	if c.regs[r] < 0 {
		if c.f.regs[r] == 0 {
			c.regs[r] = c.e.preds
			c.e.preds++
		} else {
			c.regs[r] = c.scratch()
		}
	}
	return c.regs[r]
}

func (c *compiler) scratch() int {
	c.e.regs++
	return c.e.regs - 1
}

// typ takes the type that is the last modifier.
func (c *compiler) typ() typ {
	n := len(c.in.mods)
	if n == 0 {
		c.fail("%s without a type", c.in.name)
	}
	t, ok := parseType(c.in.mods[n-1])
	if !ok {
		c.fail("%s of type %s is not known here", c.in.name, c.in.mods[n-1])
	}
	c.in.mods = c.in.mods[:n-1]
	return t
}

// count wants so many operands.
func (c *compiler) count(n int) {
	if len(c.in.args) != n {
		c.fail("%s with %d operands, want %d", c.in.name, len(c.in.args), n)
	}
}

// dst is the register that an operand says is written, of so many bytes.
func (c *compiler) dst(a argument, size int) int {
	if a.kind == '_' {
		return c.scratch()
	}
	if a.kind != 'r' || a.not || a.value != 0 || c.f.regs[a.reg] != size {
		c.fail("%s: want a register of %d bytes", c.in.name, size)
	}
	return c.register(a.reg)
}

// wide is dst for what may be a larger register.
func (c *compiler) wide(a argument, size int) (reg, bytes int) {
	if a.kind == '_' {
		return c.scratch(), size
	}
	if a.kind != 'r' || a.not || a.value != 0 || c.f.regs[a.reg] < size {
		c.fail("%s: want a register of %d bytes or more", c.in.name, size)
	}
	return c.register(a.reg), c.f.regs[a.reg]
}

// src is a register that holds an operand.
func (c *compiler) src(a argument, t typ) int {
	if a.kind == 'r' && c.f.regs[a.reg] != t.size {
		c.fail("%s: an operand of %d bytes, want %d", c.in.name, c.f.regs[a.reg], t.size)
	}
	return c.loose(a, t)
}

// loose is src for what may be a larger register, of which the lower bytes count.
func (c *compiler) loose(a argument, t typ) int {
	switch {
	case a.kind == 'r' && !a.not && a.value == 0 && c.f.regs[a.reg] >= t.size:
		return c.register(a.reg)
	case a.kind == 'n' && !a.not:
		if a.float != 0 && (a.float != t.size || t.kind == 'u' || t.kind == 's') || t.kind == 'f' && a.float == 0 && t.size > 2 {
			c.fail("%s: a number of another type", c.in.name)
		}
		return c.constant(fixed{value: a.value & mask(t.size)})
	case a.kind == 'v' && !a.not && t.size >= 4:
		return c.constant(c.address(a))
	case a.kind == 'i' && strings.HasPrefix(a.name, "%"):
		return c.special(a, t)
	}
	c.fail("%s: no operand of %d bytes", c.in.name, t.size)
	return 0
}

// special is a register that tells a thread where it is.
func (c *compiler) special(a argument, t typ) int {
	name := a.name[1:]
	if _, ok := specials[name]; !ok || a.value != 0 || a.not {
		c.fail("%s is not known here", a.name)
	}
	if t.size < 4 {
		c.fail("%s: no operand of %d bytes", c.in.name, t.size)
	}
	return c.constant(fixed{special: name})
}

func (c *compiler) constant(f fixed) int {
	reg, ok := c.constants[f]
	if !ok {
		reg = c.scratch()
		c.constants[f] = reg
	}
	return reg
}

// address is that of a variable in its space.
func (c *compiler) address(a argument) fixed {
	v := a.sym
	switch v.space {
	case inGlobal, inConst:
		return fixed{value: dataWindow + uint64(v.offset) + a.value}
	case inShared:
		at, ok := c.shared[v]
		if v.dynamic {
			c.dynamic = max(c.dynamic, v.align)
		} else if !ok {
			at = roundUp(c.e.shared, v.align)
			c.e.shared = at + v.size
			c.shared[v] = at
			if c.e.shared > 1<<20 {
				c.fail("more shared memory than any GPU has")
			}
		}
		return fixed{value: uint64(at) + a.value, dynamic: v.dynamic}
	case inLocal:
		return fixed{value: uint64(c.place(v)) + a.value}
	}
	if c.kernelParam(v) {
		return fixed{value: paramWindow + uint64(v.offset) + a.value}
	}
	return fixed{value: localWindow + uint64(c.place(v)) + a.value}
}

// kernelParam reports whether v is a parameter that a launch gives.
func (c *compiler) kernelParam(v *variable) bool {
	if !c.f.entry {
		return false
	}
	for _, p := range c.f.params {
		if p == v {
			return true
		}
	}
	return false
}

// place is where a variable lies in a thread's own memory.
func (c *compiler) place(v *variable) int {
	at, ok := c.places[v]
	if !ok {
		at = roundUp(c.e.local, v.align)
		c.places[v] = at
		if c.e.local = at + v.size; c.e.local > 1<<16 {
			c.fail("more local memory than any kernel has")
		}
	}
	return at
}

// predicate is one that is read.
func (c *compiler) predicate(a argument) (p int, not bool) {
	if a.kind != 'r' || c.f.regs[a.reg] != 0 || a.value != 0 {
		c.fail("%s: want a predicate", c.in.name)
	}
	return c.register(a.reg), a.not
}

// predDst is one that is written.
func (c *compiler) predDst(a argument) int {
	if a.kind == '_' {
		c.e.preds++
		return c.e.preds - 1
	}
	p, not := c.predicate(a)
	if not {
		c.fail("%s: a predicate that is written, and negated", c.in.name)
	}
	return p
}

// mask has ones in so many bytes.
func mask(size int) uint64 { return ^uint64(0) >> (64 - 8*size) }
