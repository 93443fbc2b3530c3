package encoder_test

import (
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/limit"
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

// P7, E8: models whose weights are more than the store takes compute the same bits at each start, closed
// one by one or all at the end. What the first start stored, kernels too, later ones find: none
// stores what the next one lacks again.
func TestMoreModelsThanTheStoreTakes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no store on windows")
	}
	var dirs []string
	var want [][][]float32
	alone := openRuntime(t)
	for i := range 4 { // 3 MiB
		dirs = append(dirs, put(t, wide(uint64(i)).files()))
		got, err := open(t, alone, dirs[i], encoder.Config{}).EncodeTokens(bg, shortTexts)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, got)
	}
	const capacity = 2 << 20
	for _, c := range []struct {
		policy    blobstore.Policy
		constants string // their capacity
		byOne     bool   // encoders are closed one by one
	}{{blobstore.FIFO, "", false}, {blobstore.FIFO, "", true}, {blobstore.LRU, "", true}, {blobstore.Cost, "", false}, {blobstore.FIFO, "cpu:1", false}, {blobstore.LRU, "cpu:1:COST", true}} {
		cfg := kiln.Config{StoreDir: t.TempDir(), StoreBytes: limit.Of(capacity), Store: blobstore.Config{Policy: c.policy},
			Lookup: func(name string) (string, bool) {
				return c.constants, c.constants != "" && name == "ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY"
			}}
		for start := range 3 {
			rt, err := kiln.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			var all []*encoder.Encoder
			end := func() {
				for _, e := range all {
					if err := e.Close(bg); err != nil {
						t.Error(err)
					}
				}
				all = nil
			}
			for i, dir := range dirs {
				e, err := encoder.Open(bg, rt, dir, encoder.Config{Workers: 1})
				if err != nil {
					t.Fatal(err)
				}
				got, err := e.EncodeTokens(bg, shortTexts)
				if err != nil || !slices.EqualFunc(got, want[i], slices.Equal) {
					t.Errorf("%+v, start %d, model %d: %v, %v, want %v", c, start, i, got, err, want[i])
				}
				if all = append(all, e); c.byOne {
					end()
				}
			}
			end()
			usage, err := rt.Store().Usage(bg)
			if err := rt.Close(bg); err != nil { // which waits for what is being stored
				t.Error(err)
			}
			stats := rt.Store().Stats()
			if err != nil || usage.DiskBytes > capacity || usage.ByBackend[hidden.Weights] < 12*64<<10 || stats.Evictions > 0 {
				t.Errorf("%+v, start %d: %v, %+v, %d entries were evicted", c, start, err, usage, stats.Evictions)
			}
			if start > 0 && (stats.Stores > 0 || stats.Hits == 0) {
				t.Errorf("%+v, start %d: %d entries were stored again, %d found", c, start, stats.Stores, stats.Hits)
			}
		}
	}
}
