package encoder_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
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

// T3, P6, K5: packed weights out of an ONNX model are stored and mapped as those of a safetensors file are,
// wherever it keeps its numbers. Other numbers in the file beside it are other weights, though the
// model and the size of that file are as they were; back again, they are found.
func TestStoredWeightsOfONNX(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no store on windows")
	}
	const kernels = 12 // of a wide model
	embeddings := func(store, dir string) (all [][]float32, found int64, mapped int) {
		t.Helper()
		rt, err := kiln.Open(kiln.Config{StoreDir: store, Lookup: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close(bg)
		e, err := encoder.Open(bg, rt, dir, encoder.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if store != "" {
			found = rt.Store().Stats().Hits
		}
		maps, _ := os.ReadFile("/proc/self/maps") // where there is one
		for line := range bytes.Lines(maps) {
			if bytes.Contains(line, []byte(store)) && bytes.Contains(line, []byte("kernel.bin")) {
				mapped++
			}
		}
		if all, err = e.EncodeTokens(bg, shortTexts); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(bg); err != nil {
			t.Fatal(err)
		}
		return all, found, mapped
	}
	first, second := wide(1), wide(2)
	want, _, _ := embeddings("", put(t, first.files()))
	other, _, _ := embeddings("", put(t, second.files()))
	for _, form := range []string{"raw", "gemm", "kept", "away"} {
		files, changed := first.files(), map[string][]byte{}
		delete(files, "model.safetensors")
		files["model.onnx"] = first.onnx("F32", form, files)
		dir, store := put(t, files), t.TempDir()
		expect := func(when string, want [][]float32, hits int64) {
			t.Helper()
			got, found, mapped := embeddings(store, dir)
			if found != hits || runtime.GOOS == "linux" && hits > 0 && mapped != kernels {
				t.Errorf("%s, %s: %d weights were found, want %d; %d are mapped", form, when, found, hits, mapped)
			}
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s, %s: other bits", form, when)
			}
		}
		expect("first", want, 0)
		expect("again", want, kernels)
		if form != "away" {
			continue
		}
		if text := second.onnx("F32", form, changed); !bytes.Equal(text, files["model.onnx"]) {
			t.Fatal("the models differ in more than their numbers")
		}
		numbers := filepath.Join(dir, "weights.data")
		for _, text := range [][]byte{changed["weights.data"], files["weights.data"]} {
			if err := errors.Join(os.WriteFile(numbers+".new", text, 0o600), os.Rename(numbers+".new", numbers)); err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(text, files["weights.data"]) {
				expect("as before", want, kernels)
			} else {
				expect("changed", other, 0)
			}
		}
	}
}

// K5: the weights of a model that was exported some time ago are found by the states of its files.
func TestStoredWeightsOfAnExport(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no store on windows")
	}
	dir := exported(t)
	store := t.TempDir()
	for _, want := range []int64{0, 36} {
		rt, err := kiln.Open(kiln.Config{StoreDir: store, Lookup: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		e, err := encoder.Open(bg, rt, dir, encoder.Config{})
		if err != nil {
			t.Fatal(err)
		}
		found := rt.Store().Stats().Hits
		if err := errors.Join(e.Close(bg), rt.Close(bg)); err != nil || found != want {
			t.Errorf("%d weights were found, want %d: %v", found, want, err)
		}
	}
}

// R3: numbers beside an ONNX model that were written over while it is open, and are wanted again, are
// an error, and nothing is computed with them. Those of an encoder that is opened then are right.
func TestNumbersOfONNXAreWrittenOver(t *testing.T) {
	first, second := wide(1), wide(2)
	files, changed := first.files(), map[string][]byte{}
	delete(files, "model.safetensors")
	files["model.onnx"] = first.onnx("F32", "away", files)
	second.onnx("F32", "away", changed)
	dir := put(t, files)
	rt := openRuntime(t)
	e := open(t, rt, dir, encoder.Config{})
	before, err := e.EncodeTokens(bg, shortTexts)
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour) // whatever the clock of the file system is
	numbers := filepath.Join(dir, "weights.data")
	if err := errors.Join(os.WriteFile(numbers, changed["weights.data"], 0o600), os.Chtimes(numbers, later, later)); err != nil {
		t.Fatal(err)
	}
	if got, err := e.EncodeTokens(bg, shortTexts); err != nil || !slices.EqualFunc(got, before, slices.Equal) {
		t.Errorf("%v, or other bits of weights that are prepared", err)
	}
	if err := rt.Constants().SetCapacity(bg, constants.CPU, limit.Unlimited); err != nil { // which flushes them
		t.Fatal(err)
	}
	if _, err := e.EncodeTokens(bg, shortTexts); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("%v, want that the file was changed", err)
	}
	want, err := open(t, rt, put(t, second.files()), encoder.Config{}).EncodeTokens(bg, shortTexts)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, rt, dir, encoder.Config{}).EncodeTokens(bg, shortTexts); err != nil || !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, or not the numbers that are there now", err)
	}
}
