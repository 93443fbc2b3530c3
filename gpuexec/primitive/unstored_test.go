package primitive_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// empty is a store that has nothing, and must not be asked.
type empty struct{ t *testing.T }

func (e empty) Find(context.Context, artefacts.Subject) artefacts.Found {
	e.t.Error("the store was asked")
	return artefacts.Found{}
}

// P17: an engine over a store says, by reason and once in the log, that a library without
// blobs for its engine leaves nothing there. It said nothing.
func TestEngineWithoutBlobsOverAStoreSaysSo(t *testing.T) {
	var log bytes.Buffer
	for _, store := range []artefacts.Store{nil, empty{t}} {
		log.Reset()
		r := openWith(t, artefacts.Config{Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil))},
			map[string]op{"a": {kind: "matmul", engine: "none"}, "b": {kind: "matmul", engine: "none"}})
		told := 0
		for _, name := range []string{"a", "b", "a"} {
			l, o, err := r.Primitive(t.Context(), r.spec(name), "")
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			if o.Reason == fault.Disabled && o.Field == "blob" && o.Event == artefacts.Miss {
				told++
			}
		}
		want := 0
		if store != nil {
			want = 2 // the third is a hit
		}
		counted := r.cache.Stats().Reasons[fault.Disabled]
		if told != want || counted != uint64(want) || strings.Count(log.String(), "nothing native of this backend is stored") != min(want, 1) {
			t.Errorf("told %d times, counted %d, want %d; logged %s", told, counted, want, log.String())
		}
	}
}
