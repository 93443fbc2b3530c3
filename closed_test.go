package kiln_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
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
	x := must(r.Executor(ctx, gpuexec.Find("cpu"), 0))
	buffer := must(x.Alloc(ctx, 8))
	engine := must(r.Constants().Engine(constants.CPU, 0, ""))
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	typed := func(backend, want string, calls ...func() error) {
		t.Helper()
		says(want, calls...)
		for i, call := range calls {
			if e, is := errors.AsType[*kiln.Error](call()); !is || e.Backend != backend {
				t.Errorf("call %d: %+v of another type or backend", i, e)
			}
		}
	}
	typed("cpu", "the executor of cpu:0 is closed: open another one",
		func() error { return x.Submit(ctx) }, func() error { return x.Write(ctx, buffer, 0, make([]byte, 8)) },
		func() error { _, err := x.Start(ctx); return err }, func() error { return x.Ready(ctx) },
		func() error { _, err := x.Alloc(ctx, 8); return err },
		func() error { _, err := x.Compile(ctx, source("k")); return err })
	typed("", "the engine cpu:0 is closed: open another one",
		func() error {
			_, err := engine.GetOrAdd(ctx, constants.Key{ID: "c"}, 8, constants.Options{})
			return err
		},
		func() error { _, err := engine.Remove(ctx, constants.Key{ID: "c"}); return err },
		func() error {
			_, _, err := engine.Get(ctx, constants.Key{ID: "c"}, 8, constants.Options{}, func(context.Context) (constants.Value, error) { return constants.Value{}, nil })
			return err
		})
	typed("", "the cache is closed: open another one",
		func() error { _, err := r.Constants().Engine(constants.CPU, 0, ""); return err },
		func() error { return r.Constants().SetCapacity(ctx, constants.CPU, kiln.Unlimited) },
		func() error { return r.Artefacts().SetCapacity(kiln.Unlimited, kiln.Unlimited) },
		func() error {
			_, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: "k", Create: func(context.Context) (artefacts.Built, error) { return artefacts.Built{}, nil }})
			return err
		})
	typed("", "the runtime is closed: open one with kiln.Open",
		func() error { _, err := r.Session(kiln.SessionConfig{}); return err },
		func() error { _, err := r.Executor(ctx, gpuexec.Find("cpu"), 0); return err })
}
