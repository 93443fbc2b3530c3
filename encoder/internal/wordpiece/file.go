package wordpiece

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// tokenizerFile is tokenizer.json while it is read.
type tokenizerFile struct {
	name string
	*settings
}

type fields map[string]json.RawMessage

// number is an id or a type. Unlike an int32 it refuses null and what is below 0.
type number int32

func (n *number) UnmarshalJSON(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 31)
	*n = number(v)
	return err
}

// object gives the fields of the object at path. The known ones must be there and
// not null, but for those that end in "?"; others are refused, unless known is empty.
func (f *tokenizerFile) object(path string, raw json.RawMessage, known ...string) (o fields, err error) {
	if err := f.value(path, raw, &o); err != nil {
		return nil, err
	}
	return o, f.only(path, o, known...)
}

// large is object for one of which the field big has the most. Who reads that field checks it.
func (f *tokenizerFile) large(ctx context.Context, path string, raw json.RawMessage, big string) (fields, error) {
	if o, err := split(ctx, raw, big); o != nil || err != nil {
		return o, err
	}
	return f.object(path, raw)
}

func (f *tokenizerFile) only(path string, o fields, known ...string) error {
	for _, k := range known {
		if v, ok := o[k]; (!ok || string(v) == "null") && !strings.HasSuffix(k, "?") {
			return invalid(f.name, path+"."+k, "is missing")
		}
	}
	for k := range o {
		if len(known) > 0 && !slices.Contains(known, k) && !slices.Contains(known, k+"?") {
			return unsupported(f.name, path+"."+fault.Printable(k), "is not known")
		}
	}
	return nil
}

func (f *tokenizerFile) value(path string, raw json.RawMessage, to any) error {
	if err := json.Unmarshal(raw, to); err != nil {
		return invalid(f.name, path, "cannot be read: %v", err)
	}
	return nil
}

// typed reads the type of the object at path, and refuses others than those wanted.
func (f *tokenizerFile) typed(path string, raw json.RawMessage, wanted ...string) (string, error) {
	var is struct{ Type string }
	if err := f.value(path, raw, &is); err != nil {
		return "", err
	}
	if !slices.Contains(wanted, is.Type) {
		return "", unsupported(f.name, path+".type", "is %.64q, want %q", is.Type, wanted)
	}
	return is.Type, nil
}

func (c *config) parseJSON(ctx context.Context, name string, text []byte) (*settings, error) {
	f := &tokenizerFile{name: name, settings: &settings{file: name, pad: -1}}
	top, err := f.large(ctx, "the file", text, "model")
	if err != nil {
		return nil, err
	}
	version := "1.0"
	if raw, ok := top["version"]; ok {
		if err := f.value("version", raw, &version); err != nil {
			return nil, err
		}
	}
	if version != "1.0" {
		return nil, unsupported(name, "version", "is %s, want 1.0", fault.Printable(version))
	}
	for _, part := range []struct {
		name string
		read func(json.RawMessage) error
	}{
		{"model", func(raw json.RawMessage) error { return f.readModel(ctx, raw) }}, {"normalizer", f.readNormalizer}, {"pre_tokenizer", f.readPreTokenizer},
		{"post_processor", f.readPostProcessor},
		{"added_tokens", func(raw json.RawMessage) error { return f.readAdded(ctx, raw) }},
	} {
		raw, ok := top[part.name]
		if !ok && part.name != "added_tokens" {
			return nil, invalid(name, part.name, "is missing")
		}
		if !ok {
			continue
		}
		if err := part.read(raw); err != nil {
			return nil, err
		}
	}
	if err := c.agrees(f.settings); err != nil {
		return nil, err
	}
	return f.settings, f.readPadding(c, top["padding"])
}

// agrees refuses a folder whose files contradict each other: which one counts
// differs among the programs that read them.
func (c *config) agrees(s *settings) error {
	for field, says := range map[string]struct {
		config *bool
		file   bool
	}{"do_lower_case": {c.Lower, s.lower}, "strip_accents": {c.Strip, s.strip}, "tokenize_chinese_chars": {c.Ideographs, s.ideographs}} {
		if says.config != nil && *says.config != says.file {
			return unsupported(c.file, field, "is %t, and %s says %t", *says.config, filepath.Base(s.file), says.file)
		}
	}
	for _, token := range c.Added {
		same := func(t addedToken) bool {
			t.Special = token.Special // is for those that decode
			return t == token
		}
		if !slices.ContainsFunc(s.added, same) {
			return unsupported(c.file, "added_tokens_decoder", "has %s, which is not such a token in %s", fault.Printable(token.Content), filepath.Base(s.file))
		}
	}
	return nil
}

