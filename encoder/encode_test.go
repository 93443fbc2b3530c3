package encoder_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
)

// A text that is none is named, and nothing is computed.
func TestWrongTokens(t *testing.T) {
	b := newBERT()
	e := open(t, openRuntime(t), put(t, b.files()), encoder.Config{MaxTokens: 8})
	for name, ids := range map[string][]int32{"empty": {}, "long": make([]int32, 9), "negative": {2, -1}, "beyond": {int32(b.vocabulary)}} {
		_, err := e.EncodeTokens(bg, [][]int32{{2, 3}, ids, {2}})
		typed, ok := errors.AsType[*fault.Error](err)
		if !ok || !errors.Is(err, kiln.ErrInvalid) || typed.Key != "texts[1]" || !strings.Contains(err.Error(), "texts[1]") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := e.EncodeTokens(bg, nil); err != nil || len(got) != 0 {
		t.Errorf("no text: %v, %v", got, err)
	}
	if got, err := e.EncodeTokens(bg, [][]int32{make([]int32, 8)}); err != nil || len(got) != 1 {
		t.Errorf("as long as may be: %v", err)
	}
}

// Texts are cut at the limit, and have their prompt before them, which pooling leaves out
// if the folder says so. The word none turns the folder's default off, and names a prompt
// where the folder has one of that name. Any text has an embedding: no word in it, not UTF-8, NUL, 1 MiB.
func TestTexts(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	files := b.files()
	query := []int32{2, 5, 6, 8, 9, 3} // [CLS] query : w8 w9 [SEP]
	for _, c := range []struct {
		name    string
		config  encoder.Config
		field   string // of the pooling or of the prompts, set to value from here on
		value   any
		ids     []int32
		omitted int
	}{
		{"plain", encoder.Config{}, "", nil, []int32{2, 8, 9, 3}, 0},
		{"prompt", encoder.Config{Prompt: "query"}, "", nil, query, 0},
		{"prefix that counts", encoder.Config{Prefix: "query: "}, "", nil, query, 0},
		{"prompt left out", encoder.Config{Prompt: "query"}, "include_prompt", false, query, 3},
		{"none to leave out", encoder.Config{}, "", nil, []int32{2, 8, 9, 3}, 0},
		{"default prompt", encoder.Config{}, "default_prompt_name", "query", query, 3},
		{"default turned off", encoder.Config{Prompt: "none"}, "", nil, []int32{2, 8, 9, 3}, 0},
		{"prompt before [CLS] alone", encoder.Config{Pooling: "cls"}, "", nil, query, 0},
		{"cut", encoder.Config{MaxTokens: 5}, "", nil, []int32{2, 5, 6, 8, 3}, 3},
		{"prompt alone", encoder.Config{MaxTokens: 3}, "", nil, []int32{2, 5, 3}, 2},
		{"prefix", encoder.Config{Prefix: "w7 "}, "", nil, []int32{2, 7, 8, 9, 3}, 2},
		{"prompt called none", encoder.Config{Prompt: "none"}, "prompts", map[string]string{"query": "query: ", "none": "w7 "}, []int32{2, 7, 8, 9, 3}, 2},
	} {
		for _, file := range []string{"1_Pooling/config.json", "config_sentence_transformers.json"} {
			if (c.field == "include_prompt") == (file == "1_Pooling/config.json") && c.field != "" {
				files[file] = changed(files[file], c.field, c.value)
			}
		}
		e := open(t, rt, put(t, files), c.config)
		ids, cut := e.Tokenize("W8 w9")
		if !slices.Equal(ids, c.ids) || cut != (c.config.MaxTokens > 0) {
			t.Errorf("%s: ids %v, cut: %v", c.name, ids, cut)
		}
		got, err := e.Encode(bg, []string{"W8 w9", "", strings.Repeat("w7 \xff\x00", 1<<17), " \n"})
		if err != nil || len(got) != 4 {
			t.Fatalf("%s: %d embeddings, %v", c.name, len(got), err)
		}
		if d, _ := apart(got[0], pooled(b.outputs(c.ids)[c.omitted:], e.Info().Pooling, true)); !(d <= 3e-6) {
			t.Errorf("%s: %g apart", c.name, d)
		}
		if !slices.Equal(got[1], got[3]) {
			t.Errorf("%s: spaces are not the empty text", c.name)
		}
	}
	delete(files, "vocab.txt")
	if _, err := encoder.Open(bg, rt, put(t, files), encoder.Config{}); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("no tokenizer: %v", err)
	}
}

