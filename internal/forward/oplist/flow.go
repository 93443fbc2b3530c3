package oplist

import (
	"slices"
	"strings"
)

// flow follows the values through the list by the rules of doc.go.
type flow struct {
	*Model
	unread   []int // operations whose value no operation has read yet, in order
	readers  []int // the last operation that read each value
	gathers  int
	residual int // the latest layernorm, -1 before the first
	masked   []bool
}

// resolve gives every operation its inputs and the model its symbols and
// limits.
func (m *Model) resolve() {
	r := &flow{Model: m, residual: -1, readers: make([]int, len(m.Ops)), masked: make([]bool, len(m.Ops))}
	for i := range m.Ops {
		r.step(i)
		r.unread = append(r.unread, i)
	}
	if len(r.unread) > 1 {
		lost := r.unread[0]
		m.fail(lost, "name", "no operation reads what %q gives; is one missing or out of order?", m.Ops[lost].Name)
	}
	for value, reader := range r.readers[:len(m.Ops)-1] {
		m.Ops[reader].Releases = append(m.Ops[reader].Releases, value)
	}
	m.resolveOutput()
}

// step finds the inputs of one operation.
func (r *flow) step(i int) {
	op := &r.Ops[i]
	switch op.Kind {
	case Gather:
		r.gather(i)
	case MatMul:
		if i > 0 && r.Ops[i-1].Kind == MatMul && equalDims(r.Ops[i-1].Src[0], op.Src[0]) {
			r.connect(i, r.Ops[i-1].Inputs...)
		} else {
			r.latest(i)
		}
	case Reorder:
		if len(r.unread) == 0 {
			r.nothing(i)
		}
		r.connect(i, Source(r.unread[0]))
	case BatchMatMul:
		r.batchMatMul(i)
	case Add:
		r.add(i)
	case Softmax:
		r.latest(i)
		if !r.masked[op.Inputs[0]] {
			r.fail(i, "kind", "the scores were not masked, so padding would change the output; give the batch_matmul before it post:mask_add")
		}
		op.Inputs = append(op.Inputs, Lengths)
		r.masked[i] = true
	case LayerNorm:
		r.latest(i)
		r.residual = i
	default:
		r.latest(i)
	}
}

func (r *flow) gather(i int) {
	op := &r.Ops[i]
	r.gathers++
	switch r.gathers {
	case 1:
		if len(op.Src[0]) == 2 {
			var okB, okS bool
			r.BatchSymbol, okB = op.Src[0][0].symbol()
			r.LengthSymbol, okS = op.Src[0][1].symbol()
			if okB && okS && r.BatchSymbol != r.LengthSymbol && len(r.Symbols) == 2 {
				r.Vocab = op.Weights[0].Shape[0]
				op.Inputs = []Source{Tokens}
				return
			}
		}
		r.fail(i, "src", "the first gather's ids are not [B,S]; an encoder's list has these two symbols and no other")
	case 2:
		if !equalDims(op.Src[0], r.Ops[0].Src[0]) {
			r.fail(i, "src", "token types are not of the dims of the token ids")
		}
		op.Inputs, r.Types = []Source{TokenTypes}, op.Weights[0].Shape[0]
	default:
		r.fail(i, "kind", "a third gather; an encoder looks up token ids, then token types")
	}
}

func (r *flow) batchMatMul(i int) {
	op := &r.Ops[i]
	x, y := op.Src[0], op.Src[1]
	if y[2].text == y[3].text {
		r.fail(i, "src", "the second operand is square, so its orientation cannot be told; write the sequence length as a symbol")
	}
	first := r.oldest(x, -1)
	second := r.oldest(y, first)
	if second < 0 {
		second = r.oldest([]Dim{y[0], y[1], y[3], y[2]}, first)
		op.TransposeB = true
	}
	if first < 0 || second < 0 {
		r.nothing(i)
	}
	r.connect(i, Source(first), Source(second))
	softmaxed := r.masked[first] && r.Ops[first].Kind == Softmax
	if softmaxed || op.Attr.Mask {
		op.Inputs = append(op.Inputs, Lengths)
	}
	if softmaxed && op.Attr.Mask {
		r.fail(i, "attr", "masks scores that a softmax has masked; leave post:mask_add out")
	}
	r.masked[i] = op.Attr.Mask
}

