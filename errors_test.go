package kiln_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
)

// R3: an error of the door begins with its operation and the key that was asked for,
// whichever rooms it came through; what it wraps stays, also another key's error.
func TestErrorsOfTheDoor(t *testing.T) {
	r := open(t, kiln.Config{})
	s := session(t, r)
	mine := errors.New("no such instruction")
	ended, end := context.WithCancel(ctx)
	end()
	fails := kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{}, mine }}
	g := group(t, s, 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "there", of("here", 1)))
	outer := kiln.Recipe[int]{Key: "outer", Make: func(ctx context.Context) (kiln.Made[int], error) {
		_, err := kiln.Get(ctx, g, "inner name", fails)
		return kiln.Made[int]{}, err
	}}
	for what, c := range map[string]struct {
		ctx    context.Context
		recipe kiln.Recipe[int]
		is     error
		text   string
	}{
		"a creator's": {ctx, fails, mine, "kiln: get on go k: no such instruction"},
		"a context's": {ended, fails, context.Canceled, "kiln: get on go k: context canceled"},
		"nested":      {ctx, outer, mine, "kiln: get on go outer: kiln: get on go k: no such instruction"},
	} {
		_, err := kiln.Get(c.ctx, g, "name", c.recipe)
		var typed *kiln.Error
		if !errors.Is(err, c.is) || !errors.As(err, &typed) || typed.Key != c.recipe.Key || typed.Backend != kiln.DefaultBackend || err.Error() != c.text {
			t.Errorf("%s: %v, of the key %q", what, err, typed.Key)
		}
	}
	if _, err := kiln.Get(ctx, g, "another", kiln.Recipe[string]{Key: "here", Make: of("here", "").Make}); !errors.Is(err, kiln.ErrInvalid) || strings.Count(err.Error(), "kiln:") != 1 {
		t.Errorf("of another type: %v", err)
	}
}
