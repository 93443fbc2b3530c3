package encoder

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/encoder/internal/folder"
	"github.com/kiln-cache/kiln/fault"
)

// Encode gives an embedding for each text, in their order. The prompt of the encoder
// stands before each text, a text longer than Info.MaxTokens is cut, and the empty text
// has an embedding, too. A byte that is not UTF-8 counts as U+FFFD. The bits of an
// embedding depend on its text alone, not on the others or on who computes beside it
// (SPEC E8). Texts of all calls wait in one line, in which calls take turns.
//
// A cross-encoder (Info.Scores) was trained for Score. Its embeddings, the mean of its
// outputs unless Config.Pooling says otherwise, say little about a text.
//
// ErrClosed after Close, and a context's error when ctx ends. The Key of the *fault.Error
// is the text that failed, as texts[3]; it is ErrInvalid where the tokenizer has a token
// that the model has no row for.
func (e *Encoder) Encode(ctx context.Context, texts []string) ([][]float32, error) {
	if e.none() {
		return nil, errNone
	}
	ids := make([][]int32, len(texts))
	for i, text := range texts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ids[i], _ = e.Tokenize(text)
	}
	return e.encode(ctx, newCall("texts", ids, nil, func(rows []float32) []float32 {
		return e.pool(rows[min(e.omitted*e.info.Dimensions, len(rows)-e.info.Dimensions):])
	}))
}

// Tokenize gives the ids that Encode computes for a text, [CLS], prompt and [SEP] among
// them, and whether the text was cut.
func (e *Encoder) Tokenize(text string) (ids []int32, cut bool) {
	if e.none() {
		return nil, false
	}
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
	if e.none() {
		return nil, errNone
	}
	return e.encode(ctx, newCall("texts", texts, nil, e.pool))
}

// Score gives a score for each pair of texts, as a question and a passage, in their order,
// where the model is a cross-encoder (Info.Scores): what its classifier gives, through a
// sigmoid unless the folder says otherwise. Of a pair with more than Info.MaxTokens the
// longer text loses tokens first. The prompt of the encoder, if it has one, stands before
// the first text of each pair. The bits of a score depend on its pair alone (SPEC E8).
//
// ErrUnsupported where the model is no cross-encoder; other errors are those of Encode,
// with a Key such as pairs[3].
func (e *Encoder) Score(ctx context.Context, pairs [][2]string) ([]float32, error) {
	if e.none() {
		return nil, errNone
	}
	head := e.folder.Head
	if head == nil {
		return nil, &fault.Error{Op: "encoder: score", Err: fmt.Errorf("%w: the model has no classifier of one label: open the folder of a cross-encoder", fault.ErrUnsupported)}
	}
	ids, types := make([][]int32, len(pairs)), make([][]int32, len(pairs))
	for i, pair := range pairs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pair[0] = e.prompt + pair[0]
		if e.folder.Lower {
			pair = [2]string{lower(pair[0]), lower(pair[1])}
		}
		ids[i], types[i], _ = e.tokens.EncodePair(nil, pair[0], pair[1], e.info.MaxTokens)
	}
	rows, err := e.encode(ctx, newCall("pairs", ids, types, func(rows []float32) []float32 {
		return []float32{head.Score(rows[:e.info.Dimensions])}
	}))
	return slices.Concat(rows...), err
}

// encode computes the texts of a call.
func (e *Encoder) encode(ctx context.Context, c *call) ([][]float32, error) {
	for i, ids := range c.texts {
		if err := e.check(ids); err != nil {
			return nil, c.about(i, err)
		}
	}
	if len(c.texts) == 0 {
		return [][]float32{}, nil
	}
	if err := e.submit(ctx, c); err != nil {
		return nil, err
	}
	return c.out, nil
}

func (c *call) about(text int, err error) error {
	return &fault.Error{Op: "encoder: encode", Key: fmt.Sprintf("%s[%d]", c.what, text), Err: err}
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
