package kiln_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/sessioncache"
)

// reached is a context that counts how often it is asked for a value.
type reached struct {
	context.Context
	times *atomic.Int64
}

func (r reached) Value(key any) any {
	r.times.Add(1)
	return r.Context.Value(key)
}

// F6: what a creator asks for costs the same however deep it lies: no room asks the contexts of
// all creators above it for a value.
func TestDeepCreators(t *testing.T) {
	for _, room := range []string{"executor", "artefacts"} {
		asked := func(depth int) int64 {
			var times atomic.Int64
			below(t, room, reached{ctx, &times}, depth)
			return times.Load()
		}
		// Whoever has to wait asks once more, which goes by time: ten are spared, not one a level.
		if few, many := asked(10), asked(300); many > few+10 {
			t.Errorf("%s: below 10 creators the first context is asked %d times, below 300 %d times", room, few, many)
		}
	}
}

// below asks for artefacts below creators of a session, or for kernels of an executor below those
// of artefacts.
func below(t *testing.T, room string, ctx context.Context, depth int) {
	r := open(t, kiln.Config{})
	x, err := r.Executor(ctx, &fakedevice.Backend{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	g, err := session(t, r).Cache().Group(ctx, must(kiln.ShapeOf([]int64{1})))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	empty := func(context.Context) (artefacts.Built, error) { return artefacts.Built{}, nil }
	var creator func(ctx context.Context, i int) error
	ask := func(ctx context.Context, i int) (err error) {
		name := strconv.Itoa(i)
		if room == "artefacts" {
			_, _, err = g.Get(ctx, name, sessioncache.Options{}, func(ctx context.Context) (sessioncache.Value, error) {
				return sessioncache.Value{}, creator(ctx, i)
			})
			return err
		}
		l, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: name, Create: func(ctx context.Context) (artefacts.Built, error) {
			return artefacts.Built{}, creator(ctx, i)
		}})
		l.End()
		return err
	}
	creator = func(ctx context.Context, i int) error {
		if room == "artefacts" {
			for range 2 { // made, and there
				l, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: strconv.Itoa(i), Create: empty})
				if err != nil {
					return err
				}
				l.End()
			}
		} else if _, err := x.Compile(ctx, source(strconv.Itoa(i))); err != nil {
			return err
		}
		if i == depth {
			return nil
		}
		return ask(ctx, i+1)
	}
	if err := ask(ctx, 1); err != nil {
		t.Fatal(err)
	}
}
