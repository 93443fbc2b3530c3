package oplist_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

func builtin(t testing.TB, name string) string {
	t.Helper()
	list, ok := data.Model(name)
	if !ok {
		t.Fatalf("no built-in model %s", name)
	}
	return string(list)
}

func model(t testing.TB, name string) *oplist.Model {
	t.Helper()
	m, err := oplist.Parse(name+".jsonl", []byte(builtin(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestBuiltinModels(t *testing.T) {
	for _, want := range []struct {
		name                     string
		ops, weights, params     int
		width, vocab, max, first int
	}{
		{"bert_base_uncased", 224, 199, 109482240, 768, 30522, 512, 18},
		{"bert_tiny_l2_h128", 44, 39, 4385920, 128, 30522, 512, 18},
		{"minilm_l6_h384", 116, 103, 22713216, 384, 30522, 512, 18},
	} {
		m := model(t, want.name)
		if len(m.Ops) != want.ops || len(m.Weights) != want.weights || m.Params() != want.params {
			t.Errorf("%s: %d ops, %d weights, %d parameters", want.name, len(m.Ops), len(m.Weights), m.Params())
		}
		if m.Width != want.width || m.Vocab != want.vocab || m.MaxTokens != want.max || m.PerToken {
			t.Errorf("%s: width %d, vocabulary %d, at most %d tokens, per token %v", want.name, m.Width, m.Vocab, m.MaxTokens, m.PerToken)
		}
		if m.Distinct() != want.first {
			t.Errorf("%s: %d distinct primitives, want %d", want.name, m.Distinct(), want.first)
		}
		bound, err := m.At(1, 128)
		if err != nil {
			t.Fatal(err)
		}
		distinct := map[string]bool{}
		for _, b := range bound {
			distinct[b.Identity()] = true
		}
		if n := len(distinct); n != 18 { // 224 names of BERT-base at 128 tokens cost 18
			t.Errorf("%s: %d distinct primitives at 128 tokens, want 18", want.name, n)
		}
	}
}

// edit returns bert_tiny with the first occurrence of old on this line
// replaced. Lines count from 1.
func edit(t testing.TB, line int, old, new string) string {
	t.Helper()
	lines := strings.Split(builtin(t, "bert_tiny_l2_h128"), "\n")
	if !strings.Contains(lines[line-1], old) {
		t.Fatalf("line %d does not hold %q: %s", line, old, lines[line-1])
	}
	lines[line-1] = strings.Replace(lines[line-1], old, new, 1)
	return strings.Join(lines, "\n")
}

// Bad input gives one line that names file, line and field and says what would
// be right.
func TestParseErrors(t *testing.T) {
	const bigShape = `[2147483646, 2147483646]`
	for _, c := range []struct {
		name, text, want string
	}{
		{"empty", "", "m.jsonl: empty"},
		{"blank", " \n\n", "m.jsonl: empty"},
		{"binary", "{\x00", "m.jsonl: binary"},
		{"not text", "\xff\xfe{", "m.jsonl: binary"},
		{"huge", strings.Repeat("x", 16<<20+1), "m.jsonl: longer than 16777216 bytes"},
		{"many lines", strings.Repeat("\n", 1<<15) + "{", "at most 16384 operations"},
		{"long line", "{\"model\":\"" + strings.Repeat("x", 1<<16) + "\"}", "m.jsonl:1: longer than 65536 bytes"},
		{"csv", "t_ms,len,out,session\n0,1,,\n", "m.jsonl:1: not a JSON object"},
		{"array", "[1]\n", "m.jsonl:1: not a JSON object"},
		{"open object", `{"model": "x"`, "m.jsonl:1: broken JSON: the object is not closed"},
		{"two objects", edit(t, 1, `"ops_depending_on_shape": 44}`, `"ops_depending_on_shape": 44} {}`), `m.jsonl:1: something follows`},
		{"trailing space is fine", edit(t, 2, `"weight_bytes": 15627264}`, `"weight_bytes": 15627264} `), ""},
		{"unknown header field", edit(t, 1, `"note"`, `"notes"`), `m.jsonl:1: field "notes": unknown; known here are model,`},
		{"other case", edit(t, 1, `"dtype"`, `"Dtype"`), `field "Dtype": unknown`},
		{"twice", edit(t, 1, `"dtype": "f32"`, `"dtype": "f32", "dtype": "f32"`), `field "dtype": given twice`},
		{"null", edit(t, 1, `"f32"`, `null`), `field "dtype": is null`},
		{"dtype", edit(t, 1, `"f32"`, `"f16"`), `field "dtype": "f16" is not supported; only f32 is`},
		{"no model", edit(t, 1, `"model": "bert_tiny_l2_h128", `, ``), `field "model": missing`},
		{"symbols", edit(t, 1, `{"B": "batch", "S": "sequence length"}`, `[]`), `field "symbols": not an object of names`},
		{"symbol name", edit(t, 1, `"B": "batch"`, `"1": "batch"`), `field "symbols": "1" is not a symbol`},
		{"ops count", edit(t, 1, `"ops": 44`, `"ops": 45`), `field "ops": says 45 operations, but 44 lines follow`},
		{"ops text", edit(t, 1, `"ops": 44`, `"ops": "44"`), `field "ops": "44" is not a whole number from 0`},
		{"ops negative", edit(t, 1, `"ops": 44`, `"ops": -1`), `-1 is not a whole number`},
		{"weights path", edit(t, 1, `"ops": 44`, `"weights": "../w.safetensors", "ops": 44`), `field "weights": "../w.safetensors" is not the plain name`},
		{"params", edit(t, 1, `4385920`, `4385921`), `m.jsonl:1: field "params": says 4385921, the list has 4385920 parameters`},
		{"distinct", edit(t, 1, `"distinct_primitives_per_shape": 18`, `"distinct_primitives_per_shape": 17`), `says 17, the list has 18 distinct primitives`},
		{"place", edit(t, 3, `"i": 1`, `"i": 2`), `m.jsonl:3: field "i": is 2 at place 1`},
		{"kind", edit(t, 6, `"layernorm"`, `"rmsnorm"`), `m.jsonl:6: field "kind": "rmsnorm" is not known; an encoder has add, batch_matmul,`},
		{"phase", edit(t, 6, `"kind"`, `"phase": "bwd", "kind"`), `field "phase": this is an operation of a training step`},
		{"same name", edit(t, 3, `"bert/embeddings/token_type_embeddings", "src"`, `"bert/embeddings/word_embeddings", "src"`), `field "name": "bert/embeddings/word_embeddings" is the name of an operation before`},
		{"blank line", edit(t, 4, builtinLine(t, 4), ``), `m.jsonl:4: not a JSON object`},
		{"no src", edit(t, 4, `"src": [["B", "S", 128], ["B", "S", 128]], `, ``), `field "src": missing`},
		{"one src", edit(t, 4, `[["B", "S", 128], ["B", "S", 128]]`, `[["B", "S", 128]]`), `field "src": 1 inputs; a add has 2`},
		{"unknown symbol", edit(t, 6, `"B*S"`, `"B*T"`), `m.jsonl:6: field "src": input 0: dim 0: "T" in "B*T" is neither a number`},
		{"empty factor", edit(t, 6, `"B*S"`, `"B*"`), `"" in "B*" is neither`},
		{"zero", edit(t, 6, `["B*S", 128]`, `[0, 128]`), `0 is neither a whole number from 1`},
		{"negative", edit(t, 6, `["B*S", 128]`, `["B*S", -128]`), `-128 is neither a whole number`},
		{"fraction", edit(t, 6, `["B*S", 128]`, `["B*S", 1.5]`), `1.5 is neither a whole number`},
		{"minus", edit(t, 6, `"B*S"`, `"B-S"`), `"B-S" in "B-S" is neither`},
		{"long expression", edit(t, 6, `"B*S"`, `"`+strings.Repeat("B+", 40)+`B"`), `at most 64 are read`},
		{"overflow", edit(t, 6, `"B*S"`, `"2000000000*2000000000*2000000000"`), `above the limit`},
		{"kernel missing", edit(t, 7, `{"name": "bert/encoder/layer_0/attention/self/query/kernel", "shape": [128, 128], "bytes": 65536}, `, ``),
			`m.jsonl:7: field "weight_bytes": says 66048, the weights named have 512: is one missing?`},
		{"no weights at all", edit(t, 7, builtinLine(t, 7)[strings.Index(builtinLine(t, 7), `, "weights"`):], `}`),
			`m.jsonl:7: field "weights": the kernel is missing: a matmul needs kernel and bias`},
		{"gamma missing", edit(t, 6, `{"name": "bert/embeddings/LayerNorm/gamma", "shape": [128], "bytes": 512}, `, ``), `field "weight_bytes": says 1024`},
		{"weight bytes", edit(t, 6, `"bytes": 512`, `"bytes": 511`), `field "weights.bytes": weight 0: says 511, a float32 tensor of shape [128] has 512`},
		{"weight shape", edit(t, 6, `"shape": [128]`, `"shape": []`), `field "weights.shape": weight 0: empty`},
		{"weight huge", edit(t, 6, `"shape": [128]`, `"shape": `+bigShape), `field "weights.shape": weight 0: a size above the limit`},
		{"weight field", edit(t, 6, `"bytes": 512`, `"byte": 512`), `field "weights.byte": weight 0: unknown`},
		{"weight misfit", edit(t, 7, `"src": [["B*S", 128]], "dst": ["B*S", 128]`, `"src": [["B*S", 256]], "dst": ["B*S", 128]`),
			`m.jsonl:7: field "weights": the shape of bert/encoder/layer_0/attention/self/query/kernel does not fit`},
		{"no perm", edit(t, 10, `, "attr": "perm:0213"`, ``), `field "attr": a reorder needs its permutation`},
		{"bad perm", edit(t, 10, `perm:0213`, `perm:0223`), `field "attr": perm "0223" does not hold each of the 4 dims`},
		{"other perm", edit(t, 10, `perm:0213`, `perm:0231`), `field "dst": is not src in the order that perm gives`},
		{"attr of none", edit(t, 6, `"kind"`, `"attr": "scale:2", "kind"`), `field "attr": "scale:2" is not an attribute of layernorm here`},
		{"scale", edit(t, 13, `scale:0.125`, `scale:nan`), `scale "nan" is not a finite number`},
		{"causal", edit(t, 13, `mask_add`, `causal_mask`), `post "causal_mask" is not known`},
		{"axis", edit(t, 14, `axis:3`, `axis:2`), `axis "2" is not the last dim`},
		{"alg", edit(t, 21, `alg:gelu`, `alg:relu`), `alg "relu" is not known; there are gelu`},
		{"softmax dims", edit(t, 14, `"dst": ["B", 2, "S", "S"]`, `"dst": ["B", 2, "S", 64]`), `m.jsonl:14: field "dst": is not src; a softmax keeps its dims`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := oplist.Parse("m.jsonl", []byte(c.text))
			if c.want == "" {
				if err != nil {
					t.Fatalf("got %v, want none", err)
				}
				return
			}
			if err == nil || m != nil {
				t.Fatalf("parsed, want an error with %q", c.want)
			}
			var typed *oplist.Error
			if !errors.As(err, &typed) || !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%T %v is not an *oplist.Error that is ErrInvalid", err, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
				t.Errorf("not one clear line: %q", err)
			}
		})
	}
}

func builtinLine(t testing.TB, line int) string {
	return strings.Split(builtin(t, "bert_tiny_l2_h128"), "\n")[line-1]
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	_, err := oplist.Open(filepath.Join(dir, "none.jsonl"))
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a missing file gives %v", err)
	}
	if _, err = oplist.Open(dir); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a directory gives %v", err)
	}
	path := filepath.Join(dir, "m.jsonl")
	if err := os.WriteFile(path, []byte(edit(t, 1, `"ops": 44`, `"weights": "m.safetensors", "ops": 44`)), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := oplist.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "m.safetensors"); m.WeightsPath() != want {
		t.Errorf("weights at %q, want %q", m.WeightsPath(), want)
	}
	if p := model(t, "bert_tiny_l2_h128").WeightsPath(); p != "" {
		t.Errorf("weights at %q though the list names none", p)
	}
}

