package encoder

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/encoder/internal/folder"
	"github.com/kiln-cache/kiln/fault"
)

// Encode gives an embedding for each text, in their order. The prompt of the encoder
// stands before each text, a text longer than Info.MaxTokens is cut, and the empty text
// has an embedding, too. A byte that is not UTF-8 counts as U+FFFD. The bits of an
// embedding depend on its text alone, not on the others or on who computes beside it
// (SPEC E8). Texts are spread over the workers that are free.
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
	out := make([][]float32, len(texts))
	err := e.each(ctx, texts, func(ctx context.Context, i int) error {
		rows, err := e.rows(ctx, texts[i])
		if err == nil {
			out[i] = e.pool(rows[min(omitted, len(texts[i])-1)*e.info.Dimensions:])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
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

// each calls do for every text, on one goroutine a worker. Texts of one length follow
// each other, the longest first, so that workers end together. After an error no text is
// begun, and the first error is given.
func (e *Encoder) each(ctx context.Context, texts [][]int32, do func(ctx context.Context, i int) error) error {
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(texts[b]) - len(texts[a]) })
	caller := ctx
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var next atomic.Int64
	work := func() {
		for ctx.Err() == nil {
			at := int(next.Add(1)) - 1
			if at >= len(order) {
				return
			}
			if err := do(ctx, order[at]); err != nil {
				end(about(order[at], err))
			}
		}
	}
	var others sync.WaitGroup
	for range min(len(texts), cap(e.idle)) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	return cmp.Or(caller.Err(), context.Cause(ctx))
}

// rows computes one text: the outputs of its tokens, one behind another.
func (e *Encoder) rows(ctx context.Context, ids []int32) ([]float32, error) {
	m, err := e.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { e.idle <- m }()
	a, err := m.Run(ctx, [][]int32{ids})
	if err != nil {
		return nil, err
	}
	return a.Output, nil
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
