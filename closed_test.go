package kiln_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	_ "github.com/kiln-cache/kiln/gpuexec/cpu"
)

// R3, G12: an error after Close says what was closed and what to do.
func TestErrorsAfterCloseSayWhatWasClosed(t *testing.T) {
	r := open(t, kiln.Config{})
	s := session(t, r)
	g := group(t, s, 1)
	get := func() error {
		_, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) { return kiln.Made[int]{}, nil }})
		return err
	}
	set := func() error { return kiln.Set(ctx, g, "m", kiln.Made[int]{Value: 1}) }
	take := func() error { _, err := kiln.Take[int](ctx, g, "m"); return err }
	says := func(want string, calls ...func() error) {
		t.Helper()
		for i, call := range calls {
			if err := call(); !errors.Is(err, kiln.ErrClosed) || !strings.Contains(err.Error(), want) {
				t.Errorf("call %d: %v, want %q", i, err, want)
			}
		}
	}
	g.Close()
	says("the group is closed: ask its session", get, set, take)
	g = group(t, s, 1)
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	says("the session is closed: open another", get, set, take,
		func() error { _, err := s.Group(ctx, []int64{1}); return err },
		func() error { return s.Reset(ctx, "owner") },
		func() error { return s.SetBytes(ctx, kiln.LimitOf(1)) })
	g.Close()
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	says("the runtime is closed: open one with kiln.Open",
		func() error { _, err := r.Session(kiln.SessionConfig{}); return err },
		func() error { _, err := r.Executor(ctx, gpuexec.Find("cpu"), 0); return err })
}
