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

// R3: so does one of Set, Take, Group and the calls of a session.
func TestErrorsOfNames(t *testing.T) {
	r := open(t, kiln.Config{})
	s := must(r.Session(kiln.SessionConfig{Bytes: kiln.LimitOf(10)}))
	g := group(t, s, 1)
	set := func(name string, bytes int64) error { return kiln.Set(ctx, g, name, kiln.Made[int]{Bytes: bytes}) }
	take := func(name string) error { _, err := kiln.Take[int](ctx, g, name); return err }
	check := func(err, is error, text string) {
		t.Helper()
		var typed *kiln.Error
		if !errors.Is(err, is) || !errors.As(err, &typed) || !strings.HasPrefix(err.Error(), text) ||
			strings.Contains(err.Error(), "sessioncache:") || strings.Contains(err.Error(), "shapegroups:") {
			t.Errorf("%v, want %q", err, text)
		}
	}
	if err := set("there", 1); err != nil {
		t.Fatal(err)
	}
	check(set("large", 11), kiln.ErrTooLarge, "kiln: set large: ")
	check(set("negative", -1), kiln.ErrInvalid, "kiln: set negative: ")
	check(set("", 1), kiln.ErrInvalid, "kiln: set: ")
	check(take("absent"), kiln.ErrNotFound, "kiln: take absent: ")
	g.Close()
	check(set("late", 1), kiln.ErrClosed, "kiln: set late: ")
	check(take("there"), kiln.ErrClosed, "kiln: take there: ")
	_, err := s.Group(ctx, []int64{-1})
	check(err, kiln.ErrInvalid, "kiln: group: ")
	check(s.Announce(kiln.Shape{}), kiln.ErrInvalid, "kiln: announce: ")
	check(s.Hold(""), kiln.ErrInvalid, "kiln: hold: ")
	check(s.Reset(ctx, ""), kiln.ErrInvalid, "kiln: reset: ")
	check(s.SetGroups(ctx, kiln.LimitOf(-1)), kiln.ErrInvalid, "kiln: set groups: ")
	check(s.SetBytes(ctx, kiln.Limit{}), kiln.ErrInvalid, "kiln: set bytes: ")
	ended, end := context.WithCancel(ctx)
	end()
	check(s.ResetAll(ended), context.Canceled, "kiln: reset all: ")
	_, err = r.Session(kiln.SessionConfig{Policy: "mru"})
	check(err, kiln.ErrInvalid, "kiln: session: ")
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = s.Group(ctx, []int64{1})
	check(err, kiln.ErrClosed, "kiln: group [[1]]: ")
	check(s.Announce(), kiln.ErrClosed, "kiln: announce: ")
	check(s.Hold("owner"), kiln.ErrClosed, "kiln: hold owner: ")
	check(s.Reset(ctx, "owner"), kiln.ErrClosed, "kiln: reset owner: ")
	check(s.ResetAll(ctx), kiln.ErrClosed, "kiln: reset all: ")
	check(s.SetGroups(ctx, kiln.LimitOf(1)), kiln.ErrClosed, "kiln: set groups: ")
	check(s.SetBytes(ctx, kiln.LimitOf(1)), kiln.ErrClosed, "kiln: set bytes: ")
}
