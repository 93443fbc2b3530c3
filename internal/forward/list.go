package forward

import (
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/weights"
)

// List is a model's op list: its operations in the order they run, with symbolic
// shapes, and the names and shapes of its weights. It is immutable and safe for
// concurrent use.
type List struct{ model *oplist.Model }

// Parse reads an op list from its text; name is what errors call it. A list that
// is not well-formed, or not an encoder of the BERT family, matches
// fault.ErrInvalid, and the error names the line and the field.
func Parse(name string, text []byte) (*List, error) { return wrap(oplist.Parse(name, text)) }

// ReadList reads the op list in a file.
func ReadList(file string) (*List, error) { return wrap(oplist.Open(file)) }

func wrap(model *oplist.Model, err error) (*List, error) {
	if err != nil {
		return nil, err
	}
	return &List{model}, nil
}

// Name is the model's name, as the list's header gives it.
func (l *List) Name() string { return l.model.Name }

// MaxTokens is the length of the longest request that the model takes.
func (l *List) MaxTokens() int { return l.model.MaxTokens }

// Tokens makes the ids of a request of n tokens from a seed, as a tokenizer would
// give them: [CLS], words, [SEP]. The same seed and place give the same ids on
// every machine. It returns nil for n below 1.
func (l *List) Tokens(seed uint64, place, n int) []int32 {
	return weights.Tokens(seed, place, n, l.model.Vocab)
}
