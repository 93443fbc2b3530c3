package shapegroups

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// DefaultSteps is K of geometric:K where none is given.
const DefaultSteps = 8

// rounding is how a dimension grows.
type rounding uint8

const (
	exact rounding = iota
	multiple
	pow2
	geometric
)

// Axis names a dimension of a shape: the input's place and the dimension's in
// it, both from 0. Counted from the end, the last dimension is -1.
type Axis struct{ Input, Dim int }

// Bucketing maps the shape that is asked to the shape that is compiled, so that
// few shapes are compiled (SPEC S4). The zero Bucketing is exact. By default it
// rounds up the last dimension of every input. Values are immutable.
type Bucketing struct {
	round rounding
	n     int64 // N of multiple, K of geometric
	axes  []Axis
}

// ParseBucketing reads "exact", "multiple:N", "pow2", "geometric:K" or
// "geometric" (K = 8), N and K being at least 1.
func ParseBucketing(text string) (Bucketing, error) {
	word, number, given := strings.Cut(text, ":")
	n, ok := int64(0), true
	if given {
		n, ok = decimal(number)
		ok = ok && n > 0
	}
	switch {
	case !ok:
	case word == "exact" && !given:
		return Bucketing{n: 1}, nil // given, unlike the zero Bucketing
	case word == "pow2" && !given:
		return Bucketing{round: pow2}, nil
	case word == "multiple" && given:
		return Bucketing{round: multiple, n: n}, nil
	case word == "geometric" && !given:
		return Bucketing{round: geometric, n: DefaultSteps}, nil
	case word == "geometric":
		return Bucketing{round: geometric, n: n}, nil
	}
	return Bucketing{}, fault.Invalidf("shapegroups: parse bucketing",
		"%.64q is none of exact, multiple:N, pow2, geometric:K, with N and K of at least 1", text)
}

// On is b for the named dimensions only, in place of the last one of each input.
func (b Bucketing) On(axes ...Axis) (Bucketing, error) {
	for _, a := range axes {
		if a.Input < 0 || a.Input >= MaxInputs || a.Dim < -MaxRank || a.Dim >= MaxRank {
			return Bucketing{}, fault.Invalidf("shapegroups: bucketing on", "no dimension %d of input %d can exist", a.Dim, a.Input)
		}
	}
	b.axes = append([]Axis{}, axes...)
	return b, nil
}

// String is the text that ParseBucketing reads; named dimensions are not in it.
func (b Bucketing) String() string {
	switch b.round {
	case multiple:
		return "multiple:" + strconv.FormatInt(b.n, 10)
	case pow2:
		return "pow2"
	case geometric:
		return "geometric:" + strconv.FormatInt(b.n, 10)
	}
	return "exact"
}

// IsZero reports whether b is the zero Bucketing: exact, and not said so.
func (b Bucketing) IsZero() bool { return b.round == exact && b.n == 0 && b.axes == nil }

// Exact says that every shape maps to itself.
func (b Bucketing) Exact() bool { return b.round == exact }

// Map gives the shape that is compiled for asked. ErrInvalid: a named dimension
// is not there, or the rounded shape is beyond the limits of a Shape.
func (b Bucketing) Map(asked Shape) (Shape, error) {
	const op = "shapegroups: bucket"
	if b.round == exact || asked.IsZero() {
		return asked, nil
	}
	inputs := asked.Dims()
	grow := func(dim *int64) error {
		up := b.Round(*dim)
		if up > MaxDim {
			return fault.Invalidf(op, "dimension %d rounded by %s is above %d", *dim, b, int64(MaxDim))
		}
		*dim = up
		return nil
	}
	if b.axes == nil {
		for _, dims := range inputs {
			if len(dims) == 0 {
				continue // a scalar has nothing to round
			}
			if err := grow(&dims[len(dims)-1]); err != nil {
				return Shape{}, err
			}
		}
		return Of(inputs...)
	}
	asIs := asked.Dims() // a dimension named twice, as 1 and -1, is rounded once
	for _, a := range b.axes {
		if a.Input >= len(inputs) {
			return Shape{}, fault.Invalidf(op, "shape %s has no input %d", asked, a.Input)
		}
		dims, k := inputs[a.Input], a.Dim
		if k < 0 {
			k += len(dims)
		}
		if k < 0 || k >= len(dims) {
			return Shape{}, fault.Invalidf(op, "input %d of shape %s has no dimension %d", a.Input, asked, a.Dim)
		}
		dims[k] = asIs[a.Input][k]
		if err := grow(&dims[k]); err != nil {
			return Shape{}, err
		}
	}
	return Of(inputs...)
}

// Round rounds one dimension of 0..MaxDim up; 0 stays 0. The result is above
// MaxDim where rounding leaves the limits.
func (b Bucketing) Round(n int64) int64 {
	if n <= 0 {
		return n
	}
	step := int64(1)
	switch b.round {
	case multiple:
		step = b.n
	case pow2:
		return 1 << bits.Len64(uint64(n-1))
	case geometric:
		step = max(1, (int64(1)<<(bits.Len64(uint64(n))-1))/b.n)
	}
	return (n + step - 1) / step * step // both at most 2^48: no overflow
}

// Padding counts elements of the shapes asked and of the shapes compiled for
// them (SPEC S4). The zero value is ready; it belongs to one goroutine.
type Padding struct{ Asked, Compiled int64 }

// Add counts one run. Sums stop at 2^63-1.
func (p *Padding) Add(asked, compiled Shape) {
	p.Asked = sum(p.Asked, asked.Elements())
	p.Compiled = sum(p.Compiled, compiled.Elements())
}

func sum(a, b int64) int64 {
	if a > 1<<63-1-b {
		return 1<<63 - 1
	}
	return a + b
}
