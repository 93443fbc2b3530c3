package encoder_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
)

// With weights in bfloat16 an encoder computes the model whose kernels are rounded, bit
// for bit, and beside it another one goes on with float32 (K4, K5).
func TestBFloat16(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	exact := b.files() // all its numbers are of bfloat16
	for _, kernel := range b.tensors {
		for i, v := range kernel.values {
			if len(kernel.shape) == 2 && kernel.shape[0] != b.vocabulary && kernel.shape[0] != b.positions && kernel.shape[0] != 2 {
				kernel.values[i] = math.Float32frombits(math.Float32bits(v) + 0x7fff)
			}
		}
	}
	rough := put(t, b.files())
	var got [3][][]float32
	for i, e := range []*encoder.Encoder{open(t, rt, put(t, exact), encoder.Config{}), open(t, rt, rough, encoder.Config{}), open(t, rt, rough, encoder.Config{Weights: "bfloat16"})} {
		var err error
		if got[i], err = e.EncodeTokens(bg, shortTexts); err != nil {
			t.Fatal(err)
		}
	}
	for i := range shortTexts {
		if !slices.Equal(got[2][i], got[0][i]) || slices.Equal(got[1][i], got[0][i]) {
			t.Errorf("text %d: rounded %v, of the rounded model %v, of float32 %v", i, got[2][i][:3], got[0][i][:3], got[1][i][:3])
		}
	}
	if _, err := encoder.Open(bg, rt, rough, encoder.Config{Weights: "float16"}); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("other weights: %v", err)
	}
}

// E8: with weights in bfloat16, too, a text has the same bits alone, in any batch and from
// any worker. How far they are from float64 is in docs/encoder.md.
func TestReferenceInBFloat16(t *testing.T) {
	e := open(t, openRuntime(t), minilm(t), encoder.Config{Weights: "bfloat16"})
	rows := references(t)
	var ids [][]int32
	for _, r := range rows {
		ids = append(ids, r.IDs)
	}
	got, err := e.EncodeTokens(bg, ids)
	if err != nil {
		t.Fatal(err)
	}
	worst, most := 0.0, 0.0
	for i, r := range rows {
		absolute, cosine := apart(got[i], r.embedding())
		if worst, most = max(worst, absolute), max(most, cosine); !(absolute <= 3e-3) || !(cosine <= 3e-4) {
			t.Errorf("row %d of %d tokens: %g apart, 1-cosine %g", i, len(r.IDs), absolute, cosine)
		}
	}
	if worst < 1e-5 {
		t.Errorf("at most %g apart: the weights are not rounded", worst)
	}
	t.Logf("%d rows: at most %.2g apart, 1-cosine %.2g", len(rows), worst, most)
	sameAlone(t, e, ids, got)
}