// A folder may ask for lower case before a tokenizer that keeps it, as Python lowers.
func TestLowered(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	files := b.files()
	files["tokenizer_config.json"] = asJSON(map[string]any{"do_lower_case": false, "strip_accents": false})
	files["vocab.txt"] = bytes.Replace(files["vocab.txt"], []byte("w8\n"), []byte("οδος\n"), 1)
	files["vocab.txt"] = bytes.Replace(files["vocab.txt"], []byte("w10\n"), []byte("i\u0307\n"), 1)
	const text = "W7 ΟΔΟΣ İ Éw7"
	e := open(t, rt, put(t, files), encoder.Config{})
	if ids, _ := e.Tokenize(text); !slices.Equal(ids, []int32{2, 1, 1, 1, 1, 3}) {
		t.Errorf("as it stands: %v", ids)
	}
	files["sentence_bert_config.json"] = changed(files["sentence_bert_config.json"], "do_lower_case", true)
	e = open(t, rt, put(t, files), encoder.Config{})
	if ids, _ := e.Tokenize(text); !slices.Equal(ids, []int32{2, 7, 8, 10, 1, 3}) {
		t.Errorf("lowered: %v", ids)
	}
}

// A tokenizer may have tokens that the model has no row for: the text is named. If those
// are what every text has, or what unknown words become, the folder is refused.
func TestVocabularyBeyondTheModel(t *testing.T) {
	b := newBERT()
	files := b.files()
	files["vocab.txt"] = append(files["vocab.txt"], "more\n"...)
	e := open(t, openRuntime(t), put(t, files), encoder.Config{})
	if _, err := e.Encode(bg, []string{"w8", "w9 more"}); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "texts[1]") {
		t.Errorf("%v", err)
	}
	rest := bytes.Repeat([]byte("w\n"), 60)
	for _, all := range [][]byte{slices.Concat(rest, files["vocab.txt"]), slices.Concat([]byte("[CLS]\n[SEP]\n"), rest, []byte("[UNK]\n"))} {
		files["vocab.txt"] = all
		if _, err := encoder.Open(bg, openRuntime(t), put(t, files), encoder.Config{}); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "vocab_size is 60") {
			t.Errorf("no text can be computed: %v", err)
		}
	}
}

// manyTexts are texts of all lengths, in no order of them.
func manyTexts(b *bert) (texts [][]int32) {
	for i := range 60 {
		var ids []int32
		for k := range 1 + i*7%b.positions {
			ids = append(ids, int32((i*31+k*17)%b.vocabulary))
		}
		texts = append(texts, ids)
	}
	return texts
}

func equal(a, b [][]float32) bool { return slices.EqualFunc(a, b, slices.Equal[[]float32]) }

// E8: a text has the same bits alone and in any batch, from any worker, beside any other
// caller, and by another encoder of the same weights, which shares them (T3).
func TestSameBits(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	dir := put(t, b.files())
	texts := manyTexts(b)
	e := open(t, rt, dir, encoder.Config{Workers: 3})
	want, err := e.EncodeTokens(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	prepared := engine.Len()
	other := open(t, rt, dir, encoder.Config{Workers: 1})
	if n := engine.Len(); n != prepared || n == 0 {
		t.Errorf("%d weights after the second encoder, %d before", n, prepared)
	}
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			e := []*encoder.Encoder{e, other}[caller%2]
			for i, ids := range texts {
				if got, err := e.EncodeTokens(bg, [][]int32{ids}); err != nil || !slices.Equal(got[0], want[i]) {
					t.Errorf("text %d: other bits alone, %v", i, err)
				}
			}
			backwards := slices.Clone(texts)
			slices.Reverse(backwards)
			got, err := e.EncodeTokens(bg, backwards)
			slices.Reverse(got)
			if err != nil || !equal(got, want) {
				t.Errorf("other bits in a batch, %v", err)
			}
		})
	}
	callers.Wait()
}

