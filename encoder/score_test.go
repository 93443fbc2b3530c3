package encoder_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
)

// judge is a cross-encoder: newBERT with a head.
func judge() *bert {
	b := newBERT()
	random := rand.New(rand.NewPCG(3, 4))
	add := func(name string, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		t := tensor{shape: shape}
		for range n {
			t.values = append(t.values, float32(random.NormFloat64()/2))
		}
		b.tensors[name] = t
	}
	add("pooler.dense.weight", b.width, b.width)
	add("pooler.dense.bias", b.width)
	add("classifier.weight", 1, b.width)
	add("classifier.bias", 1)
	return b
}

// files of a cross-encoder, as sentence-transformers writes them: not a pipeline.
func (b *bert) judgeFiles() map[string][]byte {
	all := b.files()
	config := changed(all["config.json"], "architectures", []string{"BertForSequenceClassification"})
	return map[string][]byte{"vocab.txt": all["vocab.txt"], "config.json": changed(config, "id2label", map[string]string{"0": "LABEL_0"}),
		"model.safetensors": b.weights("F32", func(name string) string {
			if strings.HasPrefix(name, "classifier") {
				return name
			}
			return "bert." + name
		})}
}

// score is that of float64, before a sigmoid.
func (b *bert) score(ids, types []int32) float64 {
	pooled := b.linear("pooler.dense", b.typed(ids, types)[:1])
	for j, v := range pooled[0] {
		pooled[0][j] = math.Tanh(v)
	}
	return b.linear("classifier", pooled)[0][0]
}

// pairsOf are pairs of words in numbers, with their ids and types.
func pairsOf(lengths [][2]int) (pairs [][2]string, ids, types [][]int32) {
	for i, n := range lengths {
		row, kinds := []int32{2}, []int32{0}
		var texts [2]string
		for side := range texts {
			for at := range n[side] {
				word := int32(7 + (i*13+at*5+side*29)%50)
				texts[side] += fmt.Sprintf("w%d ", word)
				row, kinds = append(row, word), append(kinds, int32(side))
			}
			row, kinds = append(row, 3), append(kinds, int32(side))
		}
		pairs, ids, types = append(pairs, texts), append(ids, row), append(types, kinds)
	}
	return pairs, ids, types
}

var someLengths = [][2]int{{3, 5}, {0, 0}, {1, 12}, {12, 1}, {0, 4}, {8, 8}, {2, 2}, {16, 1}}

// A score is that of float64, and types of tokens count. E8: a pair has the same bits alone,
// beside others, padded, and with a sigmoid on top of what the classifier gave.
func TestScore(t *testing.T) {
	b := judge()
	files := b.judgeFiles()
	rt := openRuntime(t)
	e := open(t, rt, put(t, files), encoder.Config{Workers: 2})
	if !e.Info().Scores {
		t.Error("a cross-encoder does not say that it scores")
	}
	files["config.json"] = changed(files["config.json"], "sbert_ce_default_activation_function", "torch.nn.modules.linear.Identity")
	raw := open(t, rt, put(t, files), device(t, "padding"))
	files["config.json"] = changed(files["config.json"], "sentence_transformers", map[string]string{"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5"})
	newer := open(t, rt, put(t, files), encoder.Config{})
	pairs, ids, types := pairsOf(someLengths)
	got, err1 := e.Score(bg, pairs)
	plain, err2 := raw.Score(bg, pairs)
	again, err3 := newer.Score(bg, pairs)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again, got) {
		t.Error("the newer field for the same activation gives other scores")
	}
	ignored := 0
	for i := range pairs {
		want := b.score(ids[i], types[i])
		if math.Abs(float64(plain[i])-want) > 1e-5*max(1, math.Abs(want)) {
			t.Errorf("pair %d: %v, want %v", i, plain[i], want)
		}
		if sigmoid := 1 / (1 + math.Exp(-want)); math.Abs(float64(got[i])-sigmoid) > 1e-5 {
			t.Errorf("pair %d: %v, want the sigmoid %v", i, got[i], sigmoid)
		}
		if math.Abs(b.score(ids[i], make([]int32, len(ids[i])))-want) < 1e-3 {
			ignored++
		}
		alone, err := e.Score(bg, pairs[i:i+1])
		if err != nil || alone[0] != got[i] {
			t.Errorf("pair %d: other bits alone: %v, %v, %v", i, alone, got[i], err)
		}
	}
	if ignored > 1 {
		t.Errorf("%d pairs have the same score without types: the test would not see them", ignored)
	}
	// The longer text loses tokens first: 18 words and 5 in 20 tokens are 12 and 5.
	long, _, _ := pairsOf([][2]int{{18, 5}})
	cut, _, _ := pairsOf([][2]int{{18, 5}})
	cut[0][0] = strings.Join(strings.Fields(cut[0][0])[:12], " ")
	if both, err := e.Score(bg, [][2]string{long[0], cut[0]}); err != nil || both[0] != both[1] {
		t.Errorf("a long pair has the score %v, cut %v", both, err)
	}
	if none, err := e.Score(bg, nil); err != nil || len(none) != 0 {
		t.Errorf("no pair: %v, %v", none, err)
	}
	if rows, err := e.Encode(bg, []string{"w7"}); err != nil || len(rows[0]) != b.width {
		t.Errorf("a cross-encoder's embedding: %d numbers, %v", len(rows), err)
	}
	ended, cancel := context.WithCancel(bg)
	cancel()
	if _, err := e.Score(ended, pairs); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Both texts of a pair are lowered, where the folder asks for it before a tokenizer that keeps case.
