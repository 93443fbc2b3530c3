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

// fields is one line's JSON object, with the names it may have.
type fields struct {
	file string
	line int
	raw  map[string]json.RawMessage
}

// readFields splits one line. encoding/json alone would take a name in another
// case, a repeated one (the last wins) and null for everything.
func readFields(file string, line int, text []byte, known []string) (fields, error) {
	f := fields{file, line, make(map[string]json.RawMessage, len(known))}
	dec := json.NewDecoder(bytes.NewReader(text))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return f, f.errorf("", "not a JSON object; a list is JSON lines, a header first and then one operation a line")
	}
	for dec.More() {
		tok, err := dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			return f, f.errorf("", "broken JSON: %v", err)
		}
		if !slices.Contains(known, name) {
			return f, f.errorf(name, "unknown; known here are %s", strings.Join(known, ", "))
		}
		if _, twice := f.raw[name]; twice {
			return f, f.errorf(name, "given twice; give it once")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return f, f.errorf(name, "broken JSON: %v", err)
		}
		if string(value) == "null" {
			return f, f.errorf(name, "is null; give a value or leave the field out")
		}
		f.raw[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return f, f.errorf("", "broken JSON: the object is not closed; was the file cut off?")
	}
	if _, err := dec.Token(); err != io.EOF {
		return f, f.errorf("", "something follows the JSON object; one object a line")
	}
	return f, nil
}

func (f fields) errorf(field, format string, args ...any) error {
	return &Error{File: f.file, Line: f.line, Field: field, Text: fmt.Sprintf(format, args...)}
}

// need refuses a line that lacks one of these.
func (f fields) need(names ...string) error {
	for _, n := range names {
		if f.raw[n] == nil {
			return f.errorf(n, "missing; it is required")
		}
	}
	return nil
}

// text is a string field, empty where absent.
func (f fields) text(name string) (string, error) {
	raw := f.raw[name]
	if raw == nil {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", f.errorf(name, "not a text in double quotes")
	}
	return s, nil
}

// whole is an integer field from 0; given is false where absent.
func (f fields) whole(name string) (n int, given bool, err error) {
	raw := f.raw[name]
	if raw == nil {
		return 0, false, nil
	}
	if n, err = wholeNumber(raw); err != nil {
		return 0, false, f.errorf(name, "%v", err)
	}
	return n, true, nil
}

// list is an array field, nil where absent.
func (f fields) list(name string, limit int) ([]json.RawMessage, error) {
	raw := f.raw[name]
	if raw == nil {
		return nil, nil
	}
	out, err := array(raw, limit)
	if err != nil {
		return nil, f.errorf(name, "%v", err)
	}
	return out, nil
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
