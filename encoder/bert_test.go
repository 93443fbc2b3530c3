package encoder_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bert is a small model with random weights, and a plain computation of it in float64
// that shares nothing with the product.
type bert struct {
	width, layers, heads, inner, vocabulary, positions int
	epsilon                                            float64
	tensors                                            map[string]tensor
}

// tensor is row major; kernels are [outputs, inputs].
type tensor struct {
	shape  []int
	values []float32
}

func newBERT() *bert {
	return (&bert{width: 24, layers: 2, heads: 3, inner: 40}).filled(1)
}

// wide is a model whose kernels, 12 of 64 KiB, are large enough for the store.
func wide(seed uint64) *bert {
	return (&bert{width: 128, layers: 2, heads: 2, inner: 128}).filled(seed)
}

func (b *bert) filled(seed uint64) *bert {
	b.vocabulary, b.positions, b.epsilon, b.tensors = 60, 20, 1e-3, map[string]tensor{}
	random := rand.New(rand.NewPCG(seed, 2))
	add := func(name string, deviation, mean float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		t := tensor{shape: shape}
		for range n {
			v := float32(float64(random.NormFloat64()*deviation) + mean)
			t.values = append(t.values, math.Float32frombits(math.Float32bits(v)&^0xffff)) // BF16 has it exactly
		}
		b.tensors[name] = t
	}
	linear := func(name string, from, to int) {
		add(name+".weight", 1/math.Sqrt(float64(from)), 0, to, from)
		add(name+".bias", 0.1, 0, to)
	}
	norm := func(name string) {
		add(name+".weight", 0.1, 1, b.width)
		add(name+".bias", 0.1, 0, b.width)
	}
	add("embeddings.word_embeddings.weight", 0.5, 0, b.vocabulary, b.width)
	add("embeddings.token_type_embeddings.weight", 0.5, 0, 2, b.width)
	add("embeddings.position_embeddings.weight", 0.5, 0, b.positions, b.width)
	norm("embeddings.LayerNorm")
	for i := range b.layers {
		at := fmt.Sprintf("encoder.layer.%d.", i)
		for _, part := range []string{"query", "key", "value"} {
			linear(at+"attention.self."+part, b.width, b.width)
		}
		linear(at+"attention.output.dense", b.width, b.width)
		norm(at + "attention.output.LayerNorm")
		linear(at+"intermediate.dense", b.width, b.inner)
		linear(at+"output.dense", b.inner, b.width)
		norm(at + "output.LayerNorm")
	}
	return b
}

// outputs are the last layer's, a row for each token.
func (b *bert) outputs(ids []int32) [][]float64 { return b.typed(ids, make([]int32, len(ids))) }

func (b *bert) typed(ids, types []int32) [][]float64 {
	rows := make([][]float64, len(ids))
	for i, id := range ids {
		rows[i] = make([]float64, b.width)
		for j := range rows[i] {
			rows[i][j] = b.at("embeddings.word_embeddings.weight", int(id), j) + b.at("embeddings.token_type_embeddings.weight", int(types[i]), j) +
				b.at("embeddings.position_embeddings.weight", i, j)
		}
	}
	rows = b.norm("embeddings.LayerNorm", rows)
	for i := range b.layers {
		at := fmt.Sprintf("encoder.layer.%d.", i)
		attended := b.attention(at+"attention.self.", rows)
		rows = b.norm(at+"attention.output.LayerNorm", sum(rows, b.linear(at+"attention.output.dense", attended)))
		inner := b.linear(at+"intermediate.dense", rows)
		for _, row := range inner {
			for j, v := range row {
				row[j] = v / 2 * (1 + math.Erf(v/math.Sqrt2))
			}
		}
		rows = b.norm(at+"output.LayerNorm", sum(rows, b.linear(at+"output.dense", inner)))
	}
	return rows
}

func (b *bert) at(name string, row, column int) float64 {
	t := b.tensors[name]
	return float64(t.values[row*t.shape[1]+column])
}

func sum(x, y [][]float64) [][]float64 {
	for i := range y {
		for j := range y[i] {
			y[i][j] += x[i][j]
		}
	}
	return y
}

func (b *bert) linear(name string, rows [][]float64) (out [][]float64) {
	bias := b.tensors[name+".bias"].values
	for _, row := range rows {
		to := make([]float64, len(bias))
		for j := range to {
			to[j] = float64(bias[j])
			for k, v := range row {
				to[j] += v * b.at(name+".weight", j, k)
			}
		}
		out = append(out, to)
	}
	return out
}

