package wordpiece

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// config is tokenizer_config.json; its zero value is a folder without one. Fields
// that do not change ids are left out.
type config struct {
	file string

	Class      string `json:"tokenizer_class"`
	Lower      *bool  `json:"do_lower_case"`
	Strip      *bool  `json:"strip_accents"`
	Ideographs *bool  `json:"tokenize_chinese_chars"`
	Side       string `json:"truncation_side"`

	Unknown tokenName `json:"unk_token"`
	Begin   tokenName `json:"cls_token"`
	End     tokenName `json:"sep_token"`
	Pad     tokenName `json:"pad_token"`
	Mask    tokenName `json:"mask_token"`

	Added map[string]addedToken `json:"added_tokens_decoder"`
	More  tokenNames            `json:"additional_special_tokens"`
	Extra tokenNames            `json:"extra_special_tokens"`
}

// tokenNames are tokens in a list, or by what they are for.
type tokenNames []tokenName

func (n *tokenNames) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, (*[]tokenName)(n)); err == nil {
		return nil
	}
	var byUse map[string]tokenName
	err := json.Unmarshal(text, &byUse)
	*n = slices.Sorted(maps.Values(byUse))
	return err
}

// tokenName is a token as text, or as an object with its content.
type tokenName string

func (n *tokenName) UnmarshalJSON(text []byte) error {
	var token addedToken
	if err := json.Unmarshal(text, (*string)(n)); err == nil {
		return nil
	}
	err := json.Unmarshal(text, &token)
	*n = tokenName(token.Content)
	return err
}

func (n tokenName) or(otherwise string) string {
	if n == "" {
		return otherwise
	}
	return string(n)
}

func readConfig(ctx context.Context, name string) (*config, error) {
	c := &config{file: name}
	text, err := read(ctx, name)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return c, nil
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, invalid(name, "", "%v", err)
	}
	if c.Side != "" && c.Side != "right" {
		return nil, unsupported(name, "truncation_side", "is %s, want right", fault.Printable(c.Side))
	}
	return c, nil
}

// classes are the tokenizers that read vocab.txt as BERT's does.
var classes = []string{"", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"}

// readVocabulary reads vocab.txt.
func (c *config) readVocabulary(ctx context.Context, dir string) (*settings, error) {
	name := filepath.Join(dir, "vocab.txt")
	if !slices.Contains(classes, strings.TrimSuffix(c.Class, "Fast")) {
		return nil, unsupported(c.file, "tokenizer_class", "is %.64q, want %q", c.Class, classes[1:])
	}
	if _, err := read(ctx, filepath.Join(dir, "added_tokens.json")); ctx.Err() != nil {
		return nil, ctx.Err()
	} else if !errors.Is(err, fault.ErrNotFound) {
		return nil, unsupported("added_tokens.json", "", "is not read: list its tokens in added_tokens_decoder of %s", filepath.Base(c.file))
	}
	text, err := read(ctx, name)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, invalid("tokenizer.json", "", "is missing, and so is vocab.txt")
	}
	if err != nil {
		return nil, err
	}
	s := &settings{file: name, clean: true, ideographs: isNot(c.Ideographs, false), lower: isNot(c.Lower, false), unknown: c.Unknown.or("[UNK]"), prefix: "##", maxChars: 100, pad: -1}
	s.strip = s.lower
	if c.Strip != nil {
		s.strip = *c.Strip
	}
	lines := strings.ReplaceAll(strings.ReplaceAll(string(text), "\r\n", "\n"), "\r", "\n")
	s.vocabulary = newDictionary(strings.Count(lines, "\n") + 1)
	id := int32(0) // no file has as many lines as would make it overflow
	for line := range strings.Lines(lines) {
		if id%tokensAtOnce == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.vocabulary.add(strings.TrimSuffix(line, "\n"), id)
		id++
	}
	return s, c.addSpecials(s)
}

func isNot(set *bool, value bool) bool { return set == nil || *set != value }

// addSpecials puts the tokens with a meaning around the texts and among the added
// tokens.
func (c *config) addSpecials(s *settings) error {
	begin, end := c.Begin.or("[CLS]"), c.End.or("[SEP]")
	names := []string{s.unknown, begin, end, c.Pad.or("[PAD]"), c.Mask.or("[MASK]")}
	for i, name := range names {
		id, ok := s.vocabulary.ids[name]
		switch {
		case ok:
			s.added = append(s.added, addedToken{Content: name, Special: true})
			s.addedIDs = append(s.addedIDs, id)
		case i < 3:
			return invalid(s.file, "", "has no token %s", fault.Printable(name))
		}
	}
	if id, ok := s.vocabulary.ids[names[3]]; ok {
		s.pad = id
	}
	s.single, s.pair = bert(number(s.vocabulary.ids[begin]), number(s.vocabulary.ids[end]))
	return c.addDecoder(s)
}

// addDecoder adds the tokens of added_tokens_decoder by their ids, and the further
// special ones, which must be among those or in the vocabulary.
func (c *config) addDecoder(s *settings) error {
	byID, known := make(map[int32]addedToken), make(map[string]bool)
	for key, token := range c.Added {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			return invalid(c.file, "added_tokens_decoder", "has %s, want ids up to %d", fault.Printable(key), math.MaxInt32)
		}
		byID[int32(id)], known[token.Content] = token, true
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		s.added, s.addedIDs = append(s.added, byID[id]), append(s.addedIDs, id)
	}
	for _, name := range append(c.More, c.Extra...) {
		id, ok := s.vocabulary.ids[string(name)]
		switch {
		case known[string(name)]:
		case ok:
			s.added, s.addedIDs = append(s.added, addedToken{Content: string(name), Special: true}), append(s.addedIDs, id)
		default:
			return invalid(c.file, "", "names the special token %s, which is not in the vocabulary", fault.Printable(string(name)))
		}
	}
	return nil
}
