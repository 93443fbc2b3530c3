package wordpiece

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// R3: what is wrong with a folder has a sentinel, and the text names file and field.
func TestOpenRefuses(t *testing.T) {
	good := jsonFile(`[]`)
	with := func(old, new string) []string {
		if !strings.Contains(good, old) {
			t.Fatalf("no %s", old)
		}
		return []string{"tokenizer.json", strings.Replace(good, old, new, 1)}
	}
	added := func(token string) []string { return with(`"added_tokens":[]`, `"added_tokens":[`+token+`]`) }
	const vocab, flags = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", `"single_word":false,"lstrip":false,"rstrip":false,"special":false`
	bert := `"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]`
	template := func(single, specials string) []string {
		return with(bert, `"type":"TemplateProcessing","single":`+single+`,"pair":[],"special_tokens":`+specials)
	}
	for name, c := range map[string]struct {
		files []string
		err   error
		names string
	}{
		"empty folder":             {nil, fault.ErrInvalid, "vocab.txt"},
		"nothing in the file":      {[]string{"tokenizer.json", ""}, fault.ErrInvalid, "tokenizer.json"},
		"cut":                      {[]string{"tokenizer.json", good[:len(good)-3]}, fault.ErrInvalid, "tokenizer.json"},
		"more behind":              {[]string{"tokenizer.json", good + "{}"}, fault.ErrInvalid, "tokenizer.json"},
		"byte order mark":          {[]string{"tokenizer.json", "\ufeff" + good}, fault.ErrInvalid, "byte order mark"},
		"not UTF-8":                {with(`"a":4`, "\"\xff\":4"), fault.ErrInvalid, "UTF-8"},
		"a list":                   {[]string{"tokenizer.json", "[]"}, fault.ErrInvalid, "tokenizer.json"},
		"version":                  {with(`"1.0"`, `"2.0"`), fault.ErrUnsupported, "version"},
		"no model":                 {with(`"model"`, `"mode"`), fault.ErrInvalid, "model"},
		"model without type":       {with(`"type":"WordPiece"`, `"merges":[]`), fault.ErrUnsupported, "model.merges"},
		"SentencePiece":            {with(`"type":"WordPiece"`, `"type":"Unigram"`), fault.ErrUnsupported, "model.type is \"Unigram\""},
		"BPE":                      {with(`"type":"WordPiece"`, `"type":"BPE"`), fault.ErrUnsupported, "model.type is \"BPE\""},
		"vocab is a list":          {with(`{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"a":4}`, `["a"]`), fault.ErrInvalid, "model.vocab"},
		"id above int32":           {with(`"a":4`, `"a":2147483648`), fault.ErrInvalid, "2147483648 of a"},
		"id below 0":               {with(`"a":4`, `"a":-1`), fault.ErrInvalid, "-1 of a"},
		"id that is no number":     {with(`"a":4`, `"a":null`), fault.ErrInvalid, "null of a"},
		"id with a fraction":       {with(`"a":4`, `"a":1.5`), fault.ErrInvalid, "1.5 of a"},
		"id in an object":          {with(`"a":4`, `"a":{"b":1}`), fault.ErrInvalid, "of a"},
		"unknown not there":        {with(`"unk_token":"[UNK]"`, `"unk_token":"[unk]"`), fault.ErrInvalid, "[unk]"},
		"no prefix":                {with(`"continuing_subword_prefix":"##",`, ``), fault.ErrInvalid, "model.continuing_subword_prefix"},
		"most letters below 0":     {with(`word":100`, `word":-1`), fault.ErrInvalid, "max_input_chars_per_word"},
		"no normalizer":            {with(`{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`, `null`), fault.ErrUnsupported, "normalizer.type"},
		"another normalizer":       {with(`"BertNormalizer"`, `"Sequence"`), fault.ErrUnsupported, "normalizer.type is \"Sequence\""},
		"option of the normalizer": {with(`"clean_text":true`, `"clean_text":true,"Lowercase":false`), fault.ErrUnsupported, "normalizer.Lowercase"},
		"option is missing":        {with(`"clean_text":true,`, ``), fault.ErrInvalid, "normalizer.clean_text"},
		"option is no boolean":     {with(`"lowercase":true`, `"lowercase":1`), fault.ErrInvalid, "normalizer.lowercase"},
		"another pre-tokenizer":    {with(`"BertPreTokenizer"`, `"Whitespace"`), fault.ErrUnsupported, "pre_tokenizer.type is \"Whitespace\""},
		"another post-processor":   {with(`"BertProcessing"`, `"RobertaProcessing"`), fault.ErrUnsupported, "post_processor.type is \"RobertaProcessing\""},
		"id of the post-processor": {with(`["[SEP]",3]`, `["[SEP]",4294967296]`), fault.ErrInvalid, "post_processor.sep"},
		"half a name with id":      {with(`["[SEP]",3]`, `["[SEP]"]`), fault.ErrInvalid, "post_processor.sep"},
		"template without text":    {template(`[]`, `{}`), fault.ErrUnsupported, "post_processor.single"},
		"template with B":          {template(`[{"Sequence":{"id":"B","type_id":0}}]`, `{}`), fault.ErrUnsupported, "post_processor.single"},
		"template too often":       {template(`[{"Sequence":{"id":"AAAA","type_id":0}},{"SpecialToken":{"id":"x","type_id":0}}]`, `{"x":{"ids":[1]}}`), fault.ErrUnsupported, "post_processor.single"},
		"template with a type":     {template(`[{"Sequence":{"id":"A","type_id":1}}]`, `{}`), fault.ErrUnsupported, "post_processor.single"},
		"template names nothing":   {template(`[{"SpecialToken":{"id":"x","type_id":0}}]`, `{}`), fault.ErrInvalid, "names x, which special_tokens has not"},
		"template of nothing":      {template(`[{}]`, `{}`), fault.ErrInvalid, "post_processor.single"},
		"added token's id":         {added(`{"id":7,"content":"b","normalized":false,` + flags + `}`), fault.ErrInvalid, "b the id 7"},
		"added token's field":      {added(`{"id":5,"content":"b","normalized":false,"more":1,` + flags + `}`), fault.ErrUnsupported, "added_tokens.more"},
		"added token's flag":       {added(`{"id":5,"content":"b",` + flags + `}`), fault.ErrInvalid, "added_tokens.normalized"},
		"added token vanishes":     {added(`{"id":5,"content":"\u0301","normalized":true,` + flags + `}`), fault.ErrInvalid, "is left"},
		"added tokens collide":     {added(`{"id":5,"content":"B","normalized":true,` + flags + `},{"id":6,"content":"b","normalized":true,` + flags + `}`), fault.ErrInvalid, "two tokens that are b"},
		"files contradict":         {append(with("1.0", "1.0"), "tokenizer_config.json", `{"do_lower_case":false}`), fault.ErrUnsupported, "do_lower_case"},
		"accents contradict":       {append(with("1.0", "1.0"), "tokenizer_config.json", `{"strip_accents":false}`), fault.ErrUnsupported, "strip_accents"},
		"cut from the left":        {append(with("1.0", "1.0"), "tokenizer_config.json", `{"truncation_side":"left"}`), fault.ErrUnsupported, "truncation_side"},
		"decoder contradicts":      {append(with("1.0", "1.0"), "tokenizer_config.json", `{"added_tokens_decoder":{"4":{"content":"a"}}}`), fault.ErrUnsupported, "added_tokens_decoder has a"},
		"id is null":               {template(`[{"SpecialToken":{"id":"x","type_id":0}}]`, `{"x":{"ids":[null]}}`), fault.ErrInvalid, "special_tokens"},
		"special id below 0":       {template(`[{"SpecialToken":{"id":"x","type_id":0}}]`, `{"x":{"ids":[-1]}}`), fault.ErrInvalid, "special_tokens"},
		"type below 0":             {template(`[{"SpecialToken":{"id":"x","type_id":-1}}]`, `{"x":{"ids":[1]}}`), fault.ErrInvalid, "post_processor.single"},
		"option is null":           {with(`"lowercase":true`, `"lowercase":null`), fault.ErrInvalid, "normalizer.lowercase"},
		"most letters are null":    {with(`word":100`, `word":null`), fault.ErrInvalid, "max_input_chars_per_word"},
		"padding below 0":          {with(`"version"`, `"padding":{"pad_id":-1},"version"`), fault.ErrInvalid, "padding"},
		"added id is null":         {added(`{"id":null,"content":"b","normalized":false,` + flags + `}`), fault.ErrInvalid, "added_tokens.id"},
		"mark before [PAD]":        {[]string{"vocab.txt", "\ufeff" + vocab}, fault.ErrInvalid, "byte order mark"},
		"broken config":            {[]string{"vocab.txt", vocab, "tokenizer_config.json", `{`}, fault.ErrInvalid, "tokenizer_config.json"},
		"another class":            {[]string{"vocab.txt", vocab, "tokenizer_config.json", `{"tokenizer_class":"MPNetTokenizer"}`}, fault.ErrUnsupported, "tokenizer_class is \"MPNetTokenizer\""},
		"no begin":                 {[]string{"vocab.txt", "[PAD]\n[UNK]\n[SEP]\na\n"}, fault.ErrInvalid, "[CLS]"},
		"empty vocabulary":         {[]string{"vocab.txt", ""}, fault.ErrInvalid, "[UNK]"},
		"vocabulary not UTF-8":     {[]string{"vocab.txt", vocab + "\xff\n"}, fault.ErrInvalid, "UTF-8"},
		"added_tokens.json":        {[]string{"vocab.txt", vocab, "added_tokens.json", `{"b":5}`}, fault.ErrUnsupported, "added_tokens.json"},
		"decoder's id":             {[]string{"vocab.txt", vocab, "tokenizer_config.json", `{"added_tokens_decoder":{"9":{"content":"b"}}}`}, fault.ErrInvalid, "b the id 9"},
		"decoder's key":            {[]string{"vocab.txt", vocab, "tokenizer_config.json", `{"added_tokens_decoder":{"-1":{"content":"b"}}}`}, fault.ErrInvalid, "added_tokens_decoder"},
		"special token not there":  {[]string{"vocab.txt", vocab, "tokenizer_config.json", `{"additional_special_tokens":["<q>"]}`}, fault.ErrInvalid, "<q>"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), folder(t, c.files...))
			var typed *fault.Error
			if !errors.Is(err, c.err) || !errors.As(err, &typed) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			if !strings.Contains(err.Error(), c.names) {
				t.Errorf("%v does not name %s", err, c.names)
			}
			if typed.Key == "" || typed.Field == "" && c.err == fault.ErrUnsupported && typed.Key != "added_tokens.json" {
				t.Errorf("%v has the file %q as its key and the field %q", err, typed.Key, typed.Field)
			}
		})
	}
}

