package gemm

import (
	"math"

	"github.com/kiln-cache/kiln/fault"
)

// ErrInvalid marks arguments that do not fit each other; nothing was computed.
var ErrInvalid = fault.ErrInvalid

// Args is one product C = A·B + bias of float32 matrices: A is M x K, B is
// K x N, C is M x N. Any of M, N, K may be 0; with K = 0 every row of C becomes
// the bias. Calls only read A, B and Bias, so any number of goroutines may
// share those; C must overlap none of them.
type Args struct {
	M, N, K int

	A   []float32 // row-major
	LDA int       // numbers from one row of A to the next, at least K
	B   []float32 // packed by the same layout, PackedLen(K, N) numbers
	C   []float32 // row-major; what lies between the rows is left alone
	LDC int       // numbers from one row of C to the next, at least N

	// Bias holds N numbers that the chains of the columns start with; nil
	// starts them with +0.
	Bias []float32
	// Accumulate starts the chains with what C holds instead: C += A·B.
	Accumulate bool
}

// Validate returns what does not fit, as an ErrInvalid.
func (s *Set) Validate(x *Args) error {
	const op = "gemm: validate"
	switch {
	case x.M < 0 || x.N < 0 || x.K < 0:
		return fault.Invalidf(op, "M, N, K are %d, %d, %d: none may be negative", x.M, x.N, x.K)
	case x.LDA < x.K:
		return fault.Invalidf(op, "LDA is %d: rows of A hold K = %d numbers", x.LDA, x.K)
	case x.LDC < x.N:
		return fault.Invalidf(op, "LDC is %d: rows of C hold N = %d numbers", x.LDC, x.N)
	case x.Bias != nil && x.Accumulate:
		return fault.Invalidf(op, "a chain starts with either Bias or C: leave one out")
	case x.Bias != nil && len(x.Bias) != x.N:
		return fault.Invalidf(op, "Bias has %d numbers: one per column makes %d", len(x.Bias), x.N)
	}
	if need, ok := span(x.M, x.K, x.LDA); !ok || len(x.A) < need {
		return fault.Invalidf(op, "A has %d numbers: %d rows of %d, %d apart, take %d", len(x.A), x.M, x.K, x.LDA, need)
	}
	if need, ok := span(x.M, x.N, x.LDC); !ok || len(x.C) < need {
		return fault.Invalidf(op, "C has %d numbers: %d rows of %d, %d apart, take %d", len(x.C), x.M, x.N, x.LDC, need)
	}
	if need := s.PackedLen(x.K, x.N); len(x.B) != need {
		return fault.Invalidf(op, "B has %d numbers: %d x %d packed as %s takes %d", len(x.B), x.K, x.N, s.Layout(), need)
	}
	return nil
}

// span is the count of numbers from the first to the last of a strided matrix;
// false if it overflows.
func span(rows, columns, stride int) (int, bool) {
	if rows == 0 || columns == 0 {
		return 0, true
	}
	if stride != 0 && rows-1 > (math.MaxInt-columns)/stride {
		return math.MaxInt, false
	}
	return (rows-1)*stride + columns, true
}
