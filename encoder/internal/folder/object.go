package folder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kiln-cache/kiln/fault"
)

const mostBytes = 16 << 20 // of a file of JSON

// refuse is the error about a field of a file; field is empty where the whole file is
// meant. It stays a line, whatever the file has in it.
func refuse(sentinel error, file, field, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		text = field + " " + text
	}
	return &fault.Error{Op: "encoder: open", Key: file, Field: field, Err: fmt.Errorf("%w: %.1000s", sentinel, text)}
}

// read gives a file of the folder; nil where it has none.
func read(dir, file string) ([]byte, error) {
	path := filepath.Join(dir, filepath.FromSlash(file))
	unreadable := func(err error) error {
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = at.Err // the key says which file
		}
		return &fault.Error{Op: "encoder: open", Key: file, Err: fmt.Errorf("%w: %w", fault.ErrInvalid, err)}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, unreadable(err)
	case !info.Mode().IsRegular():
		return nil, refuse(fault.ErrInvalid, file, "", "is not a regular file")
	case info.Size() > mostBytes:
		return nil, refuse(fault.ErrInvalid, file, "", "has %d bytes, want at most %d", info.Size(), mostBytes)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostBytes))
	if err != nil {
		return nil, unreadable(err)
	}
	return append([]byte{}, text...), nil // not nil, though it is empty
}

// object is a JSON object of a file. It keeps the first mistake.
type object struct {
	file   string
	fields map[string]json.RawMessage
	err    error
}

// readObject reads a file that holds one object; absent: there is no such file.
func readObject(dir, file string) (o *object, absent bool, err error) {
	text, err := read(dir, file)
	if err != nil || text == nil {
		return nil, err == nil, err
	}
	o = &object{file: file}
	if err := json.Unmarshal(text, &o.fields); err != nil || o.fields == nil {
		return nil, false, refuse(fault.ErrInvalid, file, "", "is not a JSON object: %v", err)
	}
	return o, false, nil
}

func (o *object) refuse(sentinel error, field, format string, args ...any) {
	if o.err == nil {
		o.err = refuse(sentinel, o.file, field, format, args...)
	}
}

// given tells whether the field is there and not null.
func (o *object) given(field string) bool {
	raw, ok := o.fields[field]
	return ok && string(raw) != "null"
}

// decode reads a field into v; false where it is not given or wrong.
func (o *object) decode(field string, v any, want string) bool {
	if !o.given(field) {
		return false
	}
	if err := json.Unmarshal(o.fields[field], v); err != nil {
		o.refuse(fault.ErrInvalid, field, "is %.40s, want %s", o.fields[field], want)
		return false
	}
	return true
}

// need refuses an object without one of these fields.
func (o *object) need(fields ...string) {
	for _, field := range fields {
		if !o.given(field) {
			o.refuse(fault.ErrInvalid, field, "is missing")
		}
	}
}

// whole is a whole number from least to most, otherwise where it is not given.
func (o *object) whole(field string, otherwise, least, most int) int {
	n := otherwise
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	if o.decode(field, &n, want) && (n < least || n > most) {
		o.refuse(fault.ErrInvalid, field, "is %d, want %s", n, want)
	}
	return n
}

func (o *object) text(field, otherwise string) string {
	o.decode(field, &otherwise, "a text")
	return otherwise
}

func (o *object) flag(field string) (on bool) {
	o.decode(field, &on, "true or false")
	return on
}

// off refuses a field that is neither missing nor null, false, 0, or empty.
func (o *object) off(fields ...string) {
	for _, field := range fields {
		var compact bytes.Buffer
		if err := json.Compact(&compact, o.fields[field]); o.given(field) && err == nil {
			switch compact.String() {
			case "false", "{}", "[]", `""`, "0":
			default:
				o.refuse(fault.ErrUnsupported, field, "is %.40s, which nothing here computes", compact.String())
			}
		}
	}
}

// only refuses a text that is none of words; the first of them is what a missing field
// means.
func (o *object) only(field string, words ...string) string {
	text := o.text(field, words[0])
	for _, word := range words {
		if text == word {
			return text
		}
	}
	o.refuse(fault.ErrUnsupported, field, "is %.40q, want %q", text, words)
	return text
}
