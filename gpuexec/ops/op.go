package ops

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Kind is an operation.
type Kind uint8

// The operations; see the package comment.
const (
	_ Kind = iota
	Gather
	Add
	LayerNorm
	MatMul
	BatchMatMul
	Softmax
	Reorder
	GELU
	Tanh
	Slice
	Attention
)

// maxDims is the most dimensions an operation has.
const maxDims = 5

// kinds has, per kind, its name and the names of its dimensions.
var kinds = [...]struct {
	name string
	dims []string
}{
	Gather:      {"gather", []string{"rows", "width", "entries"}},
	Add:         {"add", []string{"rows", "width", "period"}},
	LayerNorm:   {"layernorm", []string{"rows", "width"}},
	MatMul:      {"matmul", []string{"m", "k", "n"}},
	BatchMatMul: {"batch_matmul", []string{"batch", "heads", "m", "k", "n"}},
	Softmax:     {"softmax", []string{"batch", "heads", "queries", "keys"}},
	Reorder:     {"reorder", []string{"a", "b", "c", "d"}},
	GELU:        {"gelu", []string{"rows", "width"}},
	Tanh:        {"tanh", []string{"rows", "width"}},
	Slice:       {"slice", []string{"batch", "rows", "width"}},
	Attention:   {"attention", []string{"tokens", "heads", "width", "sequences"}},
}