func TestScoreOfLoweredPairs(t *testing.T) {
	files := judge().judgeFiles()
	files["tokenizer_config.json"] = asJSON(map[string]any{"do_lower_case": false, "strip_accents": false})
	files["sentence_bert_config.json"] = asJSON(map[string]any{"do_lower_case": true})
	e := open(t, openRuntime(t), put(t, files), encoder.Config{})
	got, err := e.Score(bg, [][2]string{{"w7 w8", "w9"}, {"W7 W8", "w9"}, {"w7 w8", "W9"}, {"w7 w8", "w10"}})
	if err != nil || got[1] != got[0] || got[2] != got[0] || got[3] == got[0] {
		t.Errorf("%v, %v, want three equal scores and another", got, err)
	}
}

// A folder as newer versions write it names the model alone in its modules.json, and says
// beside it what becomes of scores, whatever config.json says.
func TestScoreOfModules(t *testing.T) {
	b := judge()
	rt := openRuntime(t)
	pairs, ids, types := pairsOf(someLengths)
	for name, raw := range map[string]bool{"torch.nn.modules.linear.Identity": true, "torch.nn.modules.activation.Sigmoid": false} {
		for _, model := range []string{"", "0_Transformer"} {
			files := b.judgeFiles()
			other := map[bool]string{true: "Sigmoid", false: "Identity"}[raw]
			files["config.json"] = changed(files["config.json"], "sentence_transformers", map[string]string{"activation_fn": other})
			for file, text := range maps.Clone(files) {
				delete(files, file)
				files[path.Join(model, file)] = text
			}
			files["modules.json"] = asJSON([]any{map[string]any{"idx": 0, "name": "0", "path": model, "type": "sentence_transformers.base.modules.transformer.Transformer"}})
			files["config_sentence_transformers.json"] = asJSON(map[string]any{"activation_fn": name, "model_type": "CrossEncoder", "prompts": map[string]string{}, "default_prompt_name": nil})
			e := open(t, rt, put(t, files), encoder.Config{})
			got, err := e.Score(bg, pairs)
			if err != nil || !e.Info().Scores {
				t.Fatalf("%s, model in %q: %v", name, model, err)
			}
			for i := range pairs {
				want := b.score(ids[i], types[i])
				if !raw {
					want = 1 / (1 + math.Exp(-want))
				}
				if math.Abs(float64(got[i])-want) > 1e-5*max(1, math.Abs(want)) {
					t.Errorf("%s, model in %q, pair %d: %v, want %v", name, model, i, got[i], want)
				}
			}
		}
	}
}

