package script

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Vars are what {…} stands for: I the item of the innermost loop around a
// statement, T the number of the thread or process that runs it.
type Vars struct {
	I    string
	HasI bool
	T    int
	HasT bool
}

// WithI is v inside a loop's turn.
func (v Vars) WithI(item string) Vars { v.I, v.HasI = item, true; return v }

// WithT is v in thread or process number t.
func (v Vars) WithT(t int) Vars { v.T, v.HasT = t, true; return v }

// Expand puts values in place of {i}, {t} and integer expressions over them.
// Braces around anything else stay as they are.
func Expand(text string, v Vars) (string, error) {
	open := strings.IndexByte(text, '{')
	if open < 0 {
		return text, nil
	}
	var b strings.Builder
	for {
		b.WriteString(text[:open])
		text = text[open:]
		end := strings.IndexByte(text, '}')
		if end < 0 {
			break
		}
		value, err := v.value(text[1:end])
		if err != nil {
			return "", err
		}
		if value == nil {
			b.WriteByte('{')
			text = text[1:]
		} else {
			b.WriteString(*value)
			text = text[end+1:]
		}
		if open = strings.IndexByte(text, '{'); open < 0 {
			break
		}
	}
	b.WriteString(text)
	return b.String(), nil
}

// value gives nil if the text between the braces is no expression.
func (v Vars) value(expr string) (*string, error) {
	if strings.TrimSpace(expr) == "" || strings.Trim(expr, "it0123456789+-*/% ") != "" || !strings.ContainsAny(expr, "it") {
		return nil, nil
	}
	if expr == "i" && v.HasI {
		return &v.I, nil
	}
	n, err := v.sum(expr)
	if err != nil {
		return nil, fmt.Errorf("{%s}: %w", expr, err)
	}
	text := strconv.FormatInt(n, 10)
	return &text, nil
}

// sum evaluates products first, else left to right.
func (v Vars) sum(expr string) (int64, error) {
	p := terms{rest: expr, vars: v}
	var total int64
	sign := byte('+')
	if p.peek() == '-' {
		sign = p.next()
	}
	for {
		product, err := p.product()
		if err != nil {
			return 0, err
		}
		if sign == '-' {
			if product == math.MinInt64 {
				return 0, fmt.Errorf("overflow")
			}
			product = -product
		}
		before := total
		if total += product; (total < before) != (product < 0) {
			return 0, fmt.Errorf("overflow")
		}
		switch sign = p.next(); sign {
		case 0:
			return total, nil
		case '+', '-':
		default:
			return 0, fmt.Errorf("an operator is wanted before %q", string(sign)+p.rest)
		}
	}
}

type terms struct {
	rest string
	vars Vars
}

func (p *terms) peek() byte {
	p.rest = strings.TrimLeft(p.rest, " ")
	if p.rest == "" {
		return 0
	}
	return p.rest[0]
}

func (p *terms) next() byte {
	c := p.peek()
	if c != 0 {
		p.rest = p.rest[1:]
	}
	return c
}

func (p *terms) product() (int64, error) {
	n, err := p.operand()
	for err == nil {
		op := p.peek()
		if op != '*' && op != '/' && op != '%' {
			break
		}
		p.next()
		var m int64
		if m, err = p.operand(); err != nil {
			break
		}
		switch {
		case op == '*':
			if m != 0 && (n*m/m != n || n == math.MinInt64 && m == -1) {
				return 0, fmt.Errorf("overflow")
			}
			n *= m
		case m == 0:
			return 0, fmt.Errorf("division by zero")
		case op == '/':
			n /= m
		default:
			n %= m
		}
	}
	return n, err
}

func (p *terms) operand() (int64, error) {
	switch c := p.peek(); {
	case c == 'i':
		p.next()
		if !p.vars.HasI {
			return 0, fmt.Errorf("there is no loop here that gives i")
		}
		n, err := strconv.ParseInt(p.vars.I, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the item %q is not an integer", p.vars.I)
		}
		return n, nil
	case c == 't':
		p.next()
		if !p.vars.HasT {
			return 0, fmt.Errorf("there is no thread here that gives t")
		}
		return int64(p.vars.T), nil
	case c >= '0' && c <= '9':
		end := 0
		for end < len(p.rest) && p.rest[end] >= '0' && p.rest[end] <= '9' {
			end++
		}
		n, err := strconv.ParseInt(p.rest[:end], 10, 64)
		p.rest = p.rest[end:]
		return n, err
	default:
		return 0, fmt.Errorf("a number, i or t is wanted at %q", p.rest)
	}
}
