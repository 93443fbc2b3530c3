package refnet

import (
	"math"

	"github.com/kiln-cache/kiln/fault"
)

// Difference is how far an output is from the reference.
type Difference struct {
	Absolute float64 // largest absolute difference
	Relative float64 // that over the largest absolute value of the reference
}

// Compare takes one request's output and its reference. Values that are not
// finite make the difference infinite. Outputs of different sizes match
// fault.ErrInvalid.
func Compare(got []float32, want []float64) (Difference, error) {
	if len(got) != len(want) {
		return Difference{}, fault.Invalidf("refnet: compare", "an output of %d values and a reference of %d", len(got), len(want))
	}
	var d Difference
	largest := 0.0
	for i, w := range want {
		diff := math.Abs(float64(got[i]) - w)
		if math.IsNaN(diff) {
			diff = math.Inf(1)
		}
		d.Absolute = max(d.Absolute, diff)
		largest = max(largest, math.Abs(w))
	}
	if d.Absolute > 0 {
		d.Relative = d.Absolute / largest // infinite where the reference is 0
	}
	return d, nil
}