// A folder is no file, whatever its name.
func TestOpenFolderForFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "tokenizer.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, fault.ErrInvalid) {
		t.Error(err)
	}
}

// R3: what the system says of a file that cannot be read can be asked for.
func TestOpenUnreadable(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("tokenizer.json", filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Skip("no links here:", err)
	}
	_, err := Open(t.Context(), dir)
	if at, ok := errors.AsType[*fs.PathError](err); !ok || at.Path != filepath.Join(dir, "tokenizer.json") || !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a link to itself: %v", err)
	}
}

// vocab.txt has a token in each line, whatever ends it; the last line of a token
// counts. The special tokens may have other names.
func TestVocabularyFile(t *testing.T) {
	const lines = "<p>\n<u>\n<c>\n<s>\na\n\n##b\na\nA\nÉ\n 中\n中"
	for name, c := range map[string]struct {
		lines, config, text string
		want                []int32
	}{
		"lines":             {lines, `{}`, "ab a é 中", []int32{2, 7, 6, 7, 1, 11, 3}},
		"CR LF":             {strings.ReplaceAll(lines, "\n", "\r\n"), `{}`, "ab", []int32{2, 7, 6, 3}},
		"CR":                {strings.ReplaceAll(lines, "\n", "\r"), `{}`, "ab", []int32{2, 7, 6, 3}},
		"last line has end": {lines + "\n", `{}`, "中", []int32{2, 11, 3}},
		"cased":             {lines, `{"do_lower_case":false,"tokenizer_class":"DistilBertTokenizerFast"}`, "A É", []int32{2, 8, 9, 3}},
		"accents stay":      {lines, `{"do_lower_case":false,"strip_accents":true}`, "Á É", []int32{2, 8, 1, 3}},
		"ideographs stay":   {lines, `{"tokenize_chinese_chars":false}`, "中a 中", []int32{2, 1, 11, 3}},
		"special token":     {lines, `{}`, "a<s>b", []int32{2, 7, 3, 1, 3}},
		"decoder":           {lines, `{"added_tokens_decoder":{"11":{"content":"<e>"},"8":{"content":"A","special":true}},"extra_special_tokens":{"x":"##b"}}`, "<e>A##b<E>", []int32{2, 11, 8, 6, 1, 1, 1, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			config := strings.Replace(c.config, "{", `{"unk_token":"<u>","cls_token":{"content":"<c>"},"sep_token":"<s>","pad_token":"<p>",`, 1)
			config = strings.Replace(config, ",}", "}", 1)
			tokenizer := open(t, "vocab.txt", c.lines, "tokenizer_config.json", config)
			if got, _ := tokenizer.Encode(nil, c.text, 64); !slices.Equal(got, c.want) {
				t.Errorf("%d, want %d", got, c.want)
			}
			if tokenizer.Pad() != 0 || tokenizer.Unknown() != 1 {
				t.Errorf("padding %d, unknown %d", tokenizer.Pad(), tokenizer.Unknown())
			}
		})
	}
}

