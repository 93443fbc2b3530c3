package oplist

import (
	"fmt"
	"strings"

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
// primitive: kind, evaluated dims, weight shapes and attributes, not the name.
func (b BoundOp) Identity() string { return identity(b.Op, b.Src, b.Dst) }

// Identity is that of the operation before its dims are evaluated.
func (op *Op) Identity() string { return identity(op, op.Src, op.Dst) }

// At is Bind for this many requests of this many tokens each, padding included.
// Tokens above MaxTokens are refused, but for a packed list.
func (m *Model) At(batch, tokens int) ([]BoundOp, error) {
	if tokens > m.MaxTokens && !m.Ragged {
		return nil, fault.Invalidf("oplist: bind", "%s takes requests of at most %d tokens, not %d; cut them", m.Name, m.MaxTokens, tokens)
	}
	return m.Bind(map[string]int{m.BatchSymbol: batch, m.LengthSymbol: tokens})
}

// Bind evaluates every dim for these values of the symbols, each at least 1. A
// symbol that is missing or unknown, and a size out of bounds, match
// fault.ErrInvalid.
func (m *Model) Bind(values map[string]int) ([]BoundOp, error) {
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
	out := make([]BoundOp, len(m.Ops))
	for i := range m.Ops {
		op := &m.Ops[i]
		b := BoundOp{Op: op, Src: make([][]int, len(op.Src))}
		var err error
		for n, dims := range op.Src {
			if b.Src[n], err = evalDims(dims, values); err != nil {
				return nil, bindError(m, op, err)
			}
		}
		if b.Dst, err = evalDims(op.Dst, values); err != nil {
			return nil, bindError(m, op, err)
		}
		out[i] = b
	}
	return out, nil
}

func bindError(m *Model, op *Op, err error) error {
	return fault.Invalidf("oplist: bind", "%s, operation %q: %w; use a smaller shape", m.Name, op.Name, err)
}

func evalDims(dims []Dim, values map[string]int) ([]int, error) {
	out := make([]int, len(dims))
	total := 1
	for i, d := range dims {
		v, err := d.eval(values)
		if err != nil {
			return nil, err
		}
		if total, err = multiply(total, v); err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// identity is the text that equal primitives share. The attribute is quoted and
// last; nothing else in it can hold a space.
func identity[S, D any](op *Op, src S, dst D) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v %v ", op.Kind, src, dst)
	for _, w := range op.Weights {
		fmt.Fprintf(&b, "%v ", w.Shape)
	}
	fmt.Fprintf(&b, "%q", op.Attr.Text)
	return b.String()
}
