package ptx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// space is where a variable lies.
type space byte

const (
	generic space = iota // any of the others, by the address
	inParam
	inLocal
	inShared
	inConst
	inGlobal
)

var spaces = map[string]space{"param": inParam, "local": inLocal, "shared": inShared, "const": inConst, "global": inGlobal, "shared::cta": inShared, "param::entry": inParam, "param::func": inParam}

type variable struct {
	name        string
	space       space
	size, align int
	offset      int  // of a module's variable within its data, of a kernel's parameter within those
	dynamic     bool // shared memory whose size a launch gives
}

// argument is an operand of an instruction.
type argument struct {
	kind  byte       // 'r' a register, 'n' a number, 'v' a variable, 'i' another name, '[' an address, '{' or '(' a list, '|' a pair, '_' none
	reg   int        // of function.regs
	not   bool       // !p
	value uint64     // of a number, or what is added to an address or variable
	float int        // bytes of a number that is a float
	name  string     // of what is no register and no variable
	sym   *variable  //
	list  []argument // of a list or pair; the base of an address
}

type instruction struct {
	line  int
	guard *argument // a predicate, or nil
	name  string    // ld
	mods  []string  // global, v4, f32
	args  []argument
}

// function is a kernel or a function of the device.
type function struct {
	name         string
	line         int
	entry        bool
	params, rets []*variable
	regs         []int // the bytes of each register; 0 = a predicate
	body         []instruction
	labels       map[string]int      // places in body
	targets      map[string][]string // lists of labels
	maxThreads   int
}

// scope is what a pair of braces declares.
type scope struct {
	up       *scope
	regs     map[string]int
	families map[string]family
	vars     map[string]*variable
}

// family is registers %r0, %r1 and so on.
type family struct{ count, size int }

type parser struct {
	tokens    []token
	at        int
	module    *Module
	vars      scope
	functions map[string]*function
	order     []*function
	f         *function // whose body this is
	depth     int
}

// Bounds that no text of NVRTC reaches.
const (
	mostText  = 64 << 20
	mostData  = 64 << 20
	mostDepth = 100
)

// failure carries an error out of a parser.
type failure struct{ err error }

func fail(line int, format string, args ...any) { panic(failure{lineError(line, format, args...)}) }

// Parse reads a module, and refuses what it cannot run as the manual says, with the line.
func Parse(text []byte) (m *Module, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			m, err = nil, f.err
		}
	}()
	if len(text) > mostText {
		return nil, lineError(1, "%d bytes of text, want at most %d", len(text), mostText)
	}
	tokens, err := scan(string(text))
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, module: &Module{entries: make(map[string]*Entry)}, functions: make(map[string]*function)}
	p.vars.vars = make(map[string]*variable)
	for p.peek().kind != 0 {
		p.declaration()
	}
	if p.module.Version == "" || p.module.Target == "" {
		fail(1, "no .version and .target")
	}
	for _, f := range p.order {
		if f.entry {
			p.module.entries[f.name] = p.compile(f)
		}
	}
	return p.module, nil
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != 0 {
		p.at++
	}
	return t
}

// is takes the next token if it is that.
func (p *parser) is(text string) bool {
	if t := p.peek(); t.kind == 's' || t.text != text || t.kind == 0 {
		return false
	}
	p.at++
	return true
}

func (p *parser) want(text string) {
	if !p.is(text) {
		fail(p.peek().line, "%q, want %q", p.peek().text, text)
	}
}

func (p *parser) name() string {
	t := p.next()
	if t.kind != 'i' {
		fail(t.line, "%q, want a name", t.text)
	}
	return t.text
}

// number is a count or size.
func (p *parser) number() int {
	t := p.next()
	n, err := strconv.ParseUint(strings.TrimSuffix(t.text, "U"), 0, 31)
	if t.kind != 'n' || err != nil {
		fail(t.line, "%q, want a number", t.text)
	}
	return int(n)
}

// skipLine passes over what is for debuggers.
func (p *parser) skipLine(line int) {
	for t := p.peek(); t.kind != 0 && t.line == line; t = p.peek() {
		p.at++
	}
}

