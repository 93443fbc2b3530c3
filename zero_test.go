package kiln_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
)

// G12, R3: what no call of the package gave, nil or zero, answers like what was
// closed, or says what is wanted. Nothing panics.
func TestNilAndZeroValues(t *testing.T) {
	shape := must(kiln.ShapeOf([]int64{1}))
	for _, r := range []*kiln.Runtime{nil, {}} {
		_, session := r.Session(kiln.SessionConfig{})
		_, executor := r.Executor(ctx, newCounted(), 0)
		_, warm := r.Warm(ctx, strings.NewReader(""), nil)
		wants(t, kiln.ErrClosed, session, executor, warm)
		says(t, "the runtime is nil or zero", session, executor, warm)
		wants(t, kiln.ErrInvalid, r.Record(new(bytes.Buffer)))
		if err := r.Close(ctx); err != nil || r.Artefacts() != nil || r.Store() != nil || r.Constants() != nil || r.Stats() != (kiln.Stats{}) ||
			r.Sessions() != nil || r.Executors() != nil || r.Refusals() != nil || len(r.Settings()) == 0 {
			t.Errorf("%v: it holds something; closed: %v", r, err)
		}
	}
	for _, s := range []*kiln.Session{nil, {}} {
		_, group := s.Group(ctx, []int64{1})
		wants(t, kiln.ErrClosed, group, s.Announce(shape), s.Hold("o"), s.Reset(ctx, "o"), s.SetGroups(ctx, kiln.LimitOf(1)), s.SetBytes(ctx, kiln.LimitOf(1)))
		says(t, "the session is nil or zero", group, s.Announce(shape), s.Reset(ctx, "o"))
		if err := errors.Join(s.ResetAll(ctx), s.Close(ctx)); err != nil && !errors.Is(err, kiln.ErrClosed) || s.Name() != "" || s.Stats().Groups != 0 || s.Cache() == nil {
			t.Errorf("%v: it holds something; closed: %v", s, err)
		}
		s.Intern("name")
	}
	freed := 0
	for _, g := range []*kiln.Group{nil, {}} {
		_, get := kiln.Get(ctx, g, "n", of("k", 1))
		_, kernel := g.Kernel(ctx, "n", nil, source("k"))
		_, take := kiln.Take[int](ctx, g, "n")
		wants(t, kiln.ErrInvalid, get, kernel, take, kiln.Set(ctx, g, "n", kiln.Made[int]{Free: func() { freed++ }}))
		_, byName := kiln.Lookup[int](g, "n")
		_, byID := kiln.LookupID[int](g, kiln.NameID{})
		_, held := kiln.Refer[int](g, kiln.NameID{})
		_, leased := kiln.Acquire[int](g, "n")
		if byName || byID || held || leased || g.Remove("n") || g.Shape() != (kiln.Shape{}) {
			t.Errorf("%v has something", g)
		}
		g.Close()
	}
	if freed != 2 {
		t.Errorf("%d values were freed, want 2", freed)
	}
	for _, l := range []*kiln.Lease[int]{nil, {}} {
		if l.End(); l.Value() != 0 {
			t.Errorf("%v has a value", l)
		}
	}
	var ref kiln.Ref[int]
	if _, ok := ref.Acquire(); ok || ref.Resident() || ref.Value() != 0 || ref.Bytes() != 0 || ref.Cost() != 0 {
		t.Error("the zero Ref has something")
	}
	r := open(t, kiln.Config{})
	g := group(t, session(t, r), 1)
	defer g.Close()
	if _, ok := kiln.LookupID[int](g, kiln.NameID{}); ok {
		t.Error("the zero NameID is found")
	}
	_, err := kiln.Get(context.Background(), g, "n", kiln.Recipe[int]{})
	_, none := g.Kernel(ctx, "n", nil, source("k"))
	wants(t, kiln.ErrInvalid, err, none)
}

func says(t *testing.T, want string, all ...error) {
	t.Helper()
	for i, err := range all {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answer %d is %v, want %q", i, err, want)
		}
	}
}

func wants(t *testing.T, want error, all ...error) {
	t.Helper()
	for i, err := range all {
		if !errors.Is(err, want) {
			t.Errorf("answer %d is %v, want %v", i, err, want)
		}
	}
}
