package wordpiece

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/kiln-cache/kiln/fault"
)

const op = "wordpiece: open"

// mostBytes is how large a file may be.
const mostBytes = 1 << 28

// The context is looked at after so much of a file, and after so many tokens.
const (
	bytesAtOnce  = 1 << 20
	tokensAtOnce = 1 << 12
)

// settings are what the files of a model say.
type settings struct {
	file string // that is blamed

	clean, ideographs, strip, lower bool

	vocabulary   dictionary
	unknown      string
	prefix       string // of tokens inside a word
	maxChars     int
	added        []addedToken
	addedIDs     []int32 // that the file gives them
	single, pair template
	pad          int32
}

// Open reads the tokenizer of the model in dir: tokenizer.json, or where there is
// none vocab.txt with tokenizer_config.json. An error is fault.ErrInvalid or
// fault.ErrUnsupported; its Key is the file and its Field the field, if it is about one.
// The end of ctx ends the reading.
func Open(ctx context.Context, dir string) (*Tokenizer, error) {
	config, err := readConfig(ctx, filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "tokenizer.json")
	text, err := read(ctx, name)
	var s *settings
	switch {
	case err == nil:
		s, err = config.parseJSON(ctx, name, text)
	case errors.Is(err, fault.ErrNotFound):
		s, err = config.readVocabulary(ctx, dir)
	}
	if err != nil {
		return nil, err
	}
	return s.build(ctx)
}

// read gives a whole file of UTF-8.
func read(ctx context.Context, name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refused(fault.ErrNotFound, name, "", "is missing")
	case err != nil:
		return nil, unreadable(name, err)
	case !info.Mode().IsRegular():
		return nil, invalid(name, "", "is not a regular file")
	case info.Size() > mostBytes:
		return nil, invalid(name, "", "has %d bytes, more than %d", info.Size(), mostBytes)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, unreadable(name, err)
	}
	defer f.Close()
	var whole bytes.Buffer
	whole.Grow(int(info.Size()) + bytes.MinRead)
	for err == nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		_, err = io.CopyN(&whole, f, bytesAtOnce)
	}
	if err != io.EOF {
		return nil, unreadable(name, err)
	}
	text := whole.Bytes()
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		return nil, invalid(name, "", "begins with a byte order mark; remove it")
	}
	if !utf8.Valid(text) {
		return nil, invalid(name, "", "is not UTF-8")
	}
	return text, nil
}

func unreadable(file string, err error) error {
	return &fault.Error{Op: op, Key: filepath.Base(file), Err: fmt.Errorf("%w: %w", fault.ErrInvalid, err)}
}

// invalid names the field of a file that is broken; no field: it is the whole file.
func invalid(file, field, format string, args ...any) error {
	return refused(fault.ErrInvalid, file, field, format, args...)
}

// unsupported names the field of a file that this package does not know, or knows
// with other values.
func unsupported(file, field, format string, args ...any) error {
	return refused(fault.ErrUnsupported, file, field, format, args...)
}

func refused(sentinel error, file, field, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		text = field + " " + text
	}
	return &fault.Error{Op: op, Key: filepath.Base(file), Field: field, Err: fmt.Errorf("%w: %.1000s", sentinel, text)} // a line, whatever the file has in it
}

// build makes the tables that a call looks into.
func (s *settings) build(ctx context.Context) (*Tokenizer, error) {
	t := &Tokenizer{begin: s.vocabulary, maxChars: s.maxChars, single: s.single, pair: s.pair, pad: s.pad}
	t.normalizer = newNormalizer(s.clean, s.ideographs, s.strip, s.lower)
	t.raw.table, t.normal.table = t.normalizer.table, t.normalizer.table
	unknown, ok := s.vocabulary.ids[s.unknown]
	if !ok {
		return nil, invalid(s.file, "unk_token", "is %s, which is not in the vocabulary", fault.Printable(s.unknown))
	}
	t.unknown = unknown
	if t.single.len() == 0 || t.pair.len() == 0 {
		return nil, unsupported(s.file, "post_processor", "sets no token around the texts")
	}
	n := 0
	for token, id := range s.vocabulary.ids {
		if n++; n%tokensAtOnce == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if rest, ok := strings.CutPrefix(token, s.prefix); ok {
			t.inside.add(rest, id)
		}
	}
	return t, s.addTokens(t)
}

// addTokens gives the added tokens the ids that the reference gives them, whatever
// the file says, and refuses a file that says something else.
func (s *settings) addTokens(t *Tokenizer) error {
	ids, tokens := make(map[string]int32), make(map[int32]addedToken)
	next := int32(len(s.vocabulary.ids))
	for i, token := range s.added {
		if token.Content == "" {
			continue
		}
		id, ok := ids[token.Content]
		if !ok {
			if id, ok = s.vocabulary.ids[token.Content]; !ok {
				id = next
				next++
			}
		}
		if id != s.addedIDs[i] {
			return invalid(s.file, "added_tokens", "gives %s the id %d, want %d", fault.Printable(token.Content), s.addedIDs[i], id)
		}
		ids[token.Content], tokens[id] = id, token
	}
	for id, token := range tokens {
		to, pattern := &t.raw, token.Content
		if token.Normalized {
			to, pattern = &t.normal, string(t.normalizer.append(nil, []byte(pattern), new(marks)))
		}
		if pattern == "" {
			return invalid(s.file, "added_tokens", "has %s, of which nothing is left when it is normalized", fault.Printable(token.Content))
		}
		if _, ok := to.ids[pattern]; ok {
			return invalid(s.file, "added_tokens", "has two tokens that are %s when they are normalized", fault.Printable(pattern))
		}
		to.add(pattern, id, token)
	}
	return nil
}
