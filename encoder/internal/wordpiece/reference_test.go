package wordpiece

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unpack reads a file of testdata.
func unpack(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// folder makes a folder of files by name and content.
func folder(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t testing.TB, files ...string) *Tokenizer {
	t.Helper()
	tokenizer, err := Open(t.Context(), folder(t, files...))
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer
}

// uncased is BERT's uncased tokenizer, from vocab.txt.
func uncased(t testing.TB) *Tokenizer {
	return open(t, "vocab.txt", string(unpack(t, "bert_uncased_vocab.txt.gz")), "tokenizer_config.json", `{"do_lower_case": true}`)
}

func TestReferenceQuestions(t *testing.T) {
	tokenizer, ids := uncased(t), make(map[string]int32)
	for i, token := range strings.Split(strings.TrimSpace(string(unpack(t, "bert_uncased_vocab.txt.gz"))), "\n") {
		ids[token] = int32(i)
	}
	questions := 0
	for line := range bytes.Lines(unpack(t, "bert_uncased_reference.jsonl.gz")) {
		var q struct {
			Text      string
			Wordpiece []string
		}
		if err := json.Unmarshal(line, &q); err != nil {
			t.Fatal(err)
		}
		want := []int32{101}
		for _, token := range q.Wordpiece {
			want = append(want, ids[token])
		}
		want = append(want, 102)
		if got, truncated := tokenizer.Encode(nil, q.Text, 512); truncated || !slices.Equal(got, want) {
			t.Errorf("%q: %d, want %d", q.Text, got, want)
		}
		questions++
	}
	if questions != 300 {
		t.Errorf("%d questions", questions)
	}
	if tokenizer.Pad() != 0 || tokenizer.Unknown() != 100 {
		t.Errorf("padding %d, unknown %d", tokenizer.Pad(), tokenizer.Unknown())
	}
}

// cases gives the lines of testdata/cases.jsonl.
func cases(t *testing.T) [][]byte {
	f, err := os.ReadFile(filepath.Join("testdata", "cases.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(bytes.Lines(f))
}

// What the reference makes of small tokenizers and awkward texts.
func TestReferenceCases(t *testing.T) {
	for _, line := range cases(t)[1:] {
		var c struct {
			Name string
			File json.RawMessage
			Runs []struct {
				A          string
				B          *string
				Max        int
				IDs, Types []int32
				Cut        bool
			}
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Name, func(t *testing.T) {
			tokenizer := open(t, "tokenizer.json", string(c.File))
			for _, r := range c.Runs {
				var ids, types []int32
				var cut bool
				if r.B == nil {
					ids, cut = tokenizer.Encode([]int32{-7}, r.A, r.Max)
					types = make([]int32, len(ids)-1)
				} else {
					ids, types, cut = tokenizer.EncodePair([]int32{-7}, r.A, *r.B, r.Max)
				}
				if ids[0] != -7 || !slices.Equal(ids[1:], r.IDs) || !slices.Equal(types, r.Types) || cut != r.Cut {
					t.Errorf("%+q at most %d: %d types %d cut %t, want %d types %d cut %t", r.A, r.Max, ids[1:], types, cut, r.IDs, r.Types, r.Cut)
				}
			}
		})
	}
}

// Every code point between two letters, normalized with several options and cut into
// words, has the digest that the reference gives.
func TestEveryCodePoint(t *testing.T) {
	var digests map[string]string
	if err := json.Unmarshal(cases(t)[0], &digests); err != nil {
		t.Fatal(err)
	}
	for options, want := range digests {
		if options == "words" {
			continue
		}
		n := newNormalizer(options[0] == '1', options[1] == '1', options[2] == '1', options[3] == '1')
		var held marks
		if got := digest(func(dst, text []byte) []byte { return n.append(dst, text, &held) }); got != want {
			t.Errorf("with %s: %s, want %s", options, got, want)
		}
	}
	words := digest(func(dst, text []byte) []byte {
		c := []rune(string(text))[1]
		switch flags := unicodeTables().of(c).flags; {
		case flags&space != 0:
			return append(dst, "a b"...)
		case flags&punctuation != 0:
			return append(append(append(dst, "a "...), text[1:len(text)-1]...), " b"...)
		}
		return append(dst, text...)
	})
	if words != digests["words"] {
		t.Errorf("words: %s, want %s", words, digests["words"])
	}
}

func digest(of func(dst, text []byte) []byte) string {
	sum := sha256.New()
	w := bufio.NewWriter(sum)
	var dst []byte
	for r := range rune(maxRune + 1) {
		if r >= 0xd800 && r <= 0xdfff {
			continue
		}
		if r > 0 {
			w.WriteByte('\n')
		}
		dst = of(dst[:0], []byte("a"+string(r)+"b"))
		w.Write(dst)
	}
	w.Flush()
	return hex.EncodeToString(sum.Sum(nil))
}
