package oplist_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// wantInputs is the data flow of google-research/bert written down from its
// source, for the embeddings, any layer, and the pooler. "in" is the layer's
// input, other words are names of operations without their scope.
var wantInputs = map[string]string{
	"bert/embeddings/word_embeddings":       "tokens",
	"bert/embeddings/token_type_embeddings": "token types",
	"bert/embeddings/add_token_type":        "bert/embeddings/word_embeddings, bert/embeddings/token_type_embeddings",
	"bert/embeddings/add_position":          "bert/embeddings/add_token_type",
	"bert/embeddings/LayerNorm":             "bert/embeddings/add_position",
	"L/attention/self/query":                "in",
	"L/attention/self/key":                  "in",
	"L/attention/self/value":                "in",
	"L/attention/self/transpose_query":      "L/attention/self/query",
	"L/attention/self/transpose_key":        "L/attention/self/key",
	"L/attention/self/transpose_value":      "L/attention/self/value",
	"L/attention/self/QK":                   "L/attention/self/transpose_query, L/attention/self/transpose_key, lengths",
	"L/attention/self/softmax":              "L/attention/self/QK, lengths",
	"L/attention/self/PV":                   "L/attention/self/softmax, L/attention/self/transpose_value, lengths",
	"L/attention/self/merge_heads":          "L/attention/self/PV",
	"L/attention/output/dense":              "L/attention/self/merge_heads",
	"L/attention/output/residual":           "L/attention/output/dense, in",
	"L/attention/output/LayerNorm":          "L/attention/output/residual",
	"L/intermediate/dense":                  "L/attention/output/LayerNorm",
	"L/intermediate/gelu":                   "L/intermediate/dense",
	"L/output/dense":                        "L/intermediate/gelu",
	"L/output/residual":                     "L/output/dense, L/attention/output/LayerNorm",
	"L/output/LayerNorm":                    "L/output/residual",
	"bert/pooler/first_token":               "in",
	"bert/pooler/dense":                     "bert/pooler/first_token",
	"bert/pooler/tanh":                      "bert/pooler/dense",
}

func TestDataFlow(t *testing.T) {
	for _, name := range []string{"bert_base_uncased", "bert_tiny_l2_h128", "minilm_l6_h384"} {
		m := model(t, name)
		input, layer := "", -1 // the stack's value before the current layer
		for i, op := range m.Ops {
			scope := op.Name
			if after, ok := strings.CutPrefix(op.Name, "bert/encoder/layer_"); ok {
				n := 0
				if _, err := fmt.Sscanf(after, "%d", &n); err != nil {
					t.Fatal(err)
				}
				if n != layer {
					layer, input = n, m.Ops[i-1].Name
				}
				_, rest, _ := strings.Cut(after, "/")
				scope = "L/" + rest
			} else if strings.HasPrefix(op.Name, "bert/pooler/first") {
				input = m.Ops[i-1].Name
			}
			want := wantInputs[scope]
			if want == "" {
				t.Fatalf("%s: the test does not know %s", name, scope)
			}
			parts := strings.Split(want, ", ")
			for k, p := range parts {
				if p == "in" {
					p = input
				}
				parts[k] = strings.Replace(p, "L/", fmt.Sprintf("bert/encoder/layer_%d/", layer), 1)
			}
			got := make([]string, len(op.Inputs))
			for k, s := range op.Inputs {
				own := map[oplist.Source]string{oplist.Tokens: "tokens", oplist.TokenTypes: "token types", oplist.Lengths: "lengths"}
				if got[k] = own[s]; s >= 0 {
					got[k] = m.Ops[s].Name
				}
			}
			if !slices.Equal(got, parts) {
				t.Errorf("%s: %s reads %q, want %q", name, op.Name, got, parts)
			}
			if wantT := strings.HasSuffix(op.Name, "/QK"); op.TransposeB != wantT {
				t.Errorf("%s: %s has TransposeB %v", name, op.Name, op.TransposeB)
			}
		}
	}
}