func (k Kind) String() string {
	if int(k) < len(kinds) && kinds[k].name != "" {
		return kinds[k].name
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Dims names the dimensions of operations of this kind, in their order.
func (k Kind) Dims() []string {
	if int(k) >= len(kinds) {
		return nil
	}
	return slices.Clone(kinds[k].dims)
}

// kindOf gives the kind of that name, 0 if there is none.
func kindOf(name string) Kind {
	for k := range kinds {
		if kinds[k].name == name && name != "" {
			return Kind(k)
		}
	}
	return 0
}

// Op is one operation with its exact dimensions. Ops are equal with == exactly
// if they are interchangeable. What a kind does not use is zero.
type Op struct {
	Kind       Kind
	Dims       [maxDims]int64
	Epsilon    float32 // of layernorm
	Scale      float32 // of batch_matmul and attention: multiplies the product; 0 = none
	Bias       bool    // of matmul
	BFloat16   bool    // of matmul: the weight is rounded to bfloat16 when it is prepared
	TransposeB bool    // of batch_matmul
	MaskK      bool    // of batch_matmul: k runs over the item's length only

	given int // dimensions that New got, if they are more than Dims has; else 0
}

// New makes an Op of a kind and its dimensions in the package comment's order;
// set further fields on the result. Validate checks it.
func New(kind Kind, dims ...int64) Op {
	op := Op{Kind: kind}
	if copy(op.Dims[:], dims) < len(dims) {
		op.given = len(dims)
	}
	return op
}

// maxElements bounds one tensor, so that sizes in bytes fit into 63 bits.
const maxElements = 1 << 40

// Validate reports what is wrong with the Op as ErrInvalid.
func (o Op) Validate() error {
	const verb = "ops: validate"
	if o.Kind == 0 || int(o.Kind) >= len(kinds) {
		return fault.Invalidf(verb, "unknown operation %s", o.Kind)
	}
	names := kinds[o.Kind].dims
	given := o.given
	for i, d := range o.Dims {
		switch {
		case i < len(names) && d < 1:
			return fault.Invalidf(verb, "%s takes %d dimensions (%s): %s is %d, want at least 1", o.Kind, len(names), strings.Join(names, ", "), names[i], d)
		case i >= len(names) && d != 0:
			given = max(given, i+1)
		}
	}
	if given > 0 {
		return fault.Invalidf(verb, "%s takes %d dimensions (%s), got %d", o.Kind, len(names), strings.Join(names, ", "), given)
	}
	switch {
	case o.largest() > maxElements:
		return fault.Invalidf(verb, "%s is too large", o)
	case o.Kind == Add && o.Dims[0]%o.Dims[2] != 0:
		return fault.Invalidf(verb, "%s: period does not divide rows", o)
	case o.Kind == LayerNorm && !(o.Epsilon > 0 && o.Epsilon <= 1), o.Kind != LayerNorm && o.Epsilon != 0:
		return fault.Invalidf(verb, "%s: epsilon is %g, want above 0 and at most 1 for layernorm, else 0", o, o.Epsilon)
	case (o.Bias || o.BFloat16) && o.Kind != MatMul:
		return fault.Invalidf(verb, "%s takes no bias and has no weight", o)
	case (o.TransposeB || o.MaskK) && o.Kind != BatchMatMul, o.Scale != 0 && o.Kind != BatchMatMul && o.Kind != Attention:
		return fault.Invalidf(verb, "%s takes no transposition, mask or scale", o)
	case math.IsNaN(float64(o.Scale)) || math.IsInf(float64(o.Scale), 0):
		return fault.Invalidf(verb, "%s: scale is %g", o, o.Scale)
	}
	return nil
}

// largest is the number of elements of the largest tensor, which may be beyond an int64.
func (o Op) largest() float64 {
	var d [maxDims]float64
	for i, n := range o.Dims {
		d[i] = float64(n)
	}
	switch o.Kind {
	case Gather, Add:
		return max(d[0], d[2]) * d[1]
	case MatMul:
		return max(d[0]*d[1], d[1]*d[2], d[0]*d[2])
	case BatchMatMul:
		return d[0] * d[1] * max(d[2]*d[3], d[3]*d[4], d[2]*d[4])
	case LayerNorm, GELU, Tanh:
		return d[0] * d[1]
	case Slice:
		return d[0] * d[1] * d[2]
	case Attention:
		return d[1] * max(d[0]*d[2], d[3])
	default:
		return d[0] * d[1] * d[2] * d[3]
	}
}

// String is the operation with its dimensions and attributes, as in
// "matmul m=128 k=384 n=1536 bias". It is canonical: equal text means equal Op.
func (o Op) String() string {
	var buf [128]byte
	b := append(buf[:0], o.Kind.String()...)
	put := func(name string, v int64, base int) {
		b = append(append(append(b, ' '), name...), '=')
		b = strconv.AppendInt(b, v, base)
	}
	if int(o.Kind) < len(kinds) {
		for i, name := range kinds[o.Kind].dims {
			put(name, o.Dims[i], 10)
		}
	}
	if o.Epsilon != 0 {
		put("epsilon", int64(math.Float32bits(o.Epsilon)), 16)
	}
	if o.Scale != 0 {
		put("scale", int64(math.Float32bits(o.Scale)), 16)
	}
	for _, f := range []struct {
		set  bool
		name string
	}{{o.Bias, "bias"}, {o.BFloat16, "bfloat16"}, {o.TransposeB, "transpose_b"}, {o.MaskK, "mask_k"}} {
		if f.set {
			b = append(append(b, ' '), f.name...)
		}
	}
	return string(b)
}

// Elements is the number of elements of the output.
func (o Op) Elements() int64 {
	d := o.Dims
	switch o.Kind {
	case MatMul:
		return d[0] * d[2]
	case BatchMatMul:
		return d[0] * d[1] * d[2] * d[4]
	case Softmax, Reorder:
		return d[0] * d[1] * d[2] * d[3]
	case Slice:
		return d[0] * d[2]
	case Attention:
		return d[0] * d[1] * d[2]
	default:
		return d[0] * d[1]
	}
}

// Parse reads the text of String, strictly: what String would not have written
// is ErrInvalid.
func Parse(text string) (Op, error) {
	const verb = "ops: parse"
	words := strings.Split(text, " ")
	op := Op{Kind: kindOf(words[0])}
	if op.Kind == 0 {
		return Op{}, fault.Invalidf(verb, "%.60q begins with no operation's name", text)
	}
	for i, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch {
		case i < len(kinds[op.Kind].dims) && name == kinds[op.Kind].dims[i]:
			op.Dims[i], err = strconv.ParseInt(value, 10, 64)
		case name == "epsilon":
			op.Epsilon, err = parseBits(value)
		case name == "scale":
			op.Scale, err = parseBits(value)
		case word == "bias":
			op.Bias = true
		case word == "bfloat16":
			op.BFloat16 = true
		case word == "transpose_b":
			op.TransposeB = true
		case word == "mask_k":
			op.MaskK = true
		default:
			return Op{}, fault.Invalidf(verb, "%.60q: unexpected %.40q", text, word)
		}
		if err != nil {
			return Op{}, fault.Invalidf(verb, "%.60q: %.40q is no number", text, word)
		}
	}
	if err := op.Validate(); err != nil {
		return Op{}, err
	}
	if op.String() != text {
		return Op{}, fault.Invalidf(verb, "%.60q: want %.120q", text, op)
	}
	return op, nil
}

func parseBits(text string) (float32, error) {
	bits, err := strconv.ParseUint(text, 16, 32)
	return math.Float32frombits(uint32(bits)), err
}
