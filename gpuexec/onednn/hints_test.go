package onednn

import (
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// D5, E3: hints of another shape are not those of the forward operation: 2.6 would take their
// workspace for one of the backward operation's size.
func TestHintsOfAnotherShape(t *testing.T) {
	r := open1(t, limit.Limit{})
	params := append([]param{ints("kernel", 3, 3)}, spatial...)
	small := r.kernel(spec("pooling", "forward", "max", params, Dense("f32", 1, 16, 7, 7), Dense("f32", 1, 16, 4, 4)))
	r.refused(r.hinted(spec("pooling", "backward_data", "max", params, Dense("f32", 1, 16, 9, 9), Dense("f32", 1, 16, 5, 5)), small), fault.ErrInvalid)
	x, y, w := Dense("f32", 4, 16), Dense("f32", 4, 8), Dense("f32", 8, 16)
	inner := r.kernel(spec("inner_product", "forward", "", nil, x, w, tensor{}, y))
	r.refused(r.hinted(spec("inner_product", "backward_weights", "", nil, Dense("f32", 4, 17), Dense("f32", 8, 17), tensor{}, y), inner), fault.ErrInvalid)
	r.kernel(r.hinted(spec("inner_product", "backward_weights", "", nil, x, w, Dense("f32", 8), y), inner)) // a bias may be wanted backward alone
}
