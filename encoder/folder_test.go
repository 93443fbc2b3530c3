package encoder_test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
)

// pooled is what a model's outputs become.
func pooled(rows [][]float64, pooling string, normalized bool) (out []float32) {
	sums := slices.Clone(rows[0])
	for _, row := range rows[1:] {
		for i, v := range row {
			switch pooling {
			case "mean":
				sums[i] += v
			case "max":
				sums[i] = max(sums[i], v)
			}
		}
	}
	scale, length := 1.0, 0.0
	if pooling == "mean" {
		scale = float64(len(rows))
	}
	for _, v := range sums {
		length += v / scale * v / scale
	}
	if normalized {
		scale *= math.Sqrt(length)
	}
	for _, v := range sums {
		out = append(out, float32(v/scale))
	}
	return out
}

var shortTexts = [][]int32{{2, 3}, {2, 5, 6, 7, 3}, {2, 59, 0, 1, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 3}}

// A folder computes what its files say, however its tensors are called and typed.
func TestFolders(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	poolingConfig := func(fields map[string]any) []byte { return asJSON(fields) }
	for name, c := range map[string]struct {
		change     func(files map[string][]byte)
		config     encoder.Config
		pooling    string
		normalized bool
	}{
		"as written": {func(map[string][]byte) {}, encoder.Config{}, "mean", true},
		"BF16":       {func(f map[string][]byte) { f["model.safetensors"] = b.weights("BF16", asIs) }, encoder.Config{}, "mean", true},
		"more than the model": {func(f map[string][]byte) {
			more := newBERT()
			for _, name := range []string{"embeddings.position_ids", "pooler.dense.weight", "cls.predictions.bias", "cls.seq_relationship.weight", "classifier.weight", "encoder.layer_norm.2.weight", "encoder.layer.x.weight", "teacher.encoder.layer.2.output.dense.weight"} {
				more.tensors[name] = tensor{[]int{1}, []float32{1}}
			}
			f["model.safetensors"] = more.weights("F32", asIs)
		}, encoder.Config{}, "mean", true},
		"old names": {func(f map[string][]byte) { f["model.safetensors"] = b.weights("F32", oldNames) }, encoder.Config{}, "mean", true},
		"cls": {func(f map[string][]byte) {
			f["1_Pooling/config.json"] = poolingConfig(map[string]any{"word_embedding_dimension": b.width, "pooling_mode_cls_token": true})
		}, encoder.Config{}, "cls", true},
		"max, as newer versions write it": {func(f map[string][]byte) {
			f["1_Pooling/config.json"] = poolingConfig(map[string]any{"embedding_dimension": b.width, "pooling_mode": "max"})
		}, encoder.Config{}, "max", true},
		"model alone": {func(f map[string][]byte) {
			maps.DeleteFunc(f, func(name string, _ []byte) bool {
				return name != "config.json" && name != "model.safetensors" && name != "vocab.txt"
			})
		}, encoder.Config{}, "mean", false},
		"config over the folder": {func(f map[string][]byte) { delete(f, "modules.json") }, encoder.Config{Pooling: "max", Normalize: true}, "max", true},
		"defaults of BertConfig": {func(f map[string][]byte) {
			for _, field := range []string{"type_vocab_size", "hidden_act", "position_embedding_type", "architectures", "hidden_dropout_prob"} {
				f["config.json"] = changed(f["config.json"], field, nil)
			}
		}, encoder.Config{}, "mean", true},
		"folder of its own": {func(f map[string][]byte) {
			for _, file := range []string{"config.json", "model.safetensors", "sentence_bert_config.json", "vocab.txt"} {
				if f[file] != nil {
					f["0_Transformer/"+file] = f[file]
					delete(f, file)
				}
			}
			f["modules.json"] = []byte(strings.Replace(string(f["modules.json"]), `"path":""`, `"path":"0_Transformer"`, 1))
		}, encoder.Config{}, "mean", true},
	} {
		t.Run(name, func(t *testing.T) {
			files := b.files()
			c.change(files)
			e := open(t, rt, put(t, files), c.config)
			i := e.Info()
			if i.Dimensions != b.width || i.MaxTokens != b.positions || i.Pooling != c.pooling || i.Normalized != c.normalized {
				t.Errorf("%+v", i)
			}
			if files["modules.json"] != nil && (i.SentenceLimit != 16 || i.Prompts["query"] != "query: ") {
				t.Errorf("%+v", i)
			}
			got, err := e.EncodeTokens(bg, shortTexts)
			if err != nil {
				t.Fatal(err)
			}
			for n, ids := range shortTexts {
				if d, _ := apart(got[n], pooled(b.outputs(ids), c.pooling, c.normalized)); !(d <= 3e-6) {
					t.Errorf("text %d: %g apart", n, d)
				}
			}
		})
	}
}

