package encoder

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/internal/forward"
)

// T3: when packed weights were replaced by mapped ones, a worker that has nothing to do holds the
// old ones no longer, nor does one that was at work meanwhile.
func TestIdleWorkersLetReplacedWeightsGo(t *testing.T) {
	const dir = "../.cache/minilm"
	if _, err := os.Stat(dir + "/model.safetensors"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	rt, err := kiln.Open(kiln.Config{StoreDir: t.TempDir(), Lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(t.Context())
	e, err := Open(t.Context(), rt, dir, Config{Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(t.Context())
	e.mu.Lock()
	busy := e.awake()
	e.mu.Unlock()
	for begin := time.Now(); e.left.Load() > 3; time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d weights are stored", rt.Store().Stats().Stores)
		}
	}
	letGo := func(models ...*forward.Model) (n int) {
		for _, m := range models {
			n += m.LetGo()
		}
		return n
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if stored, n := rt.Store().Stats().Stores, letGo(e.mu.idle...); stored != 36 || n != 0 {
		t.Errorf("%d weights are stored, want 36; idle workers hold %d that were replaced", stored, n)
	}
	e.rest(busy)
	if n := letGo(busy); n != 0 || len(e.mu.stale) != 0 || len(e.mu.idle) != 3 {
		t.Errorf("the busy one holds %d; %d workers are stale, %d idle", n, len(e.mu.stale), len(e.mu.idle))
	}
}
