package encoder_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/encoder/internal/folder"
	"github.com/kiln-cache/kiln/fault"
)

// openOnly reads a folder and closes it again. What cannot be used is a typed error that
// says why, whatever is in the files.
func openOnly(t testing.TB, dir string) error {
	t.Helper()
	f, err := folder.Open(dir)
	if err == nil {
		if err := f.Weights.Close(); err != nil {
			t.Error(err)
		}
		return nil
	}
	if f != nil || !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) || len(err.Error()) > 2000 {
		t.Fatalf("%v, want ErrInvalid or ErrUnsupported, in a line", err)
	}
	return err
}

// Each file of a folder, cut anywhere, flipped anywhere and missing: it opens, or a typed
// error says why not; and no cut of the config or of the weights opens.
func TestGarbageFolders(t *testing.T) {
	files := newBERT().files()
	delete(files, "vocab.txt") // which the tokenizer reads
	dir := put(t, files)
	spoil(t, dir, files, "config.json", "model.safetensors", "1_Pooling/config.json")
	if err := os.Remove(filepath.Join(dir, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	away := map[string][]byte{}
	away["model.onnx"] = newBERT().onnx("F32", "away", away)
	for name, text := range away {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spoil(t, dir, away, "model.onnx", "weights.data")
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name := range files { // a folder in the place of a file
		odd := maps.Clone(files)
		delete(odd, name)
		odd[name+"/x"] = nil
		if err := openOnly(t, put(t, odd)); err == nil {
			t.Errorf("%s opens though it is a folder", name)
		}
	}
}

// spoil cuts, flips and removes each of these files of a folder.
func spoil(t *testing.T, dir string, files map[string][]byte, needed ...string) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path, text := filepath.Join(dir, name), files[name]
		write := func(text []byte) {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		step := max(1, len(text)/120)
		header := len(text)
		if name == "model.safetensors" {
			header = 8 + int(binary.LittleEndian.Uint64(text))
		}
		for at := 0; at < len(text); at += step {
			write(text[:at])
			if err := openOnly(t, dir); err == nil {
				t.Errorf("%s, cut at byte %d of %d, opens", name, at, len(text))
			}
		}
		for at := 0; at < header; at += max(1, header/120) {
			flipped := bytes.Clone(text)
			flipped[at] ^= byte(1 << random.IntN(8))
			write(flipped)
			_ = openOnly(t, dir)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := openOnly(t, dir); (err != nil) != slices.Contains(needed, name) {
			t.Errorf("without %s: %v", name, err)
		}
		write(text)
	}
}

// An error about a folder is a line that a person can read, whatever the files have in it.
func TestErrorsStayShort(t *testing.T) {
	rt := openRuntime(t)
	b := newBERT()
	long := strings.Repeat("9", 1<<20)
	prompts := map[string]string{}
	for i := range 10000 {
		prompts[fmt.Sprintf("prompt %d", i)] = "x"
	}
	header := func(text string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	}
	for name, c := range map[string]struct {
		file    string
		content []byte
		config  encoder.Config
	}{
		"prompts":        {"config_sentence_transformers.json", asJSON(map[string]any{"prompts": prompts, "default_prompt_name": "none"}), encoder.Config{}},
		"prompt":         {"config_sentence_transformers.json", asJSON(map[string]any{"prompts": prompts}), encoder.Config{Prompt: "nobody"}},
		"path":           {"modules.json", []byte(`[{"type":"Transformer"},{"type":"Pooling","path":"` + strings.Repeat("x/", 1<<16) + `"}]`), encoder.Config{}},
		"modules":        {"modules.json", []byte(`[{"type":` + long + `}]`), encoder.Config{}},
		"tensor":         {"model.safetensors", header(`{"` + long + `":{}}`), encoder.Config{}},
		"dimension":      {"model.safetensors", header(`{"x":{"dtype":"F32","shape":[` + long + `]}}`), encoder.Config{}},
		"tokenizer":      {"tokenizer.json", []byte(`{"version":` + long + `}`), encoder.Config{}},
		"its config":     {"tokenizer_config.json", []byte(`{"do_lower_case":` + long + `}`), encoder.Config{}},
		"a field's name": {"tokenizer.json", []byte(`{"model":{"type":"WordPiece","` + long + `":1}}`), encoder.Config{}},
	} {
		files := b.files()
		files[c.file] = c.content
		e, err := encoder.Open(bg, rt, put(t, files), c.config)
		if e != nil || !errors.Is(err, fault.ErrInvalid) || len(err.Error()) > 2000 {
			t.Errorf("%s: %.300v, want ErrInvalid in a line", name, err)
		}
	}
}

// A folder whose numbers are flipped computes something, or says that it cannot.
func TestFlippedWeights(t *testing.T) {
	rt := openRuntime(t)
	files := newBERT().files()
	random := rand.New(rand.NewPCG(5, 6))
	text := files["model.safetensors"]
	for range 5 {
		flipped := bytes.Clone(text)
		for range 50 {
			flipped[len(text)-1-random.IntN(len(text)/2)] ^= 0xff
		}
		files["model.safetensors"] = flipped
		e := open(t, rt, put(t, files), encoder.Config{})
		if got, err := e.EncodeTokens(bg, shortTexts); err != nil || len(got) != len(shortTexts) {
			t.Errorf("%d embeddings, %v", len(got), err)
		}
	}
}

// No folder makes the reader panic, or asks for memory that its files do not account for.
func FuzzFolder(f *testing.F) {
	files := newBERT().files()
	weights := files["model.safetensors"]
	header := weights[8 : 8+binary.LittleEndian.Uint64(weights)]
	f.Add(files["config.json"], files["modules.json"], files["1_Pooling/config.json"], files["sentence_bert_config.json"], files["config_sentence_transformers.json"], header)
	f.Add([]byte(`{"model_type":"bert","hidden_size":65536,"num_hidden_layers":512,"num_attention_heads":1,"intermediate_size":1048576,"vocab_size":16777216,"max_position_embeddings":16777216}`),
		[]byte(`[]`), []byte(`{"pooling_mode":"max"}`), []byte(`{}`), []byte(`{"prompts":{}}`), []byte(`{"embeddings.LayerNorm.gamma":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}`))
	f.Fuzz(func(t *testing.T, config, modules, pooling, sentences, prompts, header []byte) {
		body := weights[8+binary.LittleEndian.Uint64(weights):]
		openOnly(t, put(t, map[string][]byte{"config.json": config, "modules.json": modules, "1_Pooling/config.json": pooling,
			"sentence_bert_config.json": sentences, "config_sentence_transformers.json": prompts,
			"model.safetensors": append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), append(bytes.Clone(header), body...)...)}))
	})
}