// What a folder says and nothing here computes, or what it says wrongly, is an error that
// names the file and the field.
func TestRefusedFolders(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	set := func(file, field string, value any) func(map[string][]byte) {
		return func(f map[string][]byte) { f[file] = changed(f[file], field, value) }
	}
	whole := func(file, text string) func(map[string][]byte) {
		return func(f map[string][]byte) { f[file] = []byte(text) }
	}
	without := func(tensor string) func(map[string][]byte) {
		return func(f map[string][]byte) {
			f["model.safetensors"] = b.weights("F32", func(name string) string { return strings.Replace(name, tensor, "other", 1) })
		}
	}
	const pool, model = "1_Pooling/config.json", "config.json"
	for name, c := range map[string]struct {
		change   func(files map[string][]byte)
		sentinel error
		words    []string
	}{
		"another model":  {set(model, "model_type", "roberta"), fault.ErrUnsupported, []string{model, "model_type", "roberta"}},
		"no model type":  {set(model, "model_type", nil), fault.ErrInvalid, []string{model, "model_type", "missing"}},
		"tanh GELU":      {set(model, "hidden_act", "gelu_new"), fault.ErrUnsupported, []string{model, "hidden_act", "gelu_new"}},
		"no text":        {set(model, "hidden_act", 3), fault.ErrInvalid, []string{model, "hidden_act", "3"}},
		"positions":      {set(model, "position_embedding_type", "relative_key"), fault.ErrUnsupported, []string{model, "position_embedding_type"}},
		"own code":       {set(model, "auto_map", map[string]string{"AutoModel": "m.M"}), fault.ErrUnsupported, []string{model, "auto_map"}},
		"architecture":   {set(model, "architectures", []string{"JinaBertModel"}), fault.ErrUnsupported, []string{model, "architectures", "JinaBertModel"}},
		"decoder":        {set(model, "is_decoder", true), fault.ErrUnsupported, []string{model, "is_decoder"}},
		"pruned":         {set(model, "pruned_heads", map[string]any{"1": []int{2}}), fault.ErrUnsupported, []string{model, "pruned_heads"}},
		"quantised":      {set(model, "quantization_config", map[string]any{"bits": 4}), fault.ErrUnsupported, []string{model, "quantization_config"}},
		"no heads":       {set(model, "num_attention_heads", nil), fault.ErrInvalid, []string{model, "num_attention_heads", "missing"}},
		"heads":          {set(model, "num_attention_heads", 5), fault.ErrInvalid, []string{model, "num_attention_heads", "5"}},
		"absurd":         {set(model, "hidden_size", 1e18), fault.ErrInvalid, []string{model, "hidden_size"}},
		"fraction":       {set(model, "vocab_size", 1.5), fault.ErrInvalid, []string{model, "vocab_size"}},
		"negative":       {set(model, "num_hidden_layers", -1), fault.ErrInvalid, []string{model, "num_hidden_layers", "-1"}},
		"epsilon":        {set(model, "layer_norm_eps", 0), fault.ErrInvalid, []string{model, "layer_norm_eps"}},
		"embedding size": {set(model, "embedding_size", 8), fault.ErrUnsupported, []string{model, "embedding_size", "8"}},
		"broken":         {whole(model, `{"model_type":`), fault.ErrInvalid, []string{model, "JSON"}},
		"empty":          {whole(model, ""), fault.ErrInvalid, []string{model, "JSON"}},
		"no object":      {whole(model, "null"), fault.ErrInvalid, []string{model, "JSON"}},
		"no config":      {func(f map[string][]byte) { delete(f, model) }, fault.ErrInvalid, []string{model, "missing"}},
		"no weights":     {func(f map[string][]byte) { delete(f, "model.safetensors") }, fault.ErrInvalid, []string{"model.safetensors"}},
		"sharded": {func(f map[string][]byte) {
			f["model.safetensors.index.json"] = f["model.safetensors"]
			delete(f, "model.safetensors")
		}, fault.ErrUnsupported, []string{"model.safetensors.index.json"}},
		"more layers":   {set(model, "num_hidden_layers", 3), fault.ErrInvalid, []string{"model.safetensors", "encoder.layer.2.output.dense.weight"}},
		"fewer layers":  {set(model, "num_hidden_layers", 1), fault.ErrInvalid, []string{"model.safetensors", "encoder.layer.1.", "config.json says 1 layers"}},
		"wrong shape":   {set(model, "intermediate_size", 41), fault.ErrInvalid, []string{"encoder.layer.0.intermediate.dense.weight", "[40 24]", "[41 24]"}},
		"wrong rows":    {set(model, "vocab_size", 61), fault.ErrInvalid, []string{"embeddings.word_embeddings.weight", "[60 24]"}},
		"a tensor less": {without("encoder.layer.1.output.dense.bias"), fault.ErrInvalid, []string{"encoder.layer.1.output.dense.bias", "missing"}},
		"whole numbers": {func(f map[string][]byte) {
			f["model.safetensors"] = bytes.ReplaceAll(f["model.safetensors"], []byte(`"F32"`), []byte(`"I32"`))
		}, fault.ErrUnsupported, []string{"is I32, want F32"}},
		"module":            {whole("modules.json", `[{"path":"","type":"a.Transformer"},{"path":"1_Pooling","type":"a.Pooling"},{"path":"2_Dense","type":"a.Dense"}]`), fault.ErrUnsupported, []string{"modules.json", "a.Dense"}},
		"order of modules":  {whole("modules.json", `[{"path":"1_Pooling","type":"a.Pooling"}]`), fault.ErrUnsupported, []string{"modules.json", "Pooling"}},
		"no pooling":        {whole("modules.json", `[{"path":"","type":"a.Transformer"}]`), fault.ErrUnsupported, []string{"modules.json", "cross-encoder"}},
		"no modules":        {whole("modules.json", `[]`), fault.ErrUnsupported, []string{"modules.json", "no modules"}},
		"pooling nowhere":   {whole("modules.json", `[{"path":"","type":"a.Transformer"},{"type":"a.Pooling"}]`), fault.ErrInvalid, []string{"modules.json", "path"}},
		"another folder":    {whole("modules.json", `[{"path":"../x","type":"a.Transformer"}]`), fault.ErrInvalid, []string{"modules.json", "../x"}},
		"no list":           {whole("modules.json", `{}`), fault.ErrInvalid, []string{"modules.json"}},
		"pooling":           {set(pool, "pooling_mode_lasttoken", true), fault.ErrUnsupported, []string{pool, "pooling_mode_"}},
		"weighted":          {whole(pool, `{"pooling_mode_weightedmean_tokens":true}`), fault.ErrUnsupported, []string{pool, "pooling_mode_weightedmean_tokens"}},
		"two poolings":      {set(pool, "pooling_mode_cls_token", true), fault.ErrUnsupported, []string{pool, "beside pooling_mode_cls_token"}},
		"unknown pooling":   {set(pool, "pooling_mode_median_tokens", true), fault.ErrUnsupported, []string{pool, "pooling_mode_median_tokens"}},
		"list of poolings":  {whole(pool, `{"pooling_mode":["cls","mean"]}`), fault.ErrUnsupported, []string{pool, "pooling_mode", "cls"}},
		"number of pooling": {whole(pool, `{"pooling_mode":3}`), fault.ErrInvalid, []string{pool, "pooling_mode", "3"}},
		"none":              {set(pool, "pooling_mode_mean_tokens", false), fault.ErrInvalid, []string{pool, "pooling_mode_mean_tokens"}},
		"another dimension": {set(pool, "word_embedding_dimension", 25), fault.ErrInvalid, []string{pool, "word_embedding_dimension", "25", "24"}},
		"no config of it":   {func(f map[string][]byte) { delete(f, pool) }, fault.ErrInvalid, []string{pool, "missing"}},
		"lower":             {set("sentence_bert_config.json", "do_lower_case", 1), fault.ErrInvalid, []string{"sentence_bert_config.json", "do_lower_case", "1"}},
		"limit":             {set("sentence_bert_config.json", "max_seq_length", -3), fault.ErrInvalid, []string{"sentence_bert_config.json", "max_seq_length", "-3"}},
		"prompts":           {set("config_sentence_transformers.json", "prompts", 7), fault.ErrInvalid, []string{"config_sentence_transformers.json", "prompts", "7"}},
		"nameless prompt":   {set("config_sentence_transformers.json", "default_prompt_name", ""), fault.ErrInvalid, []string{"config_sentence_transformers.json", "default_prompt_name", "query"}},
		"no such prompt":    {set("config_sentence_transformers.json", "default_prompt_name", "x"), fault.ErrInvalid, []string{"config_sentence_transformers.json", "default_prompt_name", "query"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := b.files()
			c.change(files)
			e, err := encoder.Open(bg, rt, put(t, files), encoder.Config{})
			if e != nil || !errors.Is(err, c.sentinel) {
				t.Fatalf("%v, want %v", err, c.sentinel)
			}
			for _, word := range c.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("no %q in %q", word, err)
				}
			}
			if typed, ok := errors.AsType[*fault.Error](err); strings.HasSuffix(c.words[0], ".json") && (!ok || typed.Key != c.words[0] || !strings.Contains(err.Error(), typed.Field)) {
				t.Errorf("no file and field in %#v", typed)
			}
		})
	}
	for name, dir := range map[string]string{"no folder": filepath.Join(t.TempDir(), "none"), "a file": filepath.Join(put(t, b.files()), "config.json"), "empty": t.TempDir()} {
		if _, err := encoder.Open(bg, rt, dir, encoder.Config{}); !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := put(t, b.files())
	for name, cfg := range map[string]encoder.Config{
		"device": {Device: "tpu"}, "number": {Device: "cpu:01"}, "no number": {Device: "cpu:"}, "below": {Device: "cpu:-1"}, "workers": {Workers: -1}, "tokens": {MaxTokens: b.positions + 1}, "one token": {MaxTokens: 1}, "pooling": {Pooling: "last"}, "prompt": {Prompt: "x"}, "prefix and prompt": {Prompt: "query", Prefix: "x"},
	} {
		if _, err := encoder.Open(bg, rt, dir, cfg); !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e, err := encoder.Open(bg, rt, dir, encoder.Config{Device: "cpu:1"}); !errors.Is(err, kiln.ErrNotFound) {
		t.Errorf("a second processor: %v, %v", e, err)
	}
	if err := os.Remove(filepath.Join(dir, "model.safetensors")); err != nil {
		t.Error(err)
	}
}

// R3: an error of Open says what to do instead.
func TestOpenSaysWhatToDo(t *testing.T) {
	files := newBERT().files()
	delete(files, "config_sentence_transformers.json")
	rt, dir := openRuntime(t), put(t, files)
	for _, c := range []struct {
		rt       *kiln.Runtime
		dir      string
		cfg      encoder.Config
		is       error
		contains string
	}{
		{nil, dir, encoder.Config{}, kiln.ErrClosed, "want one that kiln.Open gave"},
		{new(kiln.Runtime), dir, encoder.Config{}, kiln.ErrClosed, "want one that kiln.Open gave"},
		{rt, "all-MiniLM-L6-v2", encoder.Config{}, fs.ErrNotExist, "name the folder of a model"},
		{rt, "", encoder.Config{}, kiln.ErrInvalid, "name the folder of a model"},
		{rt, dir, encoder.Config{Device: "tpu"}, kiln.ErrInvalid, ", or that of a package to import, such as gpuexec/opencl"},
		{rt, dir, encoder.Config{Prompt: "x"}, kiln.ErrInvalid, "the folder has no prompts"},
	} {
		e, err := encoder.Open(bg, c.rt, c.dir, c.cfg)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%q %+v: %v, %v, want %q", c.dir, c.cfg, e, err, c.contains)
		}
	}
}
