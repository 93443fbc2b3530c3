package shapegroups

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math/bits"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// ErrInvalid is what a bad dimension, text or bucketing unwraps to; nothing was
// changed.
var ErrInvalid = fault.ErrInvalid

// Limits of a shape. They lie far above any tensor of today and keep every sum
// and every allocation that a hostile text can ask for small.
const (
	MaxInputs = 1 << 10 // lists in a shape
	MaxRank   = 64      // dimensions in a list
	MaxDim    = 1 << 48 // a dimension
)

// Shape is the input shape of a run: one list of dimensions for each input. It
// is one canonical byte string made once, so == and use as a map key compare
// that encoding (SPEC K1) and allocate nothing. The zero Shape is no shape.
type Shape struct {
	// key is uvarint(inputs), then for each input uvarint(rank) and its
	// dimensions as uvarints: list lengths are part of it.
	key  string
	hash uint64 // of key: made once, like it
}

var seed = maphash.MakeSeed()

// Of makes the shape of the given inputs, each a list of dimensions of at least
// 0. An input without dimensions is a scalar. No inputs at all, a negative or
// absurd dimension, and a shape of more than 2^63-1 elements are ErrInvalid.
func Of(inputs ...[]int64) (Shape, error) {
	const op = "shapegroups: of"
	if len(inputs) == 0 {
		return Shape{}, fault.Invalidf(op, "a shape needs at least one input, as in [[1,2],[3]]")
	}
	if len(inputs) > MaxInputs {
		return Shape{}, fault.Invalidf(op, "%d inputs are more than %d", len(inputs), MaxInputs)
	}
	var room [64]byte
	key := binary.AppendUvarint(room[:0], uint64(len(inputs)))
	var total uint64
	for i, dims := range inputs {
		if len(dims) > MaxRank {
			return Shape{}, fault.Invalidf(op, "input %d has %d dimensions, more than %d", i, len(dims), MaxRank)
		}
		key = binary.AppendUvarint(key, uint64(len(dims)))
		for _, d := range dims {
			if d < 0 || d > MaxDim {
				return Shape{}, fault.Invalidf(op, "dimension %d of input %d must be in 0..%d", d, i, int64(MaxDim))
			}
			key = binary.AppendUvarint(key, uint64(d))
		}
		n, ok := product(dims)
		if total += n; !ok || total > 1<<63-1 {
			return Shape{}, fault.Invalidf(op, "more than 2^63-1 elements up to input %d", i)
		}
	}
	s := string(key)
	return Shape{s, maphash.String(seed, s)}, nil
}

// N is the shape [[n]]: one input of one dimension.
func N(n int64) (Shape, error) { return Of([]int64{n}) }

// FromKey is the shape with that Key. The bytes may come from anywhere: what Of
// would not have made is ErrInvalid.
func FromKey(key string) (Shape, error) {
	const op = "shapegroups: from key"
	bad := func() (Shape, error) {
		return Shape{}, fault.Invalidf(op, "these %d bytes are not the key of a shape", len(key))
	}
	rest := []byte(key)
	next := func(most uint64) (uint64, bool) {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > most || n > 1 && rest[n-1] == 0 { // a longer form than needed is a second key
			return 0, false
		}
		rest = rest[n:]
		return v, true
	}
	count, ok := next(MaxInputs)
	if !ok || count > uint64(len(rest)) {
		return bad()
	}
	inputs := make([][]int64, count)
	for i := range inputs {
		rank, ok := next(MaxRank)
		if !ok || rank > uint64(len(rest)) {
			return bad()
		}
		inputs[i] = make([]int64, rank)
		for k := range inputs[i] {
			d, ok := next(MaxDim)
			if !ok {
				return bad()
			}
			inputs[i][k] = int64(d)
		}
	}
	if len(rest) != 0 {
		return bad()
	}
	return Of(inputs...)
}

