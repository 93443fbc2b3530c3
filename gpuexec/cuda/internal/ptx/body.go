package ptx

import (
	"strconv"
	"strings"
)

// block reads statements up to the brace that ends them.
func (p *parser) block(s *scope) {
	if p.depth++; p.depth > mostDepth {
		fail(p.peek().line, "too many braces")
	}
	for !p.is("}") {
		t := p.next()
		switch {
		case t.text == "{" && t.kind == '{':
			p.block(&scope{up: s})
		case t.kind == '@':
			guard := p.guard(s)
			p.instruction(s, p.next(), guard)
		case t.kind == 'i' && p.is(":"):
			p.label(t)
		case t.kind == 'i' && t.text[0] == '.':
			p.directive(s, t)
		case t.kind == 'i':
			p.instruction(s, t, nil)
		case t.kind == ';':
		default:
			fail(t.line, "%q, want a statement", t.text)
		}
	}
	p.depth--
}

func (p *parser) label(t token) {
	if p.is(".branchtargets") {
		for {
			p.f.targets[t.text] = append(p.f.targets[t.text], p.name())
			if !p.is(",") {
				break
			}
		}
		p.want(";")
		return
	}
	if _, ok := p.f.labels[t.text]; ok {
		fail(t.line, "a second label %s", t.text)
	}
	p.f.labels[t.text] = len(p.f.body)
}

// directive reads what declares something within a function.
func (p *parser) directive(s *scope, t token) {
	switch t.text {
	case ".reg":
		p.registers(s, t)
	case ".local", ".shared", ".param":
		if s.vars == nil {
			s.vars = make(map[string]*variable)
		}
		p.variables(s, spaces[t.text[1:]], false)
	case ".loc", ".file":
		p.skipLine(t.line)
	case ".pragma":
		p.pragma()
	default:
		fail(t.line, "%q is nothing within a function that is known here", t.text)
	}
}

func (p *parser) registers(s *scope, t token) {
	size := p.size()
	if s.regs == nil {
		s.regs, s.families = make(map[string]int), make(map[string]family)
	}
	for {
		name := p.name()
		if p.is("<") {
			s.families[name] = family{p.number(), size}
			p.want(">")
		} else {
			if _, ok := s.regs[name]; ok {
				fail(t.line, "a second register %s", name)
			}
			s.regs[name] = p.newRegister(size)
		}
		if !p.is(",") {
			break
		}
	}
	p.want(";")
}

func (p *parser) newRegister(size int) int {
	p.f.regs = append(p.f.regs, size)
	return len(p.f.regs) - 1
}

// register finds the register of a name in the scopes that are open.
func (p *parser) register(s *scope, name string) (int, bool) {
	stem := strings.TrimRight(name, "0123456789")
	for ; s != nil; s = s.up {
		if r, ok := s.regs[name]; ok {
			return r, true
		}
		if s.vars[name] != nil {
			return 0, false
		}
		family, ok := s.families[stem]
		if n, err := strconv.Atoi(name[len(stem):]); ok && err == nil && n < family.count && (n == 0 || name[len(stem)] != '0') {
			r := p.newRegister(family.size)
			s.regs[name] = r
			return r, true
		}
	}
	return 0, false
}

func (p *parser) guard(s *scope) *argument {
	a := argument{kind: 'r', not: p.is("!")}
	line, name := p.peek().line, p.name()
	r, ok := p.register(s, name)
	if !ok || p.f.regs[r] != 0 {
		fail(line, "%s is no predicate", name)
	}
	a.reg = r
	return &a
}

func (p *parser) instruction(s *scope, t token, guard *argument) {
	if t.kind != 'i' || t.text[0] == '.' {
		fail(t.line, "%q, want an instruction", t.text)
	}
	words := strings.Split(t.text, ".")
	in := instruction{line: t.line, guard: guard, name: words[0], mods: words[1:]}
	for !p.is(";") {
		in.args = append(in.args, p.argument(s))
		if !p.is(",") && p.peek().text != ";" {
			fail(p.peek().line, "%q, want an operand or the end of %s", p.peek().text, t.text)
		}
	}
	p.f.body = append(p.f.body, in)
}

// argument reads one operand.
func (p *parser) argument(s *scope) argument {
	t := p.peek()
	switch {
	case p.is("!"):
		a := p.simple(s)
		a.not = true
		return a
	case p.is("["):
		base := p.simple(s)
		p.want("]")
		return argument{kind: '[', list: []argument{base}}
	case p.is("{"), p.is("("):
		end := map[byte]string{'{': "}", '(': ")"}[t.kind]
		a := argument{kind: t.kind}
		for !p.is(end) {
			a.list = append(a.list, p.simple(s))
			if !p.is(",") && p.peek().text != end {
				fail(p.peek().line, "%q, want %q", p.peek().text, end)
			}
		}
		return a
	}
	a := p.simple(s)
	if p.is("|") {
		return argument{kind: '|', list: []argument{a, p.simple(s)}}
	}
	return a
}

// simple is a register, variable, number or other name, and what is added to it.
func (p *parser) simple(s *scope) argument {
	t := p.peek()
	if t.kind != 'i' {
		return p.immediate()
	}
	p.at++
	a := argument{kind: 'i', name: t.text}
	if t.text == "_" {
		a.kind = '_'
		return a
	}
	if r, ok := p.register(s, t.text); ok {
		a.kind, a.reg = 'r', r
	} else {
		for at := s; at != nil && a.sym == nil; at = at.up {
			if a.sym = at.vars[t.text]; a.sym != nil {
				a.kind = 'v'
			}
		}
	}
	if p.is("+") {
		a.value = p.immediate().value
	} else if p.peek().text == "-" {
		a.value = p.immediate().value
	}
	return a
}
