package oplist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// fields is one line's JSON object, or one inside of it, with the names it may
// have.
type fields struct {
	file   string
	line   int
	raw    map[string]json.RawMessage
	outer  string // the field that it stands in, empty for a whole line
	prefix string // of an error's text: which of several it is
}

// read splits the object. encoding/json alone would take a name in another case,
// a repeated one (the last wins) and null for everything.
func (f fields) read(text []byte, known ...string) fields {
	f.raw = make(map[string]json.RawMessage, len(known))
	dec := json.NewDecoder(bytes.NewReader(text))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		f.fail("", "not a JSON object; a list is JSON lines, a header first and then one operation a line")
	}
	for dec.More() {
		tok, err := dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			f.fail("", "broken JSON: %v", err)
		}
		if !slices.Contains(known, name) {
			f.fail(name, "unknown; known here are %s", strings.Join(known, ", "))
		}
		if _, twice := f.raw[name]; twice {
			f.fail(name, "given twice; give it once")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			f.fail(name, "broken JSON: %v", err)
		}
		if string(value) == "null" {
			f.fail(name, "is null; give a value or leave the field out")
		}
		f.raw[name] = value
	}
	if _, err := dec.Token(); err != nil {
		f.fail("", "broken JSON: the object is not closed; was the file cut off?")
	}
	if _, err := dec.Token(); err != io.EOF {
		f.fail("", "something follows the JSON object; one object a line")
	}
	return f
}

func (f fields) fail(field, format string, args ...any) {
	if f.outer != "" {
		field = strings.TrimSuffix(f.outer+"."+field, ".")
	}
	fail(f.file, f.line, field, "%s"+format, append([]any{f.prefix}, args...)...)
}

// need refuses a line that lacks one of these.
func (f fields) need(names ...string) {
	for _, n := range names {
		if f.raw[n] == nil {
			f.fail(n, "missing; it is required")
		}
	}
}

// text is a string field, empty where absent.
func (f fields) text(name string) (s string) {
	if raw := f.raw[name]; raw != nil && json.Unmarshal(raw, &s) != nil {
		f.fail(name, "not a text in double quotes")
	}
	return s
}

// whole is an integer field from 0; given is false where absent.
func (f fields) whole(name string) (n int, given bool) {
	raw := f.raw[name]
	if raw == nil {
		return 0, false
	}
	n, err := wholeNumber(raw)
	if err != nil {
		f.fail(name, "%v", err)
	}
	return n, true
}

// list is an array field, nil where absent.
func (f fields) list(name string, limit int) []json.RawMessage {
	raw := f.raw[name]
	if raw == nil {
		return nil
	}
	out, err := array(raw, limit)
	if err != nil {
		f.fail(name, "%v", err)
	}
	return out
}

func array(raw json.RawMessage, limit int) ([]json.RawMessage, error) {
	var out []json.RawMessage
	if err := json.Unmarshal(raw, &out); err != nil || out == nil {
		return nil, fmt.Errorf("not an array in square brackets")
	}
	if len(out) > limit {
		return nil, fmt.Errorf("%d values; at most %d", len(out), limit)
	}
	return out, nil
}

func wholeNumber(raw json.RawMessage) (int, error) {
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil || string(raw) == "null" || n < 0 || n > math.MaxInt {
		return 0, fmt.Errorf("%.40s is not a whole number from 0", raw)
	}
	return int(n), nil
}
