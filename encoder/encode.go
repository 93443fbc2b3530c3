package encoder

import (
	"context"
	"fmt"
	"math"

	"github.com/kiln-cache/kiln/encoder/internal/folder"
	"github.com/kiln-cache/kiln/fault"
)

// Encode gives an embedding for each text, in their order. The prompt of the encoder
// stands before each text, a text longer than Info.MaxTokens is cut, and the empty text
// has an embedding, too. A byte that is not UTF-8 counts as U+FFFD. The bits of an
// embedding depend on its text alone, not on the others or on who computes beside it
// (SPEC E8). Texts of all calls wait in one line, in which calls take turns.
//
// ErrClosed after Close, and a context's error when ctx ends. The Key of the *fault.Error
// is the text that failed, as texts[3]; it is ErrInvalid where the tokenizer has a token
// that the model has no row for.
func (e *Encoder) Encode(ctx context.Context, texts []string) ([][]float32, error) {
	ids := make([][]int32, len(texts))
	for i, text := range texts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ids[i], _ = e.Tokenize(text)
	}
	return e.encode(ctx, ids, e.omitted)
}

// Tokenize gives the ids that Encode computes for a text, [CLS], prompt and [SEP] among
// them, and whether the text was cut.
func (e *Encoder) Tokenize(text string) (ids []int32, cut bool) {
	text = e.prompt + text
	if e.folder.Lower {
		text = lower(text)
	}
	return e.tokens.Encode(nil, text, e.info.MaxTokens)
}

// EncodeTokens is Encode for texts that are tokens already: all of their ids, [CLS] and
// [SEP] among them, to which no prompt is added and of which nothing is cut. A text
// without a token or with more than Info.MaxTokens, and an id that the model has no row
// for, match ErrInvalid before anything is computed.
func (e *Encoder) EncodeTokens(ctx context.Context, texts [][]int32) ([][]float32, error) {
	return e.encode(ctx, texts, 0)
}

// encode computes texts. Pooling leaves out their first tokens, omitted many.
func (e *Encoder) encode(ctx context.Context, texts [][]int32, omitted int) ([][]float32, error) {
	for i, ids := range texts {
		if err := e.check(ids); err != nil {
			return nil, about(i, err)
		}
	}
	if len(texts) == 0 {
		return [][]float32{}, nil
	}
	c := newCall(texts, omitted)
	if err := e.submit(ctx, c); err != nil {
		return nil, err
	}
	return c.out, nil
}

func about(text int, err error) error {
	return &fault.Error{Op: "encoder: encode", Key: fmt.Sprintf("texts[%d]", text), Err: err}
}

func (e *Encoder) check(ids []int32) error {
	if len(ids) == 0 || len(ids) > e.info.MaxTokens {
		return fmt.Errorf("%w: %d tokens, want 1 to %d", fault.ErrInvalid, len(ids), e.info.MaxTokens)
	}
	for at, id := range ids {
		if id < 0 || int(id) >= e.folder.Vocabulary {
			return fmt.Errorf("%w: token %d is %d, want an id from 0 to %d", fault.ErrInvalid, at, id, e.folder.Vocabulary-1)
		}
	}
	return nil
}

// pool makes one embedding of a row for each token. Sums are of float64, so that they
// round once.
func (e *Encoder) pool(rows []float32) []float32 {
	width := e.info.Dimensions
	out := make([]float32, width)
	sums := make([]float64, width)
	switch folder.Pooling(e.info.Pooling) {
	case folder.Class:
		for i, v := range rows[:width] {
			sums[i] = float64(v)
		}
	case folder.Max:
		for i := range sums {
			sums[i] = math.Inf(-1)
		}
		for at := 0; at < len(rows); at += width {
			for i, v := range rows[at : at+width] {
				sums[i] = max(sums[i], float64(v))
			}
		}
	case folder.Mean:
		for at := 0; at < len(rows); at += width {
			for i, v := range rows[at : at+width] {
				sums[i] += float64(v)
			}
		}
		tokens := float64(len(rows) / width)
		for i := range sums {
			sums[i] /= tokens
		}
	}
	scale := 1.0
	if e.info.Normalized {
		square := 0.0
		for _, v := range sums {
			square += v * v
		}
		scale = max(math.Sqrt(square), 1e-12) // as PyTorch does where all are 0
	}
	for i, v := range sums {
		out[i] = float32(v / scale)
	}
	return out
}