// declaration is what stands outside of functions.
func (p *parser) declaration() {
	t, extern := p.next(), false
	for t.text == ".visible" || t.text == ".weak" || t.text == ".extern" || t.text == ".common" {
		extern = t.text == ".extern"
		t = p.next()
	}
	switch t.text {
	case ".version":
		p.module.Version = p.next().text + p.name()
	case ".target":
		p.module.Target = p.name()
		for p.is(",") {
			p.name()
		}
	case ".address_size":
		if n := p.number(); n != 64 {
			fail(t.line, "addresses of %d bits, want 64", n)
		}
	case ".file":
		p.skipLine(t.line)
	case ".pragma":
		p.pragma()
	case ".entry", ".func":
		p.function(t)
	case ".global", ".const", ".shared":
		p.variables(&p.vars, spaces[t.text[1:]], extern)
	default:
		fail(t.line, "%q is no declaration that is known here", t.text)
	}
}

func (p *parser) pragma() {
	for p.next(); p.is(","); p.next() {
	}
	p.want(";")
}

// size reads a type such as .b32.
func (p *parser) size() int {
	t := p.next()
	if t.text == ".pred" {
		return 0
	}
	kind, ok := parseType(strings.TrimPrefix(t.text, "."))
	if !ok || !strings.HasPrefix(t.text, ".") {
		fail(t.line, "%q is no type that is known here", t.text)
	}
	return kind.size
}

// variable reads the rest of a variable behind its space.
func (p *parser) variable(in space, extern bool) (v *variable, element int) {
	v = &variable{space: in, align: 1}
	line, aligned := p.peek().line, false
	for {
		switch {
		case p.is(".align"):
			v.align, aligned = p.number(), true
			continue
		case p.is(".ptr"), p.is(".global"), p.is(".const"), p.is(".shared"), p.is(".local"): // what a parameter points to
			continue
		}
		break
	}
	element = p.size()
	if element == 0 {
		fail(line, "a predicate lies in no memory")
	}
	for p.is(".ptr") || p.is(".global") || p.is(".const") || p.is(".shared") || p.is(".local") || p.is(".align") {
		if p.tokens[p.at-1].text == ".align" {
			p.number() // of what it points to
		}
	}
	v.name, v.size = p.name(), element
	for p.is("[") {
		if n := 0; p.is("]") {
			if !extern || in != inShared {
				fail(line, "%s has no size", v.name)
			}
			v.dynamic = true
		} else {
			n = p.number()
			p.want("]")
			if v.size *= n; v.size > mostData {
				fail(line, "%s is larger than any that NVRTC makes", v.name)
			}
		}
	}
	if !aligned {
		v.align = element
	}
	if v.align&(v.align-1) != 0 || v.align == 0 || v.align > 1<<16 {
		fail(line, "an alignment of %d", v.align)
	}
	if extern && !v.dynamic {
		fail(line, "%s is of another module", v.name)
	}
	return v, element
}

// variables reads a declaration in module or function scope.
func (p *parser) variables(s *scope, in space, extern bool) {
	line := p.peek().line
	v, element := p.variable(in, extern)
	if s.vars[v.name] != nil {
		fail(line, "a second %s", v.name)
	}
	s.vars[v.name] = v
	if in == inGlobal || in == inConst {
		v.offset = roundUp(len(p.module.data), v.align)
		if v.offset+v.size > mostData {
			fail(line, "more data than any module of NVRTC has")
		}
		p.module.data = append(p.module.data, make([]byte, v.offset+v.size-len(p.module.data))...)
		if p.is("=") {
			p.initial(p.module.data[v.offset:v.offset:v.offset+v.size], element)
		}
	}
	p.want(";")
}

// initial appends the numbers of a variable to its place.
func (p *parser) initial(place []byte, element int) []byte {
	line := p.peek().line
	if p.is("{") {
		if p.depth++; p.depth > mostDepth {
			fail(line, "too many braces")
		}
		for {
			place = p.initial(place, element)
			if !p.is(",") {
				break
			}
		}
		p.want("}")
		p.depth--
		return place
	}
	if len(place)+element > cap(place) {
		fail(line, "more numbers than the variable has")
	}
	n := p.immediate()
	if n.float != 0 && n.float != element {
		fail(line, "a float of %d bytes, want %d", n.float, element)
	}
	for i := range element {
		place = append(place, byte(n.value>>(8*i)))
	}
	return place
}