func (r *flow) add(i int) {
	op := &r.Ops[i]
	switch {
	case len(op.Weights) > 0:
		r.latest(i)
		if rows := op.Weights[0].Shape[0]; r.MaxTokens == 0 || rows < r.MaxTokens {
			r.MaxTokens = rows
		}
		if length, _ := op.Src[0][1].symbol(); length != r.LengthSymbol {
			r.fail(i, "src", "the dim in the middle of a position add is not the sequence length")
		}
	case r.residual < 0 && len(r.unread) == 2:
		r.connect(i, Source(r.unread[0]), Source(r.unread[1]))
	case r.residual >= 0 && len(r.unread) == 1 && r.unread[0] != r.residual:
		r.connect(i, Source(r.unread[0]), Source(r.residual))
	default:
		r.nothing(i)
	}
}

// latest connects an operation of one input to the latest unread value.
func (r *flow) latest(i int) {
	if len(r.unread) == 0 {
		r.nothing(i)
	}
	r.connect(i, Source(r.unread[len(r.unread)-1]))
}

// oldest is the oldest unread value of exactly these dims other than skip, or
// -1.
func (r *flow) oldest(dims []Dim, skip int) int {
	for _, v := range r.unread {
		if v != skip && equalDims(r.Ops[v].Dst, dims) {
			return v
		}
	}
	return -1
}

// connect notes that operation i reads these values.
func (r *flow) connect(i int, from ...Source) {
	op := &r.Ops[i]
	for n, s := range from {
		if s < 0 {
			op.Inputs = append(op.Inputs, s)
			continue
		}
		value := &r.Ops[s]
		if op.Kind != BatchMatMul && !sameLayout(op.Src[n], value.Dst) {
			r.fail(i, "src", "input %d has dims %s, but %q (line %d) before it gives %s: is an operation missing or out of order?",
				n, formatDims(op.Src[n]), value.Name, value.Line, formatDims(value.Dst))
		}
		if r.masked[s] && !readsMasked(op.Kind, value.Kind, n) {
			r.fail(i, "kind", "a %s cannot read masked columns here; a softmax does, and a batch_matmul as its first operand what a softmax gave", op.Kind)
		}
		op.Inputs = append(op.Inputs, s)
		r.readers[s] = i
		if at := slices.Index(r.unread, int(s)); at >= 0 {
			r.unread = slices.Delete(r.unread, at, at+1)
		}
	}
}

// readsMasked tells whether a reader skips the masked columns of its input n.
func readsMasked(reader, writer Kind, n int) bool {
	if writer == Softmax {
		return reader == BatchMatMul && n == 0
	}
	return reader == Softmax
}

func (r *flow) nothing(i int) {
	op := &r.Ops[i]
	dims := make([]string, len(op.Src))
	for n, src := range op.Src {
		dims[n] = formatDims(src)
	}
	r.fail(i, "src", "nothing before this %s gives %s for it to read: is an operation missing or out of order?", op.Kind, strings.Join(dims, " and "))
}

// sameLayout tells whether one set of dims is the other with neighbours taken
// together: B*S x 128 is B x S x 2 x 64, but not B x 2 x S x 64, although the
// elements are as many. So a list that lost a reorder is noticed.
func sameLayout(a, b []Dim) bool {
	if len(a) == len(b) {
		return equalDims(a, b)
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	fine := map[string]bool{}
	for i := range b {
		if p, err := elements(b[:i+1]); err == nil {
			fine[p.text] = true
		}
	}
	for i := range a {
		if p, err := elements(a[:i+1]); err != nil || !fine[p.text] {
			return false
		}
	}
	return true
}

// resolveOutput finds how the output divides among requests.
func (m *Model) resolveOutput() {
	final := len(m.Ops) - 1
	switch {
	case m.Vocab == 0:
		m.fail(0, "kind", "no gather reads the token ids; an encoder's list begins with one")
	case m.MaxTokens == 0:
		m.fail(final, "kind", "no add has a position table as its weight, so the model has no longest request")
	}
	dst := m.Ops[final].Dst
	width, ok := last(dst)
	if !ok {
		m.fail(final, "dst", "the output's last dim is not a number")
	}
	rows, err := elements(dst[:len(dst)-1])
	if err != nil {
		m.fail(final, "dst", "%v", err)
	}
	tokens, err := elements(m.Ops[0].Src[0])
	if err != nil {
		m.fail(0, "src", "%v", err)
	}
	m.Width, m.PerToken = width, rows.text == tokens.text
	if s, _ := rows.symbol(); !m.PerToken && s != m.BatchSymbol {
		m.fail(final, "dst", "%s has neither a row for every request nor one for every token", formatDims(dst))
	}
}
