package ptx

// fence orders what is in order anyway: a thread's accesses happen at once.
func (c *compiler) fence() {
	c.count(0)
	c.in.take("sc", "acq_rel", "acquire", "release")
	if c.in.take("gl", "cta", "sys", "gpu", "cluster") == "" {
		c.fail("%s of no scope that is known here", c.in.name)
	}
}

// jump is a target within the body that is being compiled, until that is done.
func (c *compiler) jump(name string) int { return -1 - c.f.labelAt(c.in.line, name) }

func (c *compiler) bra() {
	c.in.take("uni")
	c.count(1)
	o := c.op(branch, nil)
	o.target = c.jump(c.in.args[0].name)
	c.emit(o)
}

// brx is a branch by a register to one of a list of labels.
func (c *compiler) brx() {
	c.in.take("uni")
	if c.in.take("idx") == "" {
		c.fail("want brx.idx")
	}
	c.count(2)
	o := c.op(indexed, nil)
	o.arg = c.src(c.in.args[0], u32)
	list, ok := c.f.targets[c.in.args[1].name]
	if !ok {
		c.fail("no list of labels %q", c.in.args[1].name)
	}
	for _, name := range list {
		o.targets = append(o.targets, c.jump(name))
	}
	c.emit(o)
}

// ret ends a kernel's thread, or goes to the end of a function in line.
func (c *compiler) ret() {
	c.in.take("uni")
	c.count(0)
	if len(c.calls) == 1 {
		c.emit(c.op(leave, nil))
		return
	}
	o := c.op(branch, nil)
	o.target = -1 - len(c.f.body)
	c.emit(o)
}

// call puts a function's ops in line. Its parameters are the variables that the caller gives.
func (c *compiler) call() {
	c.in.take("uni")
	args := c.in.args
	var results, given argument
	if len(args) > 0 && args[0].kind == '(' {
		results, args = args[0], args[1:]
	}
	if len(args) == 0 || args[0].kind != 'i' || len(args) > 2 {
		c.fail("a call of no name")
	}
	if len(args) == 2 {
		given = args[1]
	}
	f := c.p.functions[args[0].name]
	if f == nil || f.entry {
		c.fail("a call of %q, which is no function of this text", args[0].name)
	}
	if len(given.list) != len(f.params) || len(results.list) != len(f.rets) {
		c.fail("a call of %s with %d results and %d operands, want %d and %d", f.name, len(results.list), len(given.list), len(f.rets), len(f.params))
	}
	bound := make(map[*variable]int)
	for i, a := range append(given.list, results.list...) {
		v := append(f.params[:len(f.params):len(f.params)], f.rets...)[i]
		if a.kind != 'v' || a.sym.space != inParam || a.sym.size != v.size || c.kernelParam(a.sym) {
			c.fail("operand %d of a call of %s, want a parameter of %d bytes", i, f.name, v.size)
		}
		bound[v] = c.place(a.sym)
	}
	if c.in.guard == nil {
		c.function(f, bound)
		return
	}
	at := len(c.e.ops) // the lanes that do not call go round it
	skip := c.op(branch, nil)
	skip.not = !skip.not
	c.emit(skip)
	c.function(f, bound)
	c.e.ops[at].target = len(c.e.ops)
}
