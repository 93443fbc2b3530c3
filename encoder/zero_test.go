package encoder_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
)

// G12, R3: an encoder that Open did not give, nil or zero, answers like one that was closed, and
// says which it is. Nothing panics.
func TestNilAndZeroEncoder(t *testing.T) {
	for _, e := range []*encoder.Encoder{nil, {}} {
		_, encode := e.Encode(bg, []string{"a text"})
		_, none := e.Encode(bg, nil)
		_, tokens := e.EncodeTokens(bg, [][]int32{{1, 2}})
		_, score := e.Score(bg, [][2]string{{"a", "b"}})
		for i, err := range []error{encode, none, tokens, score} {
			if !errors.Is(err, kiln.ErrClosed) || !strings.Contains(err.Error(), "the encoder is nil or zero") {
				t.Errorf("answer %d is %v, want ErrClosed of an encoder that is nil or zero", i, err)
			}
		}
		if ids, cut := e.Tokenize("a text"); len(ids) > 0 || cut || e.Info().Dimensions != 0 {
			t.Errorf("%v has something", e)
		}
		for range 2 {
			if err := e.Close(bg); err != nil {
				t.Errorf("closed: %v", err)
			}
		}
	}
}
