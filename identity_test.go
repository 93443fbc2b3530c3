package kiln_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/processor"
)

// storing opens a runtime with a store that asks identity, and gives what asks for the
// artefact of a key that could be stored.
func storing(t *testing.T, identity func() gpuexec.Identity) func(ctx context.Context, key string) error {
	r := open(t, kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"),
		Store: blobstore.Config{Identity: func(string) gpuexec.Identity { return identity() }}})
	g := group(t, session(t, r), 1)
	t.Cleanup(g.Close)
	return func(ctx context.Context, key string) error {
		made := kiln.Made[int]{Value: 1, Blob: func(context.Context) ([]byte, error) { return []byte("1"), nil }}
		_, err := kiln.Get(ctx, g, key, kiln.Recipe[int]{Key: key, Backend: "own",
			Make: func(context.Context) (kiln.Made[int], error) { return made, nil },
			Load: func(context.Context, []byte) (kiln.Made[int], error) { return made, nil }})
		return err
	}
}

// F3, P5: who says what a backend is may panic or end its goroutine: then nothing is
// stored, and no request fails. It is asked until the answer is known, and then no more.
func TestIdentityThatFails(t *testing.T) {
	for _, fail := range []func() gpuexec.Identity{
		func() gpuexec.Identity { panic("identity") },
		func() gpuexec.Identity { runtime.Goexit(); return gpuexec.Identity{} },
		func() gpuexec.Identity { return gpuexec.Identity{} },
		func() gpuexec.Identity { return gpuexec.Identity{Library: "1"} }, // of no build that is known
	} {
		var asked atomic.Int32
		get := storing(t, func() gpuexec.Identity {
			if asked.Add(1) <= 2 {
				return fail()
			}
			return gpuexec.Identity{Library: "1", Build: "b"}
		})
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			if err := get(ctx, key); err != nil {
				t.Error(err)
			}
		}
		if n := asked.Load(); n != 3 {
			t.Errorf("asked %d times, want 3", n)
		}
	}
}

// F4: a slow answer keeps no caller beyond its context, and is there for the next.
func TestIdentityThatIsSlow(t *testing.T) {
	var asked atomic.Int32
	entered, goOn := make(chan struct{}), make(chan struct{})
	get := storing(t, func() gpuexec.Identity {
		asked.Add(1)
		close(entered)
		<-goOn
		return gpuexec.Identity{Library: "1", Build: "b"}
	})
	short, leave := context.WithCancel(ctx)
	left := make(chan error, 1)
	go func() { left <- get(short, "a") }()
	<-entered
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	close(goOn)
	if err := get(ctx, "a"); err != nil || asked.Load() != 1 {
		t.Errorf("asked %d times, want once: %v", asked.Load(), err)
	}
}

// P17: what is not stored is logged once for each backend, whatever the other's lacks.
func TestNotStorableOfTwoBackends(t *testing.T) {
	log := new(lines)
	r := open(t, kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), Logger: slog.New(slog.NewTextHandler(log, nil)),
		Store: blobstore.Config{Identity: func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1"} }}})
	g := group(t, session(t, r), 1)
	defer g.Close()
	for _, backend := range []string{"one", "two"} {
		for _, key := range []string{"a", "b"} {
			recipe := stored(backend+key, 7)
			recipe.Backend = backend
			must(kiln.Get(ctx, g, backend+key, recipe))
		}
		if n := log.count("backend=" + backend + " reason=disabled field=build"); n != 1 {
			t.Errorf("backend %s: logged %d times", backend, n)
		}
	}
}

// K7: what the program itself compiles is loaded where the processor has what it
// requires: all that this one has where that is not known. This machine has it, so that
// nothing is made twice (F10).
func TestRequiresOfProcessor(t *testing.T) {
	_, isa := processor.Read()
	if len(isa) == 0 {
		t.Skip("nothing is known of this processor")
	}
	for what, c := range map[string]struct{ requires, stored []string }{
		"a feature": {isa[:1], isa[:1]},
		"none":      {[]string{}, nil},
		"not known": {nil, slices.Compact(slices.Clone(isa))},
	} {
		dir, runs := filepath.Join(t.TempDir(), "store"), 0
		for range 2 {
			r := open(t, kiln.Config{StoreDir: dir})
			g := group(t, session(t, r), 1)
			made := kiln.Made[int]{Value: 1, Requires: c.requires, Blob: func(context.Context) ([]byte, error) { return []byte("code"), nil }}
			must(kiln.Get(ctx, g, "n", kiln.Recipe[int]{Key: "k",
				Make: func(context.Context) (kiln.Made[int], error) { runs++; return made, nil },
				Load: func(context.Context, []byte) (kiln.Made[int], error) { return made, nil }}))
			g.Close()
			if err := r.Artefacts().Settle(ctx); err != nil {
				t.Fatal(err)
			}
			err := r.Store().List(ctx, func(i blobstore.Info) error {
				if !slices.Equal(i.Requires, c.stored) {
					t.Errorf("%s: stored as what requires %v, want %v", what, i.Requires, c.stored)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if runs != 1 {
			t.Errorf("%s: made %d times, want once", what, runs)
		}
	}
}

// K7: packed weights are data, which every build of a program and every processor reads.
func TestIdentityOfWeights(t *testing.T) {
	r := open(t, kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store")})
	if err := r.Store().Put(ctx, hidden.Weights, "k", []byte("packed"), 0); err != nil {
		t.Fatal(err)
	}
	err := r.Store().List(ctx, func(i blobstore.Info) error {
		if p := i.Producer; i.Backend != hidden.Weights || p.Library != "kiln" || p.Build != "layout 1" || p.Compiler+p.Driver+p.Device != "" || len(p.ISA)+len(i.Requires) != 0 {
			t.Errorf("%+v", i)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
