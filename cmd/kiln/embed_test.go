package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

const tinyModel = "../../encoder/testdata/tiny"

// embedded is a line of kiln embed.
type embedded struct {
	Tokens    int       `json:"tokens"`
	Cut       bool      `json:"cut"`
	Embedding []float32 `json:"embedding"`
}

func embed(t *testing.T, stdin string, args ...string) (all []embedded, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := Main(append([]string{"embed", "--model", tinyModel}, args...), strings.NewReader(stdin), &out, &errs); code != exitDone {
		t.Fatalf("exit %d, %s", code, errs.String())
	}
	for line := range strings.Lines(out.String()) {
		var e embedded
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all, errs.String()
}

func sameEmbedding(a, b embedded) bool {
	return a.Tokens == b.Tokens && a.Cut == b.Cut && slices.Equal(a.Embedding, b.Embedding)
}

// Each line becomes one of JSON, from stdin or files, with the same bits in any batch.
func TestEmbed(t *testing.T) {
	text := "w7 w8\n\nw9 w10 w11\r\nw12"
	got, errs := embed(t, text)
	if len(got) != 4 || errs != "" {
		t.Fatalf("%d lines, stderr %q", len(got), errs)
	}
	for i, want := range []int{4, 2, 5, 3} {
		if got[i].Tokens != want || got[i].Cut || len(got[i].Embedding) != 24 {
			t.Errorf("line %d: %+v", i, got[i])
		}
	}
	one := file(t, "one.txt", "w7 w8\n\n")
	two := file(t, "two.txt", "w9 w10 w11\n")
	for _, args := range [][]string{{"--batch", "1"}, {"--batch=3", "-"}, {one, two, "-"}} {
		stdin := text
		if len(args) == 3 {
			stdin = "w12\n"
		}
		if again, _ := embed(t, stdin, args...); !slices.EqualFunc(again, got, sameEmbedding) {
			t.Errorf("%v: other embeddings", args)
		}
	}
	if cut, errs := embed(t, text, "--max-tokens", "4"); len(cut) != 4 || cut[0].Cut || !cut[2].Cut || cut[2].Tokens != 4 || !strings.Contains(errs, "cut") {
		t.Errorf("%+v, stderr %q", cut, errs)
	}
	if query, _ := embed(t, "w7", "--prompt", "query"); len(query) != 1 || query[0].Tokens != 5 {
		t.Errorf("with a prompt: %+v", query)
	}
	if query, _ := embed(t, "w7", "--prefix", "w8 w9 "); len(query) != 1 || query[0].Tokens != 5 {
		t.Errorf("with a prefix: %+v", query)
	}
	if none, _ := embed(t, ""); len(none) != 0 {
		t.Errorf("no text: %+v", none)
	}
}

func TestEmbedRefuses(t *testing.T) {
	refused(t, []string{"embed"}, "--model DIR")
	refused(t, []string{"embed", "--model", "none"}, "--model", "none", "no such file")
	refused(t, []string{"embed", "--model", tinyModel, "none.txt"}, "none.txt")
	refused(t, []string{"embed", "--model", tinyModel, "--max-tokens", "21"}, "--max-tokens", "want 2 to 20")
	refused(t, []string{"embed", "--model", tinyModel, "--prompt", "passage"}, "--prompt", `none or one of the folder's: ["query"]`)
	refused(t, []string{"embed", "--model", tinyModel, "--prompt", "query", "--prefix", "x"}, "--prefix", "want one of them")
	refused(t, []string{"embed", "--model", tinyModel, "--device", "abacus"}, "--device", "abacus")
	refused(t, []string{"embed", "--model", tinyModel, t.TempDir()}, "line 1", "directory")
	for _, b := range ops.Names() { // R3
		if b != cpu.Name && gpuexec.Find(b).Devices(t.Context())[0].Available {
			refused(t, []string{"embed", "--model", tinyModel, "--device", b, "--weights", "bfloat16"}, "--weights", `Weights is "bfloat16"`, "want float32")
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(tinyModel)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"t5"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, []string{"embed", "--model", dir}, "config.json", "model_type", "t5")
}

// crossEncoder is the tiny model with a classifier of one label, all 0.
func crossEncoder(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	weights, err := os.ReadFile(filepath.Join(tinyModel, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	length := 8 + binary.LittleEndian.Uint64(weights)
	var header map[string]any
	if err := json.Unmarshal(weights[8:length], &header); err != nil {
		t.Fatal(err)
	}
	body := weights[length:]
	for name, shape := range map[string][]int{"pooler.dense.weight": {24, 24}, "pooler.dense.bias": {24}, "classifier.weight": {1, 24}, "classifier.bias": {1}} {
		bytes := 4
		for _, d := range shape {
			bytes *= d
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{len(body), len(body) + bytes}}
		body = append(body, make([]byte, bytes)...)
	}
	var config map[string]any
	text, err := os.ReadFile(filepath.Join(tinyModel, "config.json"))
	if err := errors.Join(err, json.Unmarshal(text, &config)); err != nil {
		t.Fatal(err)
	}
	config["architectures"], config["id2label"] = []string{"BertForSequenceClassification"}, map[string]string{"0": "LABEL_0"}
	vocabulary, err1 := os.ReadFile(filepath.Join(tinyModel, "vocab.txt"))
	text, err2 := json.Marshal(config)
	names, err3 := json.Marshal(header)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	weights = append(binary.LittleEndian.AppendUint64(nil, uint64(len(names))), append(names, body...)...)
	for name, text := range map[string][]byte{"config.json": text, "vocab.txt": vocabulary, "model.safetensors": weights} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A cross-encoder has no embeddings that mean anything: the command says so, before it reads a text.
func TestEmbedRefusesACrossEncoder(t *testing.T) {
	refused(t, []string{"embed", "--model", crossEncoder(t)}, "--model", "cross-encoder", "Encoder.Score")
}

// R3: an error says which lines of what were not answered.
func TestEmbedNamesLines(t *testing.T) {
	for text, want := range map[string]string{"w7\n": "-: line 1: ", "w7\nw8\n": "-: lines 1 to 2: "} {
		var errs bytes.Buffer
		if code := Main([]string{"embed", "--model", tinyModel}, strings.NewReader(text), broken{}, &errs); code != exitFailed || !strings.Contains(errs.String(), want) {
			t.Errorf("exit %d, %s, want %q", code, errs.String(), want)
		}
	}
}

// A line that nobody can mean to be a text is refused, and read no further.
func TestEmbedLongLine(t *testing.T) {
	l := lines{name: "x", from: bufio.NewReader(endless{})}
	if texts, err := l.batch(3); len(texts) != 0 || !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), "line 1 is longer than") {
		t.Errorf("%d texts, %v", len(texts), err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// A text is answered without waiting for the next; and a command that is interrupted ends
// though its input does not.
func TestEmbedStreams(t *testing.T) {
	in, feed := io.Pipe()
	answers, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		i := slices.IndexFunc(commands, func(c command) bool { return c.name == "embed" })
		ended <- embedCommand(ctx, newCall(commands[i], []string{"--model", tinyModel}, in, out, io.Discard))
		out.Close()
	}()
	answer := bufio.NewReader(answers)
	for n := range 3 {
		if _, err := fmt.Fprintf(feed, "w%d\n", 7+n); err != nil {
			t.Fatal(err)
		}
		if line, err := answer.ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"tokens":3,`) {
			t.Fatalf("%.40q, %v", line, err)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	feed.Close()
}
