package wordpiece

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// awkward are pieces of texts that meet each other in ways that matter.
var awkward = []string{"a", "B", "un", "affable", "##a", "[SEP]", "[MASK]", "[", " ", "  ", "\t", "\u00a0", "\u0301", "É", "İ", "ς", "中", "\U0002b820", "각", "\u302e", "\U0001d165", "\u0f78",
	"\u200b", "\x00", "\xff", "\xed\xa0\x80", ".", "¿", "1", "_", "\u0378", "\U0010ffff", strings.Repeat("x", 99), "𝅘𝅥𝅮", "ﬁ"}

func awkwardText(random *rand.Rand, pieces int) string {
	var b strings.Builder
	for range pieces {
		b.WriteString(awkward[random.IntN(len(awkward))])
	}
	return b.String()
}

// With a limit a text has the first of its ids, and the last special one.
func TestEncodeWithLimit(t *testing.T) {
	tokenizer, random := uncased(t), rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := awkwardText(random, random.IntN(40))
		whole, truncated := tokenizer.Encode(nil, text, math.MaxInt)
		if truncated {
			t.Fatalf("%q is truncated", text)
		}
		for _, limit := range []int{2, 3, 10, len(whole) - 1, len(whole), len(whole) + 1} {
			if limit < 2 {
				continue
			}
			got, truncated := tokenizer.Encode(nil, text, limit)
			want := whole
			if limit < len(whole) {
				want = append(slices.Clone(whole[:limit-1]), 102)
			}
			if !slices.Equal(got, want) || truncated != (limit < len(whole)) {
				t.Fatalf("%q at most %d: %d %t, want %d", text, limit, got, truncated, want)
			}
		}
	}
}

// What is no room for a text is still no more than the limit.
func TestEncodeWithoutRoom(t *testing.T) {
	tokenizer := uncased(t)
	for limit, want := range map[int][]int32{math.MinInt: {}, -1: {}, 0: {}, 1: {101}, 2: {101, 102}} {
		if got, truncated := tokenizer.Encode(nil, "a", limit); !truncated || !slices.Equal(got, want) {
			t.Errorf("at most %d: %d %t, want %d", limit, got, truncated, want)
		}
	}
	for limit, want := range map[int][]int32{math.MinInt: {}, 0: {}, 1: {101}, 2: {101, 102}, 3: {101, 102, 102}} {
		got, types, truncated := tokenizer.EncodePair(nil, "a", "b", limit)
		if !truncated || !slices.Equal(got, want) || len(types) != len(got) || limit == 3 && types[2] != 1 {
			t.Errorf("at most %d: %d types %d %t, want %d", limit, got, types, truncated, want)
		}
	}
	if got, truncated := tokenizer.Encode(nil, " \x00", 2); truncated || !slices.Equal(got, []int32{101, 102}) {
		t.Errorf("nothing: %d %t", got, truncated)
	}
}

// A pair is its texts with the ids of BERT's template around them.
func TestEncodePairIsBothTexts(t *testing.T) {
	tokenizer, random := uncased(t), rand.New(rand.NewPCG(3, 4))
	for range 500 {
		a, b := awkwardText(random, random.IntN(20)), awkwardText(random, random.IntN(20))
		idsA, _ := tokenizer.Encode(nil, a, math.MaxInt)
		idsB, _ := tokenizer.Encode(nil, b, math.MaxInt)
		got, types, truncated := tokenizer.EncodePair(nil, a, b, math.MaxInt)
		ones := types[len(idsA):]
		if truncated || !slices.Equal(got, append(idsA, idsB[1:]...)) || slices.Max(types[:len(idsA)]) != 0 || slices.Min(ones) != 1 {
			t.Fatalf("%q, %q: %d types %d", a, b, got, types)
		}
	}
}

// A megabyte of what could take quadratic time, and what comes out.
func TestLongTexts(t *testing.T) {
	tokenizer := uncased(t)
	unknown := func(text string) {
		t.Helper()
		if got, _ := tokenizer.Encode(nil, text, 512); !slices.Equal(got, []int32{101, 100, 102}) {
			t.Errorf("%.20q...: %d", text, got)
		}
	}
	const mega = 1 << 20
	unknown(strings.Repeat("x", mega))
	unknown(strings.Repeat("\u302e\U0001d165", mega/4)) // marks that stay and must be sorted
	count := func(text string, want int) {
		t.Helper()
		if got, _ := tokenizer.Encode(nil, text, math.MaxInt); len(got) != want {
			t.Errorf("%.20q...: %d ids, want %d", text, len(got), want)
		}
	}
	count("a"+strings.Repeat("\u0301", mega), 3)
	count(strings.Repeat(" ", mega), 2)
	count(strings.Repeat("\x00", mega), 2)
	count(strings.Repeat("\xff", mega), 2)
	count(strings.Repeat("[", mega), mega+2)
	count(strings.Repeat("中", mega), mega+2)
	count(strings.Repeat("[SEP]", mega/8), mega/8+2)
}

