package oplist

import (
	"strconv"

	"github.com/kiln-cache/kiln/fault"
)

// BoundOp is an operation with its dims evaluated for one shape.
type BoundOp struct {
	*Op
	Src [][]int // hides the symbolic ones
	Dst []int
}

// Elements is the number of float32 values of the output.
func (b BoundOp) Elements() int {
	n := 1
	for _, d := range b.Dst {
		n *= d // Bind has bounded the product
	}
	return n
}

// Identity is a text that two operations share exactly if they are the same
// primitive: kind, evaluated dims, weight shapes and attributes, not the name. Of two
// batched products one of which sets TransposeB it may be the same.
func (b BoundOp) Identity() string { return identity(b.Op, b.Src, b.Dst, appendInt) }

// Identity is that of the operation before its dims are evaluated.
func (op *Op) Identity() string {
	return identity(op, op.Src, op.Dst, func(b []byte, d Dim) []byte { return append(b, d.text...) })
}

// At is Bind for this many requests of this many tokens each, padding included.
// Tokens above MaxTokens are refused, but for a packed list.
func (m *Model) At(batch, tokens int) ([]BoundOp, error) { return m.AtAlike(batch, tokens, nil) }

// AtAlike is At where it is known which operations have the same dims: for each the first of
// them, perhaps itself. They share the numbers.
func (m *Model) AtAlike(batch, tokens int, first []int) ([]BoundOp, error) {
	if tokens > m.MaxTokens && !m.Ragged {
		return nil, fault.Invalidf("oplist: bind", "%s takes requests of at most %d tokens, not %d; cut them", m.Name, m.MaxTokens, tokens)
	}
	return m.bind(map[string]int{m.BatchSymbol: batch, m.LengthSymbol: tokens}, first)
}

// Bind evaluates every dim for these values of the symbols, each at least 1. A
// symbol that is missing or unknown, and a size out of bounds, match
// fault.ErrInvalid.
func (m *Model) Bind(values map[string]int) ([]BoundOp, error) { return m.bind(values, nil) }

func (m *Model) bind(values map[string]int, first []int) ([]BoundOp, error) {
	for s := range m.Symbols {
		if v, ok := values[s]; !ok || v < 1 || v > maxDim {
			return nil, fault.Invalidf("oplist: bind", "symbol %s of %s needs a value from 1 to %d, not %d", s, m.Name, maxDim, v)
		}
	}
	for s := range values {
		if _, ok := m.Symbols[s]; !ok {
			return nil, fault.Invalidf("oplist: bind", "%s has no symbol %q", m.Name, s)
		}
	}
	var tensors, dims int // of all operations, whose numbers lie one behind another
	for i := range m.Ops {
		op := &m.Ops[i]
		if first != nil && first[i] < i {
			continue
		}
		tensors, dims = tensors+len(op.Src), dims+len(op.Dst)
		for _, src := range op.Src {
			dims += len(src)
		}
	}
	out, srcs, numbers := make([]BoundOp, len(m.Ops)), make([][]int, tensors), make([]int, dims)
	for i := range m.Ops {
		op := &m.Ops[i]
		if first != nil && first[i] < i {
			out[i] = BoundOp{op, out[first[i]].Src, out[first[i]].Dst}
			continue
		}
		eval := func(dims []Dim) (of []int, err error) {
			of, numbers = numbers[:len(dims):len(dims)], numbers[len(dims):]
			return of, evalDims(of, dims, values)
		}
		n := len(op.Src)
		b := BoundOp{Op: op, Src: srcs[:n:n]}
		srcs = srcs[n:]
		var err error
		for n, dims := range op.Src {
			if b.Src[n], err = eval(dims); err != nil {
				return nil, bindError(m, op, err)
			}
		}
		if b.Dst, err = eval(op.Dst); err != nil {
			return nil, bindError(m, op, err)
		}
		out[i] = b
	}
	return out, nil
}

func bindError(m *Model, op *Op, err error) error {
	return fault.Invalidf("oplist: bind", "%s, operation %q: %w; use a smaller shape", m.Name, op.Name, err)
}

func evalDims(out []int, dims []Dim, values map[string]int) error {
	total := 1
	for i, d := range dims {
		v, err := d.eval(values)
		if err != nil {
			return err
		}
		if total, err = multiply(total, v); err != nil {
			return err
		}
		out[i] = v
	}
	return nil
}

// identity is the text that equal primitives share. The attribute is quoted and
// last; nothing else in it can hold a space.
func identity[D any](op *Op, src [][]D, dst []D, one func([]byte, D) []byte) string {
	var buf [256]byte
	b := append(append(buf[:0], op.Kind...), ' ')
	b = appendList(b, src, func(b []byte, dims []D) []byte { return appendList(b, dims, one) })
	b = appendList(append(b, ' '), dst, one)
	b = append(b, ' ')
	for _, w := range op.Weights {
		b = append(appendList(b, w.Shape, appendInt), ' ')
	}
	return string(strconv.AppendQuote(b, op.Attr.Text))
}

// appendList appends a list as fmt prints it.
func appendList[E any](b []byte, list []E, one func([]byte, E) []byte) []byte {
	b = append(b, '[')
	for i, e := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = one(b, e)
	}
	return append(b, ']')
}

func appendInt(b []byte, v int) []byte { return strconv.AppendInt(b, int64(v), 10) }