// Parsing is fuzzed for panics and for memory: what a list of this size may
// allocate is bounded by the limits on lines, not by the numbers in it.
func FuzzParse(f *testing.F) {
	whole := builtin(f, "bert_tiny_l2_h128")
	f.Add([]byte(whole))
	f.Add([]byte(whole[:len(whole)/2]))
	f.Add([]byte(edit(f, 6, `"B*S"`, `"2*B*S+S+1"`)))
	f.Add([]byte(edit(f, 1, `"ops": 44`, `"weights": "w", "ops": 44`)))
	f.Add([]byte(`{"model":"m","symbols":{"B":"b","S":"s"},"dtype":"f32","ops":1}` + "\n" +
		`{"i":0,"kind":"gather","name":"g","src":[["B","S"]],"dst":["B","S",4],"weights":[{"name":"w","shape":[9,4],"bytes":144}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := oplist.Parse("fuzz.jsonl", text)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) || m != nil {
				t.Fatalf("model %v with error %v", m, err)
			}
			return
		}
		ops, err := m.At(1, 1)
		if err != nil {
			return
		}
		for i, op := range ops {
			for _, in := range op.Inputs {
				if int(in) >= i || in < oplist.Lengths {
					t.Fatalf("operation %d reads %v", i, in)
				}
			}
		}
	})
}
