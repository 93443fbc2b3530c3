package wasm

const (
	opUnreachable = 0x00
	opLoop        = 0x03
	opIf          = 0x04
	opElse        = 0x05
	opEnd         = 0x0b
	opBrIf        = 0x0d
	opLocalGet    = 0x20
	opLocalSet    = 0x21

	blockEmpty = 0x40
)

// Func is the body of one function. Its methods append statements.
type Func struct {
	name   string
	params int
	locals []valueType
	code   []byte
	depth  int // blocks that are open
}

// Var is a variable of a function. It is zero before it is first set.
type Var[T Value] struct {
	f     *Func
	index uint32
}

// NewVar adds a variable to f that starts with the value init.
func NewVar[T Value](f *Func, init T) Var[T] {
	v := Declare[T](f)
	v.Set(init)
	return v
}

// Declare adds a variable to f without setting it.
func Declare[T Value](f *Func) Var[T] {
	f.locals = append(f.locals, typeOf[T]())
	return Var[T]{f: f, index: uint32(f.params + len(f.locals) - 1)}
}

// Get is the variable's value at the time the expression is evaluated.
func (v Var[T]) Get() T { return T(expression{uleb([]byte{opLocalGet}, uint64(v.index))}) }

// Set assigns x to the variable.
func (v Var[T]) Set(x T) {
	v.f.emit(code(x), []byte{opLocalSet})
	v.f.code = uleb(v.f.code, uint64(v.index))
}

// Label is the place a branch goes to: the start of a loop.
type Label struct {
	f     *Func
	depth int
}

// Loop runs body once; a branch to the label that body gets starts it again.
func (f *Func) Loop(body func(again Label)) {
	f.code = append(f.code, opLoop, blockEmpty)
	f.depth++
	body(Label{f, f.depth})
	f.depth--
	f.code = append(f.code, opEnd)
}

// If runs then when cond is not zero, and otherwise the other branch, which may
// be nil.
func (f *Func) If(cond I32, then, otherwise func()) {
	f.emit(cond.code, []byte{opIf, blockEmpty})
	f.depth++
	then()
	if otherwise != nil {
		f.code = append(f.code, opElse)
		otherwise()
	}
	f.depth--
	f.code = append(f.code, opEnd)
}

// Range runs body for i from its present value up to end, adding step after
// each turn. It runs not at all if i starts at end or beyond. end is evaluated
// after each turn; values are unsigned.
func (f *Func) Range(i Var[I32], end I32, step int32, body func()) {
	f.If(i.Get().LtU(end), func() {
		f.Loop(func(again Label) {
			body()
			i.Set(i.Get().AddConst(step))
			again.BranchIf(i.Get().LtU(end))
		})
	}, nil)
}

// BranchIf goes to the label when cond is not zero.
func (l Label) BranchIf(cond I32) {
	l.f.emit(cond.code, []byte{opBrIf})
	l.f.code = uleb(l.f.code, l.distance())
}

func (l Label) distance() uint64 {
	if l.depth > l.f.depth {
		panic("wasm: branch to a label outside of its block")
	}
	return uint64(l.f.depth - l.depth)
}

// TrapIf ends the call with an error of the host when cond is not zero.
func (f *Func) TrapIf(cond I32) {
	f.If(cond, func() { f.code = append(f.code, opUnreachable) }, nil)
}

// emit appends instructions to the body.
func (f *Func) emit(parts ...[]byte) {
	for _, p := range parts {
		f.code = append(f.code, p...)
	}
}

// encode gives the function's entry of the code section, without its length.
func (f *Func) encode() []byte {
	if f.depth != 0 {
		panic("wasm: a block is still open")
	}
	// Equal neighbours are one group in the format.
	type group struct {
		of    valueType
		count uint64
	}
	var groups []group
	for _, t := range f.locals {
		if n := len(groups); n > 0 && groups[n-1].of == t {
			groups[n-1].count++
			continue
		}
		groups = append(groups, group{t, 1})
	}
	out := uleb(nil, uint64(len(groups)))
	for _, g := range groups {
		out = append(uleb(out, g.count), byte(g.of))
	}
	out = append(out, f.code...)
	return append(out, opEnd)
}