func (b *bert) norm(name string, rows [][]float64) [][]float64 {
	for _, row := range rows {
		mean, variance := 0.0, 0.0
		for _, v := range row {
			mean += v / float64(len(row))
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(len(row))
		}
		for j, v := range row {
			row[j] = (v-mean)/math.Sqrt(variance+b.epsilon)*float64(b.tensors[name+".weight"].values[j]) + float64(b.tensors[name+".bias"].values[j])
		}
	}
	return rows
}

func (b *bert) attention(at string, rows [][]float64) [][]float64 {
	query, key, value := b.linear(at+"query", rows), b.linear(at+"key", rows), b.linear(at+"value", rows)
	out := make([][]float64, len(rows))
	size := b.width / b.heads
	for i := range rows {
		out[i] = make([]float64, b.width)
		for from := 0; from < b.width; from += size {
			weights, total := make([]float64, len(rows)), 0.0
			for j := range rows {
				dot := 0.0
				for k := from; k < from+size; k++ {
					dot += query[i][k] * key[j][k]
				}
				weights[j] = math.Exp(dot / math.Sqrt(float64(size)))
				total += weights[j]
			}
			for j, w := range weights {
				for k := from; k < from+size; k++ {
					out[i][k] += w / total * value[j][k]
				}
			}
		}
	}
	return out
}

// config is config.json.
func (b *bert) config() map[string]any {
	return map[string]any{"model_type": "bert", "architectures": []string{"BertModel"}, "hidden_size": b.width, "num_hidden_layers": b.layers,
		"num_attention_heads": b.heads, "intermediate_size": b.inner, "vocab_size": b.vocabulary, "max_position_embeddings": b.positions,
		"type_vocab_size": 2, "layer_norm_eps": b.epsilon, "hidden_act": "gelu", "position_embedding_type": "absolute", "hidden_dropout_prob": 0.1}
}

// weights is model.safetensors with tensors of this type, under the names that rename
// gives them.
func (b *bert) weights(kind string, rename func(string) string) []byte {
	header, body := map[string]any{}, []byte{}
	for _, name := range slices.Sorted(maps.Keys(b.tensors)) {
		t, begin := b.tensors[name], len(body)
		for _, v := range t.values {
			switch bits := math.Float32bits(v); kind {
			case "F32":
				body = binary.LittleEndian.AppendUint32(body, bits)
			case "BF16":
				body = binary.LittleEndian.AppendUint16(body, uint16(bits>>16))
			}
		}
		header[rename(name)] = map[string]any{"dtype": kind, "shape": t.shape, "data_offsets": []int{begin, len(body)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), append(text, body...)...)
}

func asIs(name string) string { return name }

func asJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// files are those of a folder as sentence-transformers writes it.
func (b *bert) files() map[string][]byte {
	module := func(kind, path string) map[string]any {
		return map[string]any{"idx": 0, "name": "0", "path": path, "type": "sentence_transformers.models." + kind}
	}
	vocabulary := []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":"}
	for len(vocabulary) < b.vocabulary {
		vocabulary = append(vocabulary, fmt.Sprintf("w%d", len(vocabulary)))
	}
	return map[string][]byte{
		"vocab.txt":                         []byte(strings.Join(vocabulary, "\n") + "\n"),
		"config.json":                       asJSON(b.config()),
		"model.safetensors":                 b.weights("F32", asIs),
		"modules.json":                      asJSON([]any{module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")}),
		"1_Pooling/config.json":             asJSON(map[string]any{"word_embedding_dimension": b.width, "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}),
		"sentence_bert_config.json":         asJSON(map[string]any{"max_seq_length": 16, "do_lower_case": false}),
		"config_sentence_transformers.json": asJSON(map[string]any{"prompts": map[string]string{"query": "query: "}, "default_prompt_name": nil}),
	}
}

// put writes files into a new folder.
func put(t testing.TB, files map[string][]byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// changed is a file of JSON with one field set, or without it where value is nil.
func changed(file []byte, field string, value any) []byte {
	object := map[string]any{}
	if err := json.Unmarshal(file, &object); err != nil {
		panic(err)
	}
	if object[field] = value; value == nil {
		delete(object, field)
	}
	return asJSON(object)
}

func oldNames(name string) string {
	if strings.Contains(name, "LayerNorm") {
		name = strings.Replace(strings.Replace(name, "weight", "gamma", 1), "bias", "beta", 1)
	}
	return "bert." + name
}

var write = flag.Bool("write", false, "write testdata/tiny")

// testdata/tiny is this model, in BF16: for the example, and for the tests of the command.
func TestTiny(t *testing.T) {
	b := newBERT()
	files := b.files()
	files["model.safetensors"] = b.weights("BF16", asIs)
	for name, text := range files {
		path := filepath.Join("testdata/tiny", filepath.FromSlash(name))
		if *write {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s differs; go test ./encoder -run TestTiny -write makes it anew: %v", path, err)
		}
	}
}