// A prompt of a cross-encoder stands before the first text of each pair, unless it is turned off.
func TestScoreWithPrompt(t *testing.T) {
	files := judge().judgeFiles()
	rt := openRuntime(t)
	plain := open(t, rt, put(t, files), encoder.Config{})
	files["config_sentence_transformers.json"] = asJSON(map[string]any{"prompts": map[string]string{"query": "W7 "}, "default_prompt_name": "query"})
	dir := put(t, files)
	pairs := [][2]string{{"w8 w9", "w10"}, {"", "w7"}}
	want, err := plain.Score(bg, [][2]string{{"w7 w8 w9", "w10"}, {"w7", "w7"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, rt, dir, encoder.Config{}).Score(bg, pairs); err != nil || !slices.Equal(got, want) {
		t.Errorf("the folder's prompt: %v, %v, want %v", got, err, want)
	}
	without, err := plain.Score(bg, pairs)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, rt, dir, encoder.Config{Prompt: "none"}).Score(bg, pairs); err != nil || !slices.Equal(got, without) || slices.Equal(got, want) {
		t.Errorf("turned off: %v, %v, want %v", got, err, without)
	}
}

// What is no cross-encoder of one label says so, and a broken one is refused with what is
// wrong.
func TestScoreRefusals(t *testing.T) {
	rt := openRuntime(t)
	b := judge()
	with := func(field string, value any) map[string][]byte {
		files := b.judgeFiles()
		files["config.json"] = changed(files["config.json"], field, value)
		return files
	}
	pipeline := b.files()
	pipeline["config.json"] = b.judgeFiles()["config.json"]
	for name, files := range map[string]map[string][]byte{
		"embeddings": newBERT().files(), "three labels": with("id2label", map[string]string{"0": "a", "1": "b", "2": "c"}),
		"no classifier": with("architectures", []string{"BertModel"}), "a pipeline": pipeline,
	} {
		e := open(t, rt, put(t, files), encoder.Config{})
		if _, err := e.Score(bg, [][2]string{{"w7", "w8"}}); !errors.Is(err, fault.ErrUnsupported) || e.Info().Scores {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := func(name string, files map[string][]byte, want error, field, text string) {
		e, err := encoder.Open(bg, rt, put(t, files), encoder.Config{})
		typed, _ := errors.AsType[*fault.Error](err)
		if e != nil || !errors.Is(err, want) || typed == nil || typed.Field != field || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name := range maps.Keys(b.tensors) {
		if strings.HasPrefix(name, "pooler") || strings.HasPrefix(name, "classifier") {
			less := judge()
			delete(less.tensors, name)
			refused("without "+name, less.judgeFiles(), fault.ErrInvalid, "", name)
			less = judge()
			less.tensors[name] = tensor{shape: []int{2}, values: []float32{1, 2}}
			refused("short "+name, less.judgeFiles(), fault.ErrInvalid, "", name)
		}
	}
	refused("another activation", with("sbert_ce_default_activation_function", "torch.nn.Tanh"), fault.ErrUnsupported, "sbert_ce_default_activation_function", "Tanh")
	refused("another activation, newer", with("sentence_transformers", map[string]string{"activation_fn": "torch.nn.Tanh"}), fault.ErrUnsupported, "sentence_transformers", "Tanh")
	files := b.judgeFiles()
	files["config_sentence_transformers.json"] = asJSON(map[string]string{"activation_fn": "torch.nn.Tanh"})
	refused("another activation, beside it", files, fault.ErrUnsupported, "activation_fn", "Tanh")
	files = with("id2label", map[string]string{"0": "a", "1": "b"})
	files["modules.json"] = []byte(`[{"path":"","type":"a.Transformer"}]`)
	refused("a model alone of two labels", files, fault.ErrUnsupported, "", "config.json")
	refused("no object", with("sentence_transformers", "x"), fault.ErrInvalid, "sentence_transformers", "object")
	few := judge()
	few.tensors["embeddings.token_type_embeddings.weight"] = tensor{shape: []int{1, few.width}, values: make([]float32, few.width)}
	files = few.judgeFiles()
	files["config.json"] = changed(files["config.json"], "type_vocab_size", 1)
	refused("one type", files, fault.ErrInvalid, "type_vocab_size", "1")
}
