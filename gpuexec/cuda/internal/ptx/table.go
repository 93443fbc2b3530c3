package ptx

import "math"

// instructions compile an instruction, by its name. It is filled when the program starts,
// as compiling an instruction asks it.
var instructions map[string]func(*compiler)

func init() {
	instructions = map[string]func(*compiler){
		"bra": (*compiler).bra, "brx": (*compiler).brx, "call": (*compiler).call, "ret": (*compiler).ret,
		"exit":      func(c *compiler) { c.count(0); c.emit(c.op(leave, nil)) },
		"trap":      func(c *compiler) { c.count(0); c.emit(c.op(trap, nil)) },
		"nanosleep": func(c *compiler) { c.typ(); c.count(1) },
		"membar":    (*compiler).fence, "fence": (*compiler).fence,
		"bar": (*compiler).barrier, "barrier": (*compiler).barrier,
		"ld": (*compiler).load, "ldu": (*compiler).load, "st": (*compiler).store,
		"add": (*compiler).either, "sub": (*compiler).either, "mul": (*compiler).either, "mad": (*compiler).either, "fma": (*compiler).either,
		"div": (*compiler).either, "min": (*compiler).either, "max": (*compiler).either, "neg": (*compiler).either, "abs": (*compiler).either,
		"rcp": (*compiler).either, "sqrt": (*compiler).either, "rsqrt": (*compiler).either, "copysign": (*compiler).either,
		"ex2": approximate(math.Exp2), "lg2": approximate(math.Log2), "sin": approximate(math.Sin), "cos": approximate(math.Cos), "tanh": approximate(math.Tanh),
		"rem": (*compiler).rem, "sad": (*compiler).sad,
		"and": (*compiler).logic, "or": (*compiler).logic, "xor": (*compiler).logic, "not": (*compiler).logic, "cnot": (*compiler).cnot, "lop3": (*compiler).lop3,
		"shl": (*compiler).shift, "shr": (*compiler).shift, "shf": (*compiler).funnel,
		"popc": (*compiler).counts, "clz": (*compiler).counts, "bfind": (*compiler).bfind, "brev": (*compiler).brev, "bfe": (*compiler).bfe, "bfi": (*compiler).bfi,
		"prmt": (*compiler).prmt, "mov": (*compiler).mov, "cvta": (*compiler).cvta, "cvt": (*compiler).cvt,
		"selp": (*compiler).selp, "slct": (*compiler).slct, "setp": (*compiler).setp, "set": (*compiler).set, "testp": (*compiler).testp,
		"shfl": (*compiler).shuffle, "vote": (*compiler).vote, "activemask": (*compiler).activemask, "match": (*compiler).match, "redux": (*compiler).redux,
		"atom": (*compiler).atom, "red": (*compiler).atom,
	}
}

// either compiles what there is of integers and of floats.
func (c *compiler) either() {
	t, name := c.typ(), c.in.name
	onlyFloats := name == "fma" || name == "rcp" || name == "sqrt" || name == "rsqrt" || name == "copysign"
	switch {
	case !t.isFloat() && onlyFloats, t.isFloat() && (t.kind == 't' || t.size < 4):
		c.fail("%s of type %s is not known here", name, t)
	case !t.isFloat() && (name == "mul" || name == "mad"):
		c.multiply(t)
	case !t.isFloat():
		c.arithmetic(t)
	case name == "add" || name == "sub" || name == "mul":
		c.floatArithmetic(t)
	case name == "fma" || name == "mad":
		c.fma(t)
	case name == "min" || name == "max":
		c.extremes(t)
	case name == "neg" || name == "abs" || name == "copysign":
		c.signs(t)
	default:
		c.divide(t)
	}
}