// Calls during Close give all embeddings or ErrClosed; after it they give ErrClosed, and
// it can be waited for again.
func TestCloseBesideCalls(t *testing.T) {
	b := newBERT()
	texts := manyTexts(b)
	e := open(t, openRuntime(t), put(t, b.files()), encoder.Config{Workers: 2})
	want, err := e.EncodeTokens(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	begun := make(chan struct{}, 6)
	for range cap(begun) {
		callers.Go(func() {
			for round := 0; ; round++ {
				got, err := e.EncodeTokens(bg, texts)
				if round == 0 {
					begun <- struct{}{}
				}
				if errors.Is(err, kiln.ErrClosed) {
					return
				}
				if err != nil || !equal(got, want) {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	gone, cancel := context.WithCancel(bg)
	cancel()
	if err := e.Close(gone); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for range 2 {
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
	}
	callers.Wait()
	if _, err := e.EncodeTokens(bg, texts); !errors.Is(err, kiln.ErrClosed) || !strings.Contains(err.Error(), "the encoder is closed: open another one") { // R3
		t.Errorf("after Close: %v", err)
	}
}

// A Close that nobody waits for gives everything back all the same.
func TestCloseWithoutWaiting(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	e := open(t, rt, put(t, b.files()), encoder.Config{Workers: 16})
	gone, cancel := context.WithCancel(bg)
	cancel()
	if err := e.Close(gone); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for begun := time.Now(); len(rt.Sessions()) > 0; runtime.Gosched() {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("the session of the encoder is still open")
		}
	}
}

// As many workers as may be do not overload the device.
func TestManyWorkers(t *testing.T) {
	b := newBERT()
	rt, dir := openRuntime(t), put(t, b.files())
	if _, err := encoder.Open(bg, rt, dir, encoder.Config{Workers: 257}); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("257 workers: %v", err)
	}
	e := open(t, rt, dir, encoder.Config{Workers: 256})
	if _, err := e.EncodeTokens(bg, slices.Repeat(shortTexts, 300)); err != nil {
		t.Error(err)
	}
}

// The error of a context that ended is the context's own, whatever its cause.
func TestCauseOfTheEnd(t *testing.T) {
	b := newBERT()
	e := open(t, openRuntime(t), put(t, b.files()), encoder.Config{Workers: 2})
	ctx, cancel := context.WithCancelCause(bg)
	cancel(errors.New("the reason"))
	_, texts := e.Encode(ctx, []string{"w7"})
	_, tokens := e.EncodeTokens(ctx, shortTexts)
	for _, err := range []error{texts, tokens} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
	}
}

// A caller whose context ends leaves, at once or in the middle; the others go on, and
// later calls give the same bits.
func TestCancelledCalls(t *testing.T) {
	b := newBERT()
	texts := manyTexts(b)
	e := open(t, openRuntime(t), put(t, b.files()), encoder.Config{Workers: 1})
	want, err := e.EncodeTokens(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(bg)
	cancel()
	if _, err := e.EncodeTokens(gone, texts); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	for round := range 20 {
		ctx, cancel := context.WithCancel(bg)
		var done sync.WaitGroup
		done.Go(func() {
			if got, err := e.EncodeTokens(ctx, texts); err == nil && !equal(got, want) || err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("round %d: %v", round, err)
			}
		})
		done.Go(func() {
			if got, err := e.EncodeTokens(bg, texts[:7]); err != nil || !equal(got, want[:7]) {
				t.Errorf("round %d, beside it: %v", round, err)
			}
		})
		for range round * 5 {
			runtime.Gosched()
		}
		cancel()
		done.Wait()
	}
	if got, err := e.EncodeTokens(bg, texts); err != nil || !equal(got, want) {
		t.Errorf("afterwards: %v", err)
	}
}

// An encoder of a runtime that was closed says so, before and after it was opened.
func TestClosedRuntime(t *testing.T) {
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := encoder.Open(bg, rt, put(t, newBERT().files()), encoder.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(bg); err != nil {
		t.Fatal(err)
	}
	for _, texts := range [][]string{{"w7"}, {"w7", "w8", "w9"}} {
		if _, err := e.Encode(bg, texts); !errors.Is(err, kiln.ErrClosed) || !strings.Contains(err.Error(), "the encoder's runtime is closed") {
			t.Errorf("%v", err)
		}
	}
	if err := e.Close(bg); err != nil {
		t.Error(err)
	}
	if _, err := encoder.Open(bg, rt, put(t, newBERT().files()), encoder.Config{}); !errors.Is(err, kiln.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// Workers follow the runtime's, and KILN_CPU_ISA and KILN_BUCKET are heeded: the
// embeddings are those of every instruction set within what float32 allows.
func TestEnvironment(t *testing.T) {
	b := newBERT()
	dir := put(t, b.files())
	for _, c := range []struct {
		set    map[string]string
		device string
		groups int64 // of three lengths, where programs are for their shapes
	}{
		{map[string]string{"KILN_CPU_ISA": "generic"}, "cpu", 1},
		{map[string]string{"KILN_WORKERS": "3"}, "cpu", 1},
		{nil, "pershape", 3},
		{map[string]string{"KILN_BUCKET": "pow2"}, "pershape", 1},
	} {
		set := c.set
		rt, err := kiln.Open(kiln.Config{Lookup: func(name string) (string, bool) { v, ok := set[name]; return v, ok }})
		if err != nil {
			t.Fatal(err)
		}
		e, err := encoder.Open(bg, rt, dir, encoder.Config{Device: c.device})
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.EncodeTokens(bg, shortTexts)
		if err != nil {
			t.Fatal(err)
		}
		for n, ids := range shortTexts {
			if d, _ := apart(got[n], pooled(b.outputs(ids), "mean", true)); !(d <= 3e-6) {
				t.Errorf("%v: text %d: %g apart", set, n, d)
			}
		}
		sessions := rt.Sessions()[0].Cache()
		if err := sessions.ResetAll(bg); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{16, 9, 11} { // alone, so that each is a batch
			if _, err := e.EncodeTokens(bg, [][]int32{make([]int32, n)}); err != nil {
				t.Fatal(err)
			}
		}
		if n := sessions.Groups(); n != c.groups {
			t.Errorf("%v: %d shape groups, want %d", set, n, c.groups)
		}
		if driver := rt.Executors()[0].Info().Driver; set["KILN_CPU_ISA"] != "" && !strings.HasSuffix(driver, "generic") {
			t.Errorf("%v: %s", set, driver)
		}
		if err := errors.Join(e.Close(bg), rt.Close(bg)); err != nil {
			t.Error(err)
		}
	}
}
