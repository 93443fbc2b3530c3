package encoder_test

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// minilm is the folder of a real model, which make model fetches.
func minilm(t testing.TB) string {
	t.Helper()
	const dir = "../.cache/minilm"
	if _, err := os.Stat(dir + "/model.safetensors"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	return dir
}

func openRuntime(t testing.TB) *kiln.Runtime {
	t.Helper()
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(bg); err != nil {
			t.Error(err)
		}
	})
	return rt
}

func open(t testing.TB, rt *kiln.Runtime, dir string, cfg encoder.Config) *encoder.Encoder {
	t.Helper()
	e, err := encoder.Open(bg, rt, dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
	})
	return e
}

// reference is a row of testdata/minilm_reference.jsonl.gz.
type reference struct {
	Kind, Text string
	N          int
	IDs        []int32
	Emb        []byte
}

func (r reference) embedding() (out []float32) {
	for at := 0; at < len(r.Emb); at += 4 {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(r.Emb[at:])))
	}
	return out
}

func references(t testing.TB) (all []reference) {
	t.Helper()
	f, err := os.Open("testdata/minilm_reference.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(text); ; {
		var r reference
		if err := dec.Decode(&r); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
}

// apart is how far an embedding is from that of float64.
func apart(got, want []float32) (absolute, cosine float64) {
	if len(got) != len(want) {
		return math.Inf(1), math.Inf(1)
	}
	var dot, x, y float64
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		absolute = max(absolute, math.Abs(g-w))
		dot, x, y = dot+g*w, x+g*g, y+w*w
	}
	return absolute, 1 - dot/math.Sqrt(x*y)
}

// The embeddings of a real model are those of float64 within what float32 allows: a
// wrong epsilon or an approximate GELU is 16 times as far.
func TestReference(t *testing.T) {
	dir := minilm(t)
	e := open(t, openRuntime(t), dir, encoder.Config{})
	rows := references(t)
	var texts []string
	var ids [][]int32
	for i, r := range rows {
		texts, ids = append(texts, r.Text), append(ids, r.IDs)
		if got, cut := e.Tokenize(r.Text); !slices.Equal(got, r.IDs) || cut != (r.N > 512) {
			t.Errorf("row %d: ids %v, cut: %v", i, got, cut)
		}
	}
	got, err := e.Encode(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	worst, most := 0.0, 0.0
	for i, r := range rows {
		absolute, cosine := apart(got[i], r.embedding())
		if worst, most = max(worst, absolute), max(most, cosine); !(absolute <= 2e-6) || !(cosine <= 1e-10) {
			t.Errorf("row %d of %d tokens: %g apart, 1-cosine %g", i, len(r.IDs), absolute, cosine)
		}
	}
	t.Logf("%d rows: at most %.2g apart, 1-cosine %.2g", len(rows), worst, most)
	sameAlone(t, e, ids, got)
}

// sameAlone holds that texts have the same bits alone, in a batch of another order, and
// beside other calls (E8).
func sameAlone(t *testing.T, e *encoder.Encoder, ids [][]int32, got [][]float32) {
	t.Helper()
	var wg sync.WaitGroup
	for caller := range 3 {
		wg.Go(func() {
			for i := caller; i < len(ids); i += 7 {
				alone, err := e.EncodeTokens(bg, ids[i:i+1])
				if err != nil || !slices.Equal(alone[0], got[i]) {
					t.Errorf("row %d: other bits alone, %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}
