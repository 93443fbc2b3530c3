package kiln_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// F8: whoever waits in any room is answered when Close begins, however long the Frees of a
// session take, which come first; and nobody comes to wait any more. What a Free may need of
// the rooms is there.
func TestCallersOfAllRoomsAreAnsweredAtOnce(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, kiln.Config{})
		freed, made := make(chan struct{}), make(chan struct{})
		g := group(t, session(t, r), 1)
		if err := kiln.Set(ctx, g, "n", kiln.Made[int]{Free: func() { <-freed }}); err != nil {
			t.Fatal(err)
		}
		g.Close()
		var gone atomic.Int32
		l, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: "there", Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Free: func() { gone.Add(1) }}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
		x, err := r.Executor(ctx, &fakedevice.Backend{OnCompile: func(context.Context, gpuexec.Source) error { <-made; return nil }}, 0)
		if err != nil {
			t.Fatal(err)
		}
		e, err := r.Constants().Engine(constants.GPU, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		there, _, err := e.Get(ctx, constants.Key{ID: constants.Versioned("there", 0)}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
			return constants.Value{Bytes: 1, Free: func() { gone.Add(1) }}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		there.End()
		key := constants.Key{ID: constants.Versioned("c", 0)}
		own, err := e.GetOrAdd(ctx, key, 1, constants.Options{})
		if err != nil || own.Owner == nil {
			t.Fatal(own, err)
		}
		create := func(context.Context) (artefacts.Built, error) { <-made; return artefacts.Built{}, nil }
		callers := []struct {
			what string
			ask  func() error
		}{
			{"artefact", func() error {
				_, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: "k", Create: create})
				return err
			}},
			{"artefact that is made", func() error { _, _, err := r.Artefacts().Peek(ctx, "k"); return err }},
			{"artefact of one's own", func() error {
				_, _, err := r.Artefacts().Force(ctx, artefacts.Request{Key: "k", Create: create})
				return err
			}},
			{"constant", func() error { _, err := e.GetOrAdd(ctx, key, 1, constants.Options{}); return err }},
			{"constant, able to compute it", func() error { _, err := e.GetOrAdd(ctx, key, 1, constants.Options{CanOwn: true}); return err }},
			{"compile", func() error { _, err := x.Compile(ctx, source("s")); return err }},
		}
		answers := make([]chan error, len(callers))
		for i, c := range callers {
			answers[i] = make(chan error, 1)
			go func() { answers[i] <- c.ask() }()
			synctest.Wait() // a flight comes before those that join it
		}
		ended := make(chan error, 1)
		go func() { ended <- r.Close(ctx) }()
		synctest.Wait()
		for i, c := range callers {
			select {
			case err := <-answers[i]:
				if !errors.Is(err, kiln.ErrClosed) {
					t.Errorf("%s: %v, want ErrClosed", c.what, err)
				}
			default:
				t.Errorf("%s: its caller waits for the Free of a session", c.what)
			}
		}
		if own.Owner.Context().Err() == nil {
			t.Error("the context of a constant's owner goes on")
		}
		if l, err := own.Owner.Fulfil(1, 1, nil); err != nil { // it is the owner's alone
			t.Error(err)
		} else {
			l.End()
		}
		_, engine := r.Constants().Engine(constants.CPU, 0, "")
		_, _, artefact := r.Artefacts().Get(ctx, artefacts.Request{Key: "other", Create: create})
		_, compiled := x.Compile(ctx, source("other"))
		_, constant := e.GetOrAdd(ctx, constants.Key{ID: constants.Versioned("other", 0)}, 1, constants.Options{})
		for what, err := range map[string]error{"engine": engine, "artefact": artefact, "compile": compiled, "constant": constant,
			"capacity": r.Constants().SetEnabled(ctx, false)} {
			if !errors.Is(err, kiln.ErrClosed) {
				t.Errorf("%s after Close began: %v, want ErrClosed", what, err)
			}
		}
		if err := errors.Join(x.Ready(ctx), r.Artefacts().Settle(ctx)); err != nil {
			t.Errorf("what a Free may need: %v", err)
		}
		if gone.Load() > 0 {
			t.Error("a value of another room was freed before those of the session")
		}
		close(freed)
		synctest.Wait()
		if len(ended) > 0 {
			t.Error("Close has not waited for creators")
		}
		close(made)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// F8: the close of a session answers whoever waits for what is made for a group alone. The Make
// goes on, for its linger time.
func TestCloseOfASessionAnswersWhoIsAlone(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, kiln.Config{})
		s := session(t, r)
		g := group(t, s, 1)
		answer := make(chan error, 1)
		began := time.Now() // the Make too: no time passes here until the sleep below
		lasted := make(chan time.Duration, 1)
		go func() {
			_, err := kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k", Unhashable: "include", Make: func(ctx context.Context) (kiln.Made[int], error) {
				<-ctx.Done()
				lasted <- time.Since(began)
				return kiln.Made[int]{}, ctx.Err()
			}})
			answer <- err
		}()
		synctest.Wait()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := <-answer; !errors.Is(err, kiln.ErrClosed) || errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if time.Since(began) != 0 {
			t.Errorf("the caller was answered after %v", time.Since(began))
		}
		time.Sleep(2 * time.Minute)
		if lasted := <-lasted; lasted != time.Minute {
			t.Errorf("the Make was ended after %v, want a minute", lasted)
		}
		g.Close()
	})
}
