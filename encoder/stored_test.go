package encoder_test

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// T3, P6, E8: what an encoder packed is in the runtime's store when it is closed, and the next one
// maps it, in its own form: embeddings have the same bits. Other devices pack in other forms.
func TestStoredWeights(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no store on windows")
	}
	dir := minilm(t)
	texts := []string{"", "what is kiln?", "a runtime that computes every kernel once, and a longer text beside shorter ones"}
	embeddings := func(cfg kiln.Config, weights string) (all [][]float32, hits, stores int64) {
		cfg.Lookup = func(string) (string, bool) { return "", false }
		rt, err := kiln.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close(bg)
		e, err := encoder.Open(bg, rt, dir, encoder.Config{Weights: weights})
		if err != nil {
			t.Fatal(err)
		}
		if rt.Store() != nil {
			hits = rt.Store().Stats().Hits
		}
		if all, err = e.Encode(bg, texts); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(bg); err != nil {
			t.Fatal(err)
		}
		if rt.Store() != nil {
			usage, err := rt.Store().Usage(bg)
			if err != nil {
				t.Fatal(err)
			}
			stores = usage.Bytes >> 20
		}
		return all, hits, stores
	}
	stored := kiln.Config{StoreDir: t.TempDir()}
	want := 40 // MiB of packed weights
	for _, weights := range []string{"float32", "bfloat16"} {
		own, _, _ := embeddings(kiln.Config{}, weights)
		first, hits, mib := embeddings(stored, weights)
		if hits != 0 || mib < int64(want) {
			t.Errorf("%s: the first found %d entries; %d MiB are stored, want %d", weights, hits, mib, want)
		}
		again, hits, more := embeddings(stored, weights)
		if hits != 36 || more != mib {
			t.Errorf("%s: the second found %d weights of 36; %d MiB are stored, %d before", weights, hits, more, mib)
		}
		if !reflect.DeepEqual(first, own) || !reflect.DeepEqual(again, own) {
			t.Errorf("%s: other bits with a store", weights)
		}
		want += 20
	}
}

// P7: small weights are packed, since there is little to share: they are no entries of the store.
func TestSmallWeightsAreNotStored(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no store on windows")
	}
	rt, err := kiln.Open(kiln.Config{StoreDir: t.TempDir(), Lookup: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close(bg)
	e := open(t, rt, put(t, newBERT().files()), encoder.Config{})
	if err := e.Close(bg); err != nil {
		t.Fatal(err)
	}
	err = rt.Store().List(bg, func(i blobstore.Info) error {
		if i.Backend == hidden.Weights {
			t.Errorf("%s is stored, with %d bytes", i.Key, i.Bytes)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
