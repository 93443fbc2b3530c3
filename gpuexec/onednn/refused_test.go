package onednn

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// R3: the error of a direction or an algorithm that there is none of lists those that there are.
func TestErrorsListWhatIsWanted(t *testing.T) {
	r := open1(t, limit.Limit{})
	shape := Dense("f32", 4, 6)
	for want, s := range map[string]primitive.Spec{
		`"forward_training"`: spec("eltwise", "forwards", "relu", nil, shape, shape),
		`"mul"`:              spec("binary", "", "plus", nil, shape, shape, shape),
	} {
		if _, _, err := r.Descriptor(bg, &s); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrInvalid with %s", err, want)
		}
	}
}