func (f *tokenizerFile) readModel(ctx context.Context, raw json.RawMessage) error {
	o, err := f.large(ctx, "model", raw, "vocab")
	if err != nil {
		return err
	}
	kind := `{"type":` + cmp.Or(string(o["type"]), "null") + `}`
	if _, err := f.typed("model", json.RawMessage(kind), "WordPiece", ""); err != nil {
		return err
	}
	if err := f.only("model", o, "type?", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"); err != nil {
		return err
	}
	var most uint64
	if err := f.value("model.unk_token", o["unk_token"], &f.unknown); err != nil {
		return err
	}
	if err := f.value("model.continuing_subword_prefix", o["continuing_subword_prefix"], &f.prefix); err != nil {
		return err
	}
	if err := f.value("model.max_input_chars_per_word", o["max_input_chars_per_word"], &most); err != nil {
		return err
	}
	f.maxChars = int(min(most, math.MaxInt32))
	return f.readVocab(ctx, string(o["vocab"]))
}

// readVocab reads an object whose values are ids. It is written out because encoding/json takes
// most of the time of an Open for it.
func (f *tokenizerFile) readVocab(ctx context.Context, text string) error {
	rest, ok := strings.CutPrefix(text, "{")
	rest = strings.TrimLeft(rest, blanks)
	if !ok {
		return invalid(f.name, "model.vocab", "is not an object")
	}
	f.vocabulary = newDictionary(strings.Count(text, ":"))
	token := ""
	for n := 0; ok && rest != "}"; n++ {
		if n%tokensAtOnce == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		rest = strings.TrimLeft(rest, blanks)
		end := quoted(rest)
		if end == 0 {
			break
		}
		token = rest[1 : end-1]
		if strings.ContainsFunc(token, func(r rune) bool { return r == '\\' || r < ' ' }) {
			if err := f.value("model.vocab", json.RawMessage(rest[:end]), &token); err != nil {
				return err
			}
		}
		if rest, ok = strings.CutPrefix(strings.TrimLeft(rest[end:], blanks), ":"); !ok {
			break
		}
		if end = strings.IndexAny(rest, ",}"); end < 0 {
			break
		}
		number := strings.Trim(rest[:end], blanks)
		id, err := strconv.ParseUint(number, 10, 31)
		if err != nil || number[0] == '0' && len(number) > 1 {
			return invalid(f.name, "model.vocab", "gives the id %s of %s, want a number from 0 to %d", fault.Printable(number), fault.Printable(token), math.MaxInt32)
		}
		f.vocabulary.add(token, int32(id))
		if rest = rest[end:]; rest[0] == ',' {
			rest = strings.TrimLeft(rest[1:], blanks)
			ok = rest != "}"
		}
	}
	if !ok || rest != "}" {
		return invalid(f.name, "model.vocab", "is no JSON behind %s", fault.Printable(token))
	}
	return nil
}

func (f *tokenizerFile) readNormalizer(raw json.RawMessage) error {
	if _, err := f.typed("normalizer", raw, "BertNormalizer"); err != nil {
		return err
	}
	o, err := f.object("normalizer", raw, "type", "clean_text", "handle_chinese_chars", "strip_accents?", "lowercase")
	if err != nil {
		return err
	}
	for field, to := range map[string]*bool{"clean_text": &f.clean, "handle_chinese_chars": &f.ideographs, "lowercase": &f.lower} {
		if err := f.value("normalizer."+field, o[field], to); err != nil {
			return err
		}
	}
	f.strip = f.lower
	if strip := o["strip_accents"]; strip != nil {
		return f.value("normalizer.strip_accents", strip, &f.strip) // null leaves it as it is
	}
	return nil
}

func (f *tokenizerFile) readPreTokenizer(raw json.RawMessage) error {
	if _, err := f.typed("pre_tokenizer", raw, "BertPreTokenizer"); err != nil {
		return err
	}
	_, err := f.object("pre_tokenizer", raw, "type")
	return err
}

func (f *tokenizerFile) readAdded(ctx context.Context, raw json.RawMessage) error {
	var list []json.RawMessage
	if err := f.value("added_tokens", raw, &list); err != nil {
		return err
	}
	for _, raw := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := f.object("added_tokens", raw, "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"); err != nil {
			return err
		}
		token := struct {
			addedToken
			ID number `json:"id"`
		}{}
		if err := f.value("added_tokens", raw, &token); err != nil {
			return err
		}
		f.added, f.addedIDs = append(f.added, token.addedToken), append(f.addedIDs, int32(token.ID))
	}
	return nil
}

// readPadding takes the id of the padding token from the section padding, or else
// that of the token of this name.
func (f *tokenizerFile) readPadding(c *config, raw json.RawMessage) error {
	padding := struct {
		ID *number `json:"pad_id"`
	}{}
	if raw != nil {
		if err := f.value("padding", raw, &padding); err != nil {
			return err
		}
	}
	if padding.ID != nil {
		f.pad = int32(*padding.ID)
	} else if id, ok := f.vocabulary.ids[c.Pad.or("[PAD]")]; ok {
		f.pad = id
	}
	return nil
}
