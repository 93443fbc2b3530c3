package wordpiece

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// variants are texts that differ from one in a byte, which matters to JSON.
func variants(text string) (all []string) {
	all = append(all, text, text+" ", " "+text, text+"}", text+"x", "")
	for i := range text {
		all = append(all, text[:i], text[:i]+text[i+1:])
		for _, c := range "{}[],:\"\\ \n\x01a0-." {
			all = append(all, text[:i]+string(c)+text[i:], text[:i]+string(c)+text[i+1:])
		}
	}
	return all
}

// An object is split as encoding/json does it, and what that refuses is not split.
func TestSplitIsEncodingJSON(t *testing.T) {
	for _, text := range variants(`{"a": 1,"b\u0041":{"c":["}",2,{}]} , "a":"\"]","":[] }`) {
		var want fields
		valid := json.Unmarshal([]byte(text), &want) == nil
		got, err := split(t.Context(), []byte(text), "another field")
		if err != nil || valid != (got != nil) || valid && fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Fatalf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}

// A vocabulary is read as encoding/json does it, and refused where that refuses it.
func TestVocabularyIsEncodingJSON(t *testing.T) {
	for _, text := range variants(`{"a":1, "b\n": 20 ,"é\"":0,"##a":300,"a":4 }`) {
		var want map[string]number
		valid := json.Unmarshal([]byte(text), &want) == nil && want != nil
		f := tokenizerFile{name: "tokenizer.json", settings: &settings{}}
		err := f.readVocab(t.Context(), strings.Trim(text, blanks))
		got := make(map[string]number)
		for token, id := range f.vocabulary.ids {
			got[token] = number(id)
		}
		if valid != (err == nil) || valid && !maps.Equal(got, want) || !valid && !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
}

// looks is a context that ends when somebody has looked at it so many times.
type looks struct {
	context.Context
	left int
}

func (l *looks) Err() error {
	if l.left--; l.left < 0 {
		return context.Canceled
	}
	return nil
}

// The context ends the reading wherever it is. It is looked at every few thousand tokens, while
// a vocabulary is read and while tables are made of it, and every MiB of a file.
func TestOpenHeedsItsContext(t *testing.T) {
	const words, never = 100_000, 1 << 30
	var lines, vocab strings.Builder
	for i := range words {
		fmt.Fprintf(&lines, "##a rather long word, the number %d\n", i)
		fmt.Fprintf(&vocab, ",\"##a rather long word, the number %d\":%d", i, i+5)
	}
	for name, text := range map[string]string{
		"tokenizer.json": strings.Replace(jsonFile(`[]`), `"a":4`, `"a":4`+vocab.String(), 1),
		"vocab.txt":      "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n" + lines.String(),
	} {
		dir := folder(t, name, text)
		ctx := &looks{t.Context(), never}
		if _, err := Open(ctx, dir); err != nil {
			t.Fatal(err)
		}
		all := never - ctx.left
		if want := 2*words/tokensAtOnce + len(text)/bytesAtOnce; all < want {
			t.Errorf("%s: %d looks, want at least %d", name, all, want)
		}
		for at := 0; at < all; at += 1 + all/12 {
			ctx := &looks{t.Context(), at}
			if _, err := Open(ctx, dir); err != context.Canceled || ctx.left < -2 {
				t.Errorf("%s: ended at look %d of %d: %v, %d more looks", name, at, all, err, -1-ctx.left)
			}
		}
	}
	big := []byte(`{"a":[` + strings.Repeat("0,", 4*bytesAtOnce) + `0]}`)
	ctx := &looks{t.Context(), never}
	if o, err := split(ctx, big, "a"); o == nil || err != nil || never-ctx.left < 8 {
		t.Errorf("8 MiB are split after %d looks, %v", never-ctx.left, err)
	}
}
