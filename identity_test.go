package kiln_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
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
