package encoder

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/limit"
)

// remembering is a runtime with that store that counts its memory, and the folder of MiniLM.
func remembering(t *testing.T, store string) (rt *kiln.Runtime, dir string) {
	t.Helper()
	dir = "../.cache/minilm"
	if _, err := os.Stat(dir + "/model.safetensors"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	rt, err := kiln.Open(kiln.Config{StoreDir: store, MemoryLimit: "64GiB", Lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close(context.Background()) })
	return rt, dir
}

// apart is the memory of a runtime that is not that of its constants: of weights that were taken out
// of the cache, and of kernels, which is little.
func apart(rt *kiln.Runtime) int64 { return rt.Stats().Memory.Bytes - rt.Constants().Stats().Bytes }

const little = 100 << 10

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begin := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%s: it is not so after 20 seconds", what)
		}
	}
}

// T3: when packed weights were replaced by mapped ones, a worker that has nothing to do holds the
// old ones no longer, nor does one that was at work meanwhile; of whatever encoder, one that is
// opened meanwhile too. Their memory is given back.
func TestIdleWorkersLetReplacedWeightsGo(t *testing.T) {
	rt, dir := remembering(t, t.TempDir())
	var all []*Encoder
	var busy []*forward.Model
	for range 3 {
		e, err := Open(t.Context(), rt, dir, Config{Workers: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(t.Context())
		e.mu.Lock()
		busy = append(busy, e.awake())
		e.mu.Unlock()
		all = append(all, e)
	}
	until(t, "all is stored and replaced", func() bool {
		return !slices.ContainsFunc(all, func(e *Encoder) bool { return e.left.Load() > 3 }) && rt.Constants().Stats().Removals[constants.Removed] >= 36
	})
	until(t, "the busy worker is stale", func() bool { // the busy one of each encoder that knew the packed weights
		e := all[0]
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.Equal(e.mu.stale, busy[:1])
	})
	for i, e := range all {
		e.mu.Lock()
		e.rest(busy[i])
		if len(e.mu.stale) != 0 || len(e.mu.idle) != 3 {
			t.Errorf("%d workers are stale, %d idle", len(e.mu.stale), len(e.mu.idle))
		}
		e.mu.Unlock()
	}
	until(t, "the packed weights are gone", func() bool { return apart(rt) < little })
}

// T3: what another encoder replaced while this one was opened, before it is told of that, goes too.
func TestWeightsThatWereReplacedBefore(t *testing.T) {
	rt, dir := remembering(t, "")
	e, err := Open(t.Context(), rt, dir, Config{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(t.Context())
	if err := rt.Constants().SetCapacity(t.Context(), constants.CPU, limit.Unlimited); err != nil { // which takes all out
		t.Fatal(err)
	}
	if apart(rt) < little {
		t.Fatal("nobody holds what was taken out")
	}
	e.keep()
	until(t, "what was taken out is gone", func() bool { return apart(rt) < little })
}
