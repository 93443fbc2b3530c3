// Package manifest is the list of what production asked for: which operations
// were compiled, what they cost and how often they were used, so that another
// process can have them ready before the first request.
//
// Its format is that of package jsonlines, each line an Item, dearest first.
// Functions are safe for concurrent use.
package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/jsonlines"
)

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
func Items(uses []forward.Use) []Item {
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

// Sort puts the dearest first, by compile seconds times uses; ties by name.
func Sort(items []Item) {
	slices.SortFunc(items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(b.Cost*float64(b.Uses), a.Cost*float64(a.Uses)), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Op, b.Op))
	})
}

// Write writes a manifest, dearest first. It sorts items.
func Write(w io.Writer, items []Item) error {
	Sort(items)
	return jsonlines.Write(w, jsonlines.Ops, items)
}

// Read reads a manifest; file is what errors call it.
func Read(file string, r io.Reader) ([]Item, error) {
	return jsonlines.Read(file, r, jsonlines.Ops, func(i Item) error {
		switch {
		case i.Backend == "":
			return errors.New("backend is empty: want the name of one")
		case i.Op == "":
			return errors.New("op is empty: want an operation")
		case i.Uses < 0:
			return fmt.Errorf("uses is %d: want 0 or more", i.Uses)
		case !(i.Cost >= 0) || math.IsInf(i.Cost, 0):
			return fmt.Errorf("cost is %v: want 0 or more", i.Cost)
		}
		return nil
	})
}