// Names carry no flow: a list with other names has the same one.
func TestDataFlowWithoutNames(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(builtin(t, "bert_tiny_l2_h128")), "\n")
	want := model(t, "bert_tiny_l2_h128")
	for i := range want.Ops {
		lines[i+1] = strings.Replace(lines[i+1], fmt.Sprintf(`"name": %q, "src"`, want.Ops[i].Name), fmt.Sprintf(`"name": "op%d", "src"`, i), 1)
	}
	got, err := oplist.Parse("m", []byte(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Ops {
		if got.Ops[i].Name != fmt.Sprintf("op%d", i) {
			t.Fatalf("operation %d kept its name", i)
		}
		if !slices.Equal(got.Ops[i].Inputs, want.Ops[i].Inputs) {
			t.Errorf("operation %d reads %v, with names %v", i, got.Ops[i].Inputs, want.Ops[i].Inputs)
		}
	}
}

// A value may be freed once its last reader ran, and each but the output is
// freed exactly once.
func TestReleases(t *testing.T) {
	m := model(t, "minilm_l6_h384")
	freedAt := map[int]int{}
	for i, op := range m.Ops {
		for _, in := range op.Inputs {
			if at, gone := freedAt[int(in)]; gone {
				t.Errorf("%s reads op %d, which was released after op %d", op.Name, in, at)
			}
		}
		for _, r := range op.Releases {
			if _, twice := freedAt[r]; twice {
				t.Errorf("op %d is released twice", r)
			}
			if !slices.Contains(op.Inputs, oplist.Source(r)) {
				t.Errorf("%s releases op %d, which it does not read", op.Name, r)
			}
			freedAt[r] = i
		}
	}
	if len(freedAt) != len(m.Ops)-1 {
		t.Errorf("%d values are released, want all %d but the output", len(freedAt), len(m.Ops)-1)
	}
}

// A list with any one line left out, or two neighbours that are not
// interchangeable swapped, is refused, also when its totals are made to agree.
func TestBrokenFlowIsRefused(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(builtin(t, "bert_tiny_l2_h128")), "\n")
	header := `{"model": "m", "symbols": {"B": "b", "S": "s"}, "dtype": "f32", "ops": %d}`
	parse := func(ops []string) error {
		renumbered := []string{fmt.Sprintf(header, len(ops))}
		for i, op := range ops {
			_, rest, _ := strings.Cut(op, ",")
			renumbered = append(renumbered, fmt.Sprintf(`{"i": %d,%s`, i, rest))
		}
		_, err := oplist.Parse("m", []byte(strings.Join(renumbered, "\n")))
		return err
	}
	if err := parse(lines[1:]); err != nil {
		t.Fatalf("the whole list: %v", err)
	}
	// Without these a whole encoder of another structure is left.
	legal := []string{"output/LayerNorm", "residual", "gelu", "attention/output/dense", "pooler/dense", "pooler/tanh"}
	for i := 1; i < len(lines); i++ {
		name := strings.Split(lines[i], `"`)[9]
		err := parse(slices.Delete(slices.Clone(lines[1:]), i-1, i))
		other := slices.ContainsFunc(legal, func(s string) bool { return strings.HasSuffix(name, s) })
		if other && err == nil {
			continue
		}
		if err == nil {
			t.Errorf("parsed without %s", name)
		} else if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("without %s: %v is not ErrInvalid", name, err)
		}
	}
	for _, swap := range []int{11, 12, 13, 14, 19, 41} { // QK .. merge_heads, gelu, slice
		ops := slices.Clone(lines[1:])
		ops[swap], ops[swap+1] = ops[swap+1], ops[swap]
		if parse(ops) == nil {
			t.Errorf("parsed with operations %d and %d swapped", swap, swap+1)
		}
	}
}

func TestUnmaskedAttentionIsRefused(t *testing.T) {
	_, err := oplist.Parse("m", []byte(edit(t, 13, ";post:mask_add", "")))
	if err == nil || !strings.Contains(err.Error(), "m:14") || !strings.Contains(err.Error(), "post:mask_add") {
		t.Errorf("got %v, want an error at the softmax", err) // E8
	}
}

func TestBind(t *testing.T) {
	m := model(t, "minilm_l6_h384")
	ops, err := m.At(3, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		name, src, dst string
		elements       int
	}{
		{"bert/embeddings/add_position", "[[3 20 384] [1 20 384]]", "[3 20 384]", 3 * 20 * 384},
		{"bert/encoder/layer_0/attention/self/QK", "[[3 12 20 32] [3 12 32 20]]", "[3 12 20 20]", 3 * 12 * 400},
		{"bert/encoder/layer_5/intermediate/dense", "[[60 384]]", "[60 1536]", 60 * 1536},
		{"bert/pooler/tanh", "[[3 384]]", "[3 384]", 3 * 384},
	} {
		i := slices.IndexFunc(ops, func(o oplist.BoundOp) bool { return o.Name == want.name })
		if got := fmt.Sprint(ops[i].Src); got != want.src {
			t.Errorf("%s: src %s, want %s", want.name, got, want.src)
		}
		if got := fmt.Sprint(ops[i].Dst); got != want.dst || ops[i].Elements() != want.elements {
			t.Errorf("%s: dst %s of %d elements, want %s", want.name, got, ops[i].Elements(), want.dst)
		}
	}
	for name, values := range map[string]map[string]int{
		"missing":  {"B": 1},
		"zero":     {"B": 0, "S": 1},
		"negative": {"B": 1, "S": -1},
		"unknown":  {"B": 1, "S": 1, "P": 1},
		"huge":     {"B": 1 << 30, "S": 1 << 30},
		"overflow": {"B": 1<<31 - 1, "S": 1<<31 - 1},
	} {
		if ops, err := m.Bind(values); !errors.Is(err, fault.ErrInvalid) || ops != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.At(1, 513); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "at most 512") {
		t.Errorf("513 tokens: %v", err)
	}
}

// Dims are compared as expressions, whatever the order they are written in.
func TestDimsAreCanonical(t *testing.T) {
	if _, err := oplist.Parse("m", []byte(edit(t, 6, `"src": [["B*S", 128]]`, `"src": [["S*B", 128]]`))); err != nil {
		t.Errorf("S*B is not B*S: %v", err)
	}
	_, err := oplist.Parse("m", []byte(edit(t, 6, `"src": [["B*S", 128]], "dst": ["B*S", 128]`, `"src": [["B*S+1", 128]], "dst": ["B*S+1", 128]`)))
	if err == nil || !strings.Contains(err.Error(), "[B*S+1,128]") {
		t.Errorf("B*S+1 passed for B*S: %v", err)
	}
}
