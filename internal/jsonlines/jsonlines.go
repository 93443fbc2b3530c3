// Package jsonlines reads and writes manifests: lists of what to have ready, as
// JSON lines. The first is {"kiln_manifest":N}, N the kind of list; each other line
// is an item, or blank. Reading is strict and bounded: another kind, an unknown
// field, a line or a list beyond the bounds is an *Error with its line.
//
// Functions are safe for concurrent use.
package jsonlines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kiln-cache/kiln/fault"
)

// The kinds of lists.
const (
	Ops     = 1 // of package cmd/kiln/internal/manifest
	Entries = 2 // of package kiln
)

// What reading takes at most.
const (
	MostLine  = 1 << 20 // bytes
	mostLines = 1 << 20
	mostBytes = 1 << 28 // of all lines
)

// Error says where a manifest is not as it should be.
type Error struct {
	File string
	Line int // from 1
	Err  error
}

func (e *Error) Error() string   { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *Error) Unwrap() []error { return []error{fault.ErrInvalid, e.Err} }

type header struct {
	Kind int `json:"kiln_manifest"`
}

// uses is who writes and who reads a kind.
var uses = map[int]string{
	Ops:     "what kiln run --record writes, for kiln warm",
	Entries: "what Runtime.Record of package kiln writes, for its Runtime.Warm",
}

// other is the error of a list that is not of the kind that is wanted.
func other(want, has int) error {
	text := fmt.Sprintf(`no {"kiln_manifest":%d}, %s`, want, uses[want])
	if use, known := uses[has]; known {
		text += fmt.Sprintf(": this is a manifest of kind %d, %s", has, use)
	}
	return errors.New(text)
}

// Write writes a list.
func Write[T any](w io.Writer, kind int, items []T) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	if err := e.Encode(header{kind}); err != nil {
		return err
	}
	for i := range items {
		if err := e.Encode(items[i]); err != nil {
			return err
		}
	}
	return b.Flush()
}

// Read reads a list. file is what errors call it; check refuses an item.
func Read[T any](file string, r io.Reader, kind int, check func(T) error) ([]T, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MostLine)
	var items []T
	n, total := 0, 0
	for lines.Scan() {
		n++
		if total += len(lines.Bytes()); n > mostLines || total > mostBytes {
			return nil, &Error{file, n, fmt.Errorf("more than %d lines or %d bytes", mostLines, mostBytes)}
		}
		if n == 1 {
			var h header
			if err := strict(lines.Bytes(), &h); err != nil || h.Kind != kind {
				return nil, &Error{file, n, other(kind, h.Kind)}
			}
			continue
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var i T
		err := strict(lines.Bytes(), &i)
		if err == nil {
			err = check(i)
		}
		if err != nil {
			return nil, &Error{file, n, err}
		}
		items = append(items, i)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a line of more than %d bytes", MostLine)
		}
		return nil, &Error{file, n + 1, err}
	}
	if n == 0 {
		return nil, &Error{file, 1, fmt.Errorf("the file is empty: want %s", uses[kind])}
	}
	return items, nil
}

func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value on a line")
	}
	return nil
}
