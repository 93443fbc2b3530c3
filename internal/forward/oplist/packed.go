package oplist

import "slices"

// form is how a value of a padded list lies.
type form int

const (
	rows   form = iota // a row for each token, as in a packed list
	heads              // a matrix for each request and head
	scores             // of the keys for each query, masked or after the softmax
)

// packing follows a padded list and writes the packed one.
type packing struct {
	from, to *Model
	forms    []form
	at       []Source // of the padded list's values in the packed one; of scores: the keys
	queries  []Source // of scores
	attr     []Attr   // of scores
}

// Packed is the model over a ragged batch: the tokens of all requests lie one behind
// another, so that LengthSymbol counts all of them and BatchSymbol is 1. An Attention is
// in the place of its products, softmax and reorders, and positions are gathered. nil
// where the list is not of that form, or gives one row a request.
func (m *Model) Packed() *Model {
	if !m.PerToken {
		return nil
	}
	to := *m
	to.Ops, to.Ragged = nil, true
	p := &packing{from: m, to: &to}
	for i := range m.Ops {
		if !p.step(&m.Ops[i]) {
			return nil
		}
	}
	last := make([]int, len(to.Ops)) // the reader of each value
	for i, op := range to.Ops {
		for _, in := range op.Inputs {
			if in >= 0 {
				last[in] = i
			}
		}
	}
	for value, reader := range last[:len(last)-1] {
		to.Ops[reader].Releases = append(to.Ops[reader].Releases, value)
	}
	return &to
}

// step writes what computes op; false where nothing does.
func (p *packing) step(op *Op) bool {
	var in []Source
	var forms []form
	for _, from := range op.Inputs {
		switch {
		case from == Lengths: // a ragged batch has Starts
		case from < 0:
			in, forms = append(in, from), append(forms, rows)
		default:
			in, forms = append(in, p.at[from]), append(forms, p.forms[from])
		}
	}
	read := func(want ...form) bool { return slices.Equal(forms, want) }
	switch {
	case op.Kind == Reorder && op.Attr.Text == "perm:0213" && read(rows):
		p.is(heads, in[0])
	case op.Kind == Reorder && op.Attr.Text == "perm:0213" && read(heads):
		p.is(rows, in[0])
	case op.Kind == BatchMatMul && read(heads, heads) && op.TransposeB && op.Attr.Mask:
		p.is(scores, in[1])
		p.queries[len(p.queries)-1], p.attr[len(p.attr)-1] = in[0], op.Attr
	case op.Kind == Softmax && read(scores):
		before := op.Inputs[0]
		p.is(scores, in[0])
		p.queries[len(p.queries)-1], p.attr[len(p.attr)-1] = p.queries[before], p.attr[before]
	case op.Kind == BatchMatMul && read(scores, heads) && !op.TransposeB && op.Attr.Scale == 1:
		before := op.Inputs[0]
		d := op.Dst
		dims := []Dim{d[0], d[2], d[1], d[3]}
		p.is(heads, p.add(op, Op{Kind: Attention, Src: [][]Dim{dims, dims, dims}, Dst: dims, Attr: p.attr[before],
			Inputs: []Source{p.queries[before], in[0], in[1], Starts}}))
	case op.Kind == Add && len(op.Weights) > 0 && read(rows):
		table := op.Weights[0]
		table.Role = Table
		places := p.add(op, Op{Kind: Gather, Src: p.from.Ops[0].Src, Dst: op.Dst, Weights: []Weight{table}, Inputs: []Source{Positions}})
		p.is(rows, p.add(op, Op{Kind: Add, Src: [][]Dim{op.Dst, op.Dst}, Dst: op.Dst, Inputs: []Source{in[0], places}}))
	case op.Kind == Reorder || op.Kind == BatchMatMul || op.Kind == Softmax || slices.ContainsFunc(forms, func(f form) bool { return f != rows }):
		return false
	default:
		same := *op
		same.Inputs = in
		p.is(rows, p.add(op, same))
	}
	return true
}

// add appends an operation in the place of another, and says where its value is.
func (p *packing) add(of *Op, op Op) Source {
	op.Line, op.Name, op.Releases = of.Line, of.Name, nil
	p.to.Ops = append(p.to.Ops, op)
	return Source(len(p.to.Ops) - 1)
}

// is notes what has become of the value of the next operation.
func (p *packing) is(f form, at Source) {
	p.forms, p.at = append(p.forms, f), append(p.at, at)
	p.queries, p.attr = append(p.queries, 0), append(p.attr, Attr{})
}