// The padding token is that of the section padding, else of its name, else none.
func TestPad(t *testing.T) {
	good := jsonFile(`[]`)
	for file, want := range map[string]int32{
		good: 0,
		strings.Replace(good, `"version"`, `"padding":{"pad_id":4},"version"`, 1):        4,
		strings.Replace(good, `"version"`, `"padding":null,"version"`, 1):                0,
		strings.Replace(good, `"[PAD]"`, `"<pad>"`, 1):                                   -1,
		strings.Replace(good, `"version"`, `"truncation":{"max_length":1},"version"`, 1): 0,
	} {
		if got := open(t, "tokenizer.json", file).Pad(); got != want {
			t.Errorf("%d, want %d: %s", got, want, file)
		}
	}
}

// FuzzOpen: whatever is in the files, Open gives a tokenizer or a typed error.
func FuzzOpen(f *testing.F) {
	f.Add(jsonFile(`[{"id":4,"content":"a","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":false}]`), "", "")
	f.Add("", "[UNK]\n[CLS]\n[SEP]\na\n##a", `{"strip_accents":null,"added_tokens_decoder":{"0":{"content":"a"}},"extra_special_tokens":["a"]}`)
	f.Fuzz(func(t *testing.T, file, vocabulary, config string) {
		files := []string{"vocab.txt", vocabulary, "tokenizer_config.json", config}
		if file != "" {
			files = append(files, "tokenizer.json", file)
		}
		tokenizer, err := Open(t.Context(), folder(t, files...))
		if err == nil {
			ids, types, _ := tokenizer.EncodePair(nil, " a中É [SEP] aa", vocabulary, 16)
			if len(ids) > 16 || len(types) != len(ids) {
				t.Errorf("%d ids, %d types", len(ids), len(types))
			}
			return
		}
		var typed *fault.Error
		if !errors.As(err, &typed) || !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%v", err)
		}
	})
}