// Parse reads the text of String, "[[1,2],[3]]" without blanks, or a plain
// decimal number N for [[N]].
func Parse(text string) (Shape, error) {
	bad := func(want string) (Shape, error) {
		return Shape{}, fault.Invalidf("shapegroups: parse", "shape %.64q: %s, as in [[1,2],[3]] or 7", text, want)
	}
	if !strings.HasPrefix(text, "[") {
		n, ok := decimal(text)
		if !ok {
			return bad("want a number or lists of numbers")
		}
		return N(n)
	}
	body, ok := strings.CutPrefix(text, "[[")
	body, closed := strings.CutSuffix(body, "]]")
	if !ok || !closed {
		return bad("want lists in brackets")
	}
	if strings.Count(body, "],[") >= MaxInputs {
		return bad("too many lists")
	}
	var inputs [][]int64
	for list := range strings.SplitSeq(body, "],[") {
		dims := []int64{}
		if list != "" {
			for word := range strings.SplitSeq(list, ",") {
				n, ok := decimal(word)
				if !ok || len(dims) == MaxRank {
					return bad("want plain decimal numbers, not too many of them")
				}
				dims = append(dims, n)
			}
		}
		inputs = append(inputs, dims)
	}
	return Of(inputs...)
}

// decimal reads digits without sign, blank or leading zero, at most MaxDim.
func decimal(word string) (int64, bool) {
	if word == "" || word[0] < '0' || word[0] > '9' || word[0] == '0' && word != "0" {
		return 0, false
	}
	n, err := strconv.ParseInt(word, 10, 64)
	return n, err == nil && n <= MaxDim
}

// product multiplies dims; false says that it does not fit 63 bits.
func product(dims []int64) (uint64, bool) {
	n, ok := uint64(1), true
	for _, d := range dims {
		if d == 0 {
			return 0, true
		}
		hi, lo := bits.Mul64(n, uint64(d))
		ok = ok && hi == 0 && lo < 1<<63
		n = lo
	}
	return n, ok
}

// Key is the canonical encoding: equal for equal shapes and different for
// different ones. It is not meant for print.
func (s Shape) Key() string { return s.key }

// Hash is a hash of Key, another one in each process: for tables of shapes.
func (s Shape) Hash() uint64 { return s.hash }

// IsZero says that s is the zero Shape, which Of never makes.
func (s Shape) IsZero() bool { return s.key == "" }

// Dims is a fresh copy of the lists that s was made of, nil for the zero Shape.
func (s Shape) Dims() [][]int64 {
	var inputs [][]int64
	for rank, rest := range s.inputs() {
		dims := make([]int64, rank)
		for k := range dims {
			dims[k], rest = cut(rest)
		}
		inputs = append(inputs, dims)
	}
	return inputs
}

// Elements is the number of elements of all inputs together. It walks the
// encoding and allocates nothing.
func (s Shape) Elements() int64 {
	total := int64(0)
	for rank, rest := range s.inputs() {
		n := int64(1)
		for range rank {
			var d int64
			if d, rest = cut(rest); d == 0 {
				n = 0
				break
			}
			n *= d
		}
		total += n
	}
	return total
}

// String is the text that Parse reads: "[[1,2],[3]]".
func (s Shape) String() string {
	var room [64]byte
	text := append(room[:0], '[')
	for rank, rest := range s.inputs() {
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(text, '[')
		for k := range rank {
			if k > 0 {
				text = append(text, ',')
			}
			var d int64
			d, rest = cut(rest)
			text = strconv.AppendInt(text, d, 10)
		}
		text = append(text, ']')
	}
	return string(append(text, ']'))
}

// inputs walks the encoding: the rank of each input and the bytes that begin
// with its dimensions.
func (s Shape) inputs() iter.Seq2[int64, string] {
	return func(yield func(int64, string) bool) {
		if s.key == "" {
			return
		}
		count, rest := cut(s.key)
		for range count {
			var rank int64
			if rank, rest = cut(rest); !yield(rank, rest) {
				return
			}
			for range rank {
				_, rest = cut(rest)
			}
		}
	}
}

// cut takes one uvarint off a key, which Of made: it is sound.
func cut(key string) (int64, string) {
	v, shift := uint64(0), 0
	for i := 0; ; i++ {
		b := key[i]
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return int64(v), key[i+1:]
		}
		shift += 7
	}
}