// immediate reads a number.
func (p *parser) immediate() argument {
	negative := p.is("-")
	t := p.next()
	a := argument{kind: 'n'}
	var err error
	switch {
	case t.kind != 'n':
		fail(t.line, "%q, want a number", t.text)
	case strings.HasPrefix(t.text, "0f") || strings.HasPrefix(t.text, "0F"):
		a.float = 4
		a.value, err = strconv.ParseUint(t.text[2:], 16, 32)
	case strings.HasPrefix(t.text, "0d") || strings.HasPrefix(t.text, "0D"):
		a.float = 8
		a.value, err = strconv.ParseUint(t.text[2:], 16, 64)
	default:
		a.value, err = strconv.ParseUint(strings.TrimSuffix(t.text, "U"), 0, 64)
	}
	if err != nil || negative && a.float != 0 {
		fail(t.line, "%q is no number", t.text)
	}
	if negative {
		a.value = -a.value
	}
	return a
}

// function reads a kernel or function, or its prototype.
func (p *parser) function(begin token) {
	f := &function{line: begin.line, entry: begin.text == ".entry", labels: make(map[string]int), targets: make(map[string][]string)}
	s := &scope{up: &p.vars, vars: make(map[string]*variable)}
	if !f.entry && p.peek().text == "(" {
		f.rets = p.params(s)
	}
	f.name = p.name()
	if p.peek().text == "(" {
		f.params = p.params(s)
	}
	for {
		t := p.next()
		switch t.text {
		case ".maxntid", ".reqntid":
			n := p.number()
			for p.is(",") {
				n *= p.number()
			}
			f.maxThreads = n
		case ".minnctapersm", ".maxnreg":
			p.number()
		case ".noreturn":
		case ";":
			return
		case "{":
			if old := p.functions[f.name]; old != nil {
				fail(f.line, "a second %s", f.name)
			}
			p.f = f
			p.functions[f.name] = f
			p.order = append(p.order, f)
			p.block(s)
			return
		default:
			fail(t.line, "%q is nothing of a function that is known here", t.text)
		}
	}
}

func (p *parser) params(s *scope) (list []*variable) {
	p.want("(")
	offset := 0
	for !p.is(")") {
		p.want(".param")
		v, _ := p.variable(inParam, false)
		if s.vars[v.name] != nil {
			fail(p.peek().line, "a second %s", v.name)
		}
		s.vars[v.name] = v
		v.offset = roundUp(offset, v.align)
		if offset = v.offset + v.size; offset > 1<<16 {
			fail(p.peek().line, "more parameters than any kernel has")
		}
		list = append(list, v)
		if !p.is(",") && p.peek().text != ")" {
			fail(p.peek().line, "%q, want a parameter", p.peek().text)
		}
	}
	return list
}

func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

// typ is the type of an instruction.
type typ struct {
	kind byte // u, s, f or b; t of bfloat16
	size int  // bytes
}

func (t typ) String() string { return fmt.Sprintf("%c%d", t.kind, 8*t.size) }

var types = map[string]typ{"bf16": {'t', 2}, "f16": {'f', 2}, "f32": {'f', 4}, "f64": {'f', 8}}

func init() {
	for _, kind := range []byte("usb") {
		for _, size := range []int{1, 2, 4, 8} {
			t := typ{kind, size}
			types[t.String()] = t
		}
	}
}

func parseType(name string) (typ, bool) {
	t, ok := types[name]
	return t, ok
}

// labelAt is the place of a label in a function.
func (f *function) labelAt(line int, name string) int {
	at, ok := f.labels[name]
	if !ok {
		fail(line, "no label %q", name)
	}
	return at
}

// take removes the first modifier that has one of these names, and gives it; empty where none has.
func (in *instruction) take(names ...string) string {
	for i, m := range in.mods {
		if slices.Contains(names, m) {
			in.mods = slices.Delete(in.mods, i, i+1)
			return m
		}
	}
	return ""
}
