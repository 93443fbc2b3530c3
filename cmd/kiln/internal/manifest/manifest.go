// Package manifest is the list of what production asked for: which operations
// were compiled, what they cost and how often they were used, so that another
// process can have them ready before the first request.
//
// A manifest is JSON lines. The first is {"kiln_manifest":1}; each other one an
// Item, dearest first, or blank. Reading is strict: an unknown version, field or
// order of magnitude is an *Error with its line. Functions are safe for concurrent
// use.
package manifest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
)

// Version of the format.
const Version = 1

// Item is one thing to have ready.
type Item struct {
	Backend    string  `json:"backend"`
	Op         string  `json:"op"`         // what the device runs, as ops.Op.String writes it
	Descriptor string  `json:"descriptor"` // the operation as the model states it
	Shape      string  `json:"shape"`      // of the first request that asked for it
	Cost       float64 `json:"cost"`       // compile seconds
	Uses       int64   `json:"uses"`
}

// Items are the entries for what a model asked for.
func Items(uses []encoder.Use) []Item {
	items := make([]Item, len(uses))
	for i, u := range uses {
		items[i] = Item{u.Backend, u.Op, u.Descriptor, u.Shape, u.Cost.Seconds(), u.Uses}
	}
	return items
}

// Merge adds up the uses of equal items.
func Merge(lists ...[]Item) []Item {
	type key struct{ backend, op, descriptor string }
	at := make(map[key]int)
	var all []Item
	for _, list := range lists {
		for _, i := range list {
			k := key{i.Backend, i.Op, i.Descriptor}
			if n, there := at[k]; there {
				all[n].Uses += i.Uses
				all[n].Cost = max(all[n].Cost, i.Cost)
				continue
			}
			at[k] = len(all)
			all = append(all, i)
		}
	}
	return all
}

// Error says where a manifest is not as it should be.
type Error struct {
	File string
	Line int // from 1
	Err  error
}

func (e *Error) Error() string   { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *Error) Unwrap() []error { return []error{fault.ErrInvalid, e.Err} }

type header struct {
	Version int `json:"kiln_manifest"`
}

// mostLine bounds what one line may take in memory, and mostItems a manifest.
const (
	mostLine  = 64 << 10
	mostItems = 1 << 20
)

// Sort puts the dearest first, by compile seconds times uses; ties by name.
func Sort(items []Item) {
	slices.SortFunc(items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(b.Cost*float64(b.Uses), a.Cost*float64(a.Uses)), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Op, b.Op))
	})
}

// Write writes a manifest, dearest first. It sorts items.
func Write(w io.Writer, items []Item) error {
	Sort(items)
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	if err := e.Encode(header{Version}); err != nil {
		return err
	}
	for _, i := range items {
		if err := e.Encode(i); err != nil {
			return err
		}
	}
	return b.Flush()
}

// Read reads a manifest; file is what errors call it.
func Read(file string, r io.Reader) ([]Item, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, mostLine)
	var items []Item
	n := 0
	for lines.Scan() {
		n++
		if n > mostItems {
			return nil, &Error{file, n, fmt.Errorf("more than %d items", mostItems)}
		}
		if n == 1 {
			var h header
			if err := strict(lines.Bytes(), &h); err != nil || h.Version != Version {
				return nil, &Error{file, n, fmt.Errorf(`no manifest of version %d: want {"kiln_manifest":%d}`, Version, Version)}
			}
			continue
		}
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var i Item
		if err := strict(lines.Bytes(), &i); err != nil {
			return nil, &Error{file, n, err}
		}
		if i.Backend == "" || i.Op == "" || i.Uses < 0 || !(i.Cost >= 0) || math.IsInf(i.Cost, 0) {
			return nil, &Error{file, n, errors.New("want a backend, an op, and cost and uses of 0 or more")}
		}
		items = append(items, i)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a line of more than %d bytes", mostLine)
		}
		return nil, &Error{file, n + 1, err}
	}
	if n == 0 {
		return nil, &Error{file, 1, fmt.Errorf(`the file is empty: want {"kiln_manifest":%d}`, Version)}
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
