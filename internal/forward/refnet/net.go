package refnet

import (
	"fmt"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// Weights gives a model's tensors by name, row major, in the shape of the op
// list. It is called from the goroutines that call Forward.
type Weights interface {
	Tensor(name string) ([]float32, error)
}

// Net is a model with its weights. It is safe for concurrent use.
type Net struct {
	model   *oplist.Model
	weights Weights

	mu struct {
		sync.Mutex
		tensors map[string][]float32 // each read once; never written to
	}
}

// New makes a net. Tensors are asked for at their first use and kept.
func New(model *oplist.Model, weights Weights) *Net {
	n := &Net{model: model, weights: weights}
	n.mu.tensors = make(map[string][]float32, len(model.Weights))
	return n
}

// Forward runs a batch: ids holds one row for each request, all padded to the
// same length, and lengths the tokens of each that are not padding. It returns
// an output row for every request, or for every token that is not padding where
// the model's output is per token: request by request, Width values a row.
//
// Ids outside the vocabulary, lengths outside 1 to the padded one and rows of
// different lengths match fault.ErrInvalid.
func (n *Net) Forward(ids [][]int32, lengths []int) ([][]float64, error) {
	return n.ForwardTyped(ids, nil, lengths)
}

// ForwardTyped is Forward with a type for each id; without types all are 0.
func (n *Net) ForwardTyped(ids, types [][]int32, lengths []int) ([][]float64, error) {
	if err := n.validate(ids, lengths); err != nil {
		return nil, err
	}
	ops, err := n.model.At(len(ids), len(ids[0]))
	if err != nil {
		return nil, err
	}
	p := pass{net: n, ids: ids, types: types, lengths: lengths, values: make([][]float64, len(ops))}
	for i, op := range ops {
		if p.values[i], err = p.run(op); err != nil {
			return nil, err
		}
		for _, r := range op.Releases {
			p.values[r] = nil
		}
	}
	return n.split(p.values[len(ops)-1], len(ids[0]), lengths), nil
}

func (n *Net) validate(ids [][]int32, lengths []int) error {
	const op = "refnet: forward"
	if len(ids) == 0 || len(ids) != len(lengths) {
		return fault.Invalidf(op, "%d rows of ids and %d lengths; give at least one row and a length for each", len(ids), len(lengths))
	}
	for b, row := range ids {
		if len(row) != len(ids[0]) {
			return fault.Invalidf(op, "row %d has %d ids and row 0 has %d; pad them to one length", b, len(row), len(ids[0]))
		}
		if lengths[b] < 1 || lengths[b] > len(row) {
			return fault.Invalidf(op, "length %d of row %d is not from 1 to %d", lengths[b], b, len(row))
		}
		for s, id := range row {
			if id < 0 || int(id) >= n.model.Vocab {
				return fault.Invalidf(op, "id %d at token %d of row %d is not from 0 to %d", id, s, b, n.model.Vocab-1)
			}
		}
	}
	return nil
}

// split cuts the output into rows of requests, without padding.
func (n *Net) split(out []float64, tokens int, lengths []int) [][]float64 {
	rows := make([][]float64, len(lengths))
	for b, length := range lengths {
		from, to := b, b+1
		if n.model.PerToken {
			from, to = b*tokens, b*tokens+length
		}
		rows[b] = out[from*n.model.Width : to*n.model.Width]
	}
	return rows
}

// tensor is a weight's values, read once.
func (n *Net) tensor(w oplist.Weight) ([]float32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t, ok := n.mu.tensors[w.Name]; ok {
		return t, nil
	}
	t, err := n.weights.Tensor(w.Name)
	if err != nil {
		return nil, err
	}
	if len(t) != w.Elements() {
		return nil, fault.Invalidf("refnet: forward", "weight %q has %d values, its shape %v wants %d", w.Name, len(t), w.Shape, w.Elements())
	}
	n.mu.tensors[w.Name] = t
	return t, nil
}

// pass is one forward pass; one goroutine owns it.
type pass struct {
	net     *Net
	ids     [][]int32
	types   [][]int32 // nil = all 0
	lengths []int
	values  [][]float64 // by operation; nil once released
}

func (p *pass) run(op oplist.BoundOp) ([]float64, error) {
	w := make([][]float32, len(op.Weights))
	for i, weight := range op.Weights {
		var err error
		if w[i], err = p.net.tensor(weight); err != nil {
			return nil, err
		}
	}
	in := make([][]float64, len(op.Src))
	for i := range in {
		if i < len(op.Inputs) && op.Inputs[i] >= 0 {
			in[i] = p.values[op.Inputs[i]]
		}
	}
	out := make([]float64, op.Elements())
	width := op.Dst[len(op.Dst)-1]
	switch op.Kind {
	case oplist.Gather:
		p.gather(out, w[0], op.Inputs[0], width)
	case oplist.Add:
		if len(w) > 0 {
			addRows(out, in[0], w[0], op.Dst[1]*width)
		} else {
			add(out, in[0], in[1])
		}
	case oplist.LayerNorm:
		layerNorm(out, in[0], w[0], w[1], op.Attr.Eps)
	case oplist.MatMul:
		var bias []float32
		if len(w) > 1 {
			bias = w[1]
		}
		matMul(out, in[0], w[0], bias, width)
	case oplist.Reorder:
		reorder(out, in[0], op.Src[0], op.Attr.Perm)
	case oplist.BatchMatMul:
		batchMatMul(out, in[0], in[1], op)
	case oplist.Softmax:
		p.softmax(out, in[0], op.Dst)
	case oplist.Eltwise:
		if err := eltwise(out, in[0], op.Attr.Alg); err != nil {
			return nil, err
		}
	case oplist.Slice:
		for b := range op.Dst[0] {
			copy(out[b*width:(b+1)*width], in[0][b*op.Src[0][1]*width:])
		}
	default:
		return nil, fmt.Errorf("refnet: %s %q: %w", op.Kind, op.Name, fault.ErrUnsupported)
	}
	return out, nil
}

func (p *pass) gather(out []float64, table []float32, source oplist.Source, width int) {
	at := 0
	for b, row := range p.ids {
		for s, id := range row {
			if source == oplist.TokenTypes {
				id = 0
				if p.types != nil {
					id = p.types[b][s]
				}
			}
			for j, v := range table[int(id)*width : (int(id)+1)*width] {
				out[at+j] = float64(v)
			}
			at += width
		}
	}
}