// A token that takes the spaces behind it reads a run of them once.
func TestStrippingIsLinear(t *testing.T) {
	tokens := `{"id":5,"content":" ","single_word":false,"lstrip":false,"rstrip":true,"normalized":false,"special":false}`
	tokenizer := open(t, "tokenizer.json", jsonFile(`[`+tokens+`]`))
	const spaces = 1 << 20
	if got, _ := tokenizer.Encode(nil, strings.Repeat(" ", spaces), math.MaxInt); len(got) != spaces+2 {
		t.Errorf("%d ids, want %d", len(got), spaces+2)
	}
}

// jsonFile is a small tokenizer.json with these added tokens.
func jsonFile(added string) string {
	return `{"version":"1.0","added_tokens":` + added + `,"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]},
"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"a":4}}}`
}

// A call allocates nothing for a token where its slice is long enough. It allocates
// its scratch where it finds none in the pool, which the race detector empties.
func TestEncodeAllocatesNothingForTokens(t *testing.T) {
	tokenizer, random := uncased(t), rand.New(rand.NewPCG(5, 6))
	text, ids := awkwardText(random, 4000), make([]int32, 0, 1<<16)
	n := testing.AllocsPerRun(20, func() { ids, _ = tokenizer.Encode(ids[:0], text, 1<<16) })
	if n > 60 || len(ids) < 1000 {
		t.Errorf("%v allocations for %d ids", n, len(ids))
	}
}

func TestConcurrentCalls(t *testing.T) {
	tokenizer, random := uncased(t), rand.New(rand.NewPCG(7, 8))
	texts, want := make([]string, 50), make([][]int32, 50)
	for i := range texts {
		texts[i] = awkwardText(random, 50)
		want[i], _ = tokenizer.Encode(nil, texts[i], 64)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var ids []int32
			for i, text := range texts {
				if ids, _ = tokenizer.Encode(ids[:0], text, 64); !slices.Equal(ids, want[i]) {
					t.Errorf("%q: %d, want %d", text, ids, want[i])
				}
			}
		})
	}
	all.Wait()
}

// FuzzEncode compares with the algorithm as it is written down: all tokens of all
// words, spelled by looking up every prefix, and cut afterwards.
func FuzzEncode(f *testing.F) {
	for _, piece := range awkward {
		f.Add(piece+" un"+piece+"affable", 16)
	}
	tokenizer := uncased(f)
	vocabulary := make(map[string]int32)
	for i, token := range strings.Split(string(unpack(f, "bert_uncased_vocab.txt.gz")), "\n") {
		vocabulary[token] = int32(i)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if strings.ContainsAny(text, "[]") {
			return // the reference cases have the added tokens
		}
		var held marks
		normal := string(tokenizer.normalizer.append(nil, []byte(text), &held))
		if !utf8.ValidString(normal) || len(held) > 0 {
			t.Fatalf("%q is left of %q, and %d marks", normal, text, len(held))
		}
		want := []int32{101}
		for word := range strings.FieldsSeq(apart(normal)) {
			want = append(want, spell(vocabulary, word)...)
		}
		limit = 2 + int(uint(limit)%64)
		truncated := len(want) > limit-1
		want = append(want[:min(len(want), limit-1)], 102)
		if got, cut := tokenizer.Encode(nil, text, limit); !slices.Equal(got, want) || cut != truncated {
			t.Errorf("%q: %d %t, want %d %t", text, got, cut, want, truncated)
		}
	})
}

// apart puts spaces around punctuation.
func apart(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicodeTables().of(r).flags&punctuation != 0 {
			b.WriteString(" " + string(r) + " ")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func spell(vocabulary map[string]int32, word string) (ids []int32) {
	runes := []rune(word)
	if len(runes) > 100 {
		return []int32{100}
	}
	for begin := 0; begin < len(runes); {
		end, id, ok := len(runes), int32(0), false
		for ; end > begin && !ok; end-- {
			token := string(runes[begin:end])
			if begin > 0 {
				token = "##" + token
			}
			id, ok = vocabulary[token]
		}
		if !ok {
			return []int32{100}
		}
		ids, begin = append(ids, id), end+1
	}
	return ids
}

func BenchmarkEncode(b *testing.B) {
	tokenizer := uncased(b)
	for name, text := range map[string]string{
		"question": "How many kilometers of acres of the Ecuadorian rainforest is supported?",
		"english":  strings.Repeat("The quick brown fox, unaffable as ever, jumped over the lazy dog's tokenizer. ", 1000),
		"cyrillic": strings.Repeat("Съешь же ещё этих мягких французских булок, да выпей чаю. ", 1000),
		"chinese":  strings.Repeat("我能吞下玻璃而不伤身体。", 2000),
		"word":     strings.Repeat("x", 1<<20),
		"words":    strings.Repeat(strings.Repeat("q", 99)+" ", 10000),
		"brackets": strings.Repeat("[", 1<<20),
		"marks":    strings.Repeat("\u302e\U0001d165", 1<<18),
	} {
		b.Run(name+"/"+strconv.Itoa(len(text)), func(b *testing.B) {
			var ids []int32
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				ids, _ = tokenizer.Encode(ids[:0], text, math.MaxInt)
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := folder(b, "vocab.txt", string(unpack(b, "bert_uncased_vocab.txt.gz")))
	for b.Loop() {
		if _, err := Open(b.Context(), dir); err != nil {
			b.Fatal(err)
		}
	}
}
