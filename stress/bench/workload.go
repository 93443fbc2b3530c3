package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

const (
	session = "bench-session-00"
	names   = 512  // in a group
	zipf    = 1.1  // exponent of the requests' distribution
	lists   = 4    // of requests for new keys: how many times the room for them
	batch   = 64   // lookups between two looks at the clock or at the end
	earned  = 4096 // lookups that let the writer write once for each batch of them
)

// key is what the other caches are asked by: the same session, shape and name.
type key struct{ session, shape, name string }

// artefact is a value; it knows its key, which a cache of digests needs.
type artefact struct{ key key }

// workload is the keys that every contender holds, the requests for them, and
// the keys that a writer adds. Read-only once made.
type workload struct {
	entries int
	groups  int
	room    int // groups that the bounded caches hold beyond those asked for

	artefacts []artefact // by place: group, then name
	asked     []int      // places in the order of the requests; a power of two of them
	keys      []key      // of the requests; their strings are not the stored ones
	shapes    []shapegroups.Shape
	dims      [][]int64
	names     []string // of the requests

	fresh      []artefact // what the writer puts, in this order, then from the start again
	freshShape []shapegroups.Shape
}

// newWorkload makes one of the entries given, a multiple of 512.
func newWorkload(entries int) (*workload, error) {
	if entries < names || entries%names != 0 {
		return nil, fault.Invalidf("bench: entries", "%d entries, want a multiple of %d", entries, names)
	}
	w := &workload{entries: entries, groups: entries / names}
	w.room = max(8, w.groups/16)
	for g := range w.groups {
		shape, err := shapegroups.Of(dimsOf(g))
		if err != nil {
			return nil, err
		}
		for i := range names {
			w.artefacts = append(w.artefacts, artefact{key{session, shape.Key(), nameOf(i)}})
		}
	}
	for g := range lists * w.room {
		shape, err := shapegroups.Of(dimsOf(w.groups + g))
		if err != nil {
			return nil, err
		}
		w.freshShape = append(w.freshShape, shape)
		for i := range names {
			w.fresh = append(w.fresh, artefact{key{session, shape.Key(), w.artefacts[i].key.name}})
		}
	}
	return w, w.ask()
}

// ask draws the requests. Their strings are others than the stored ones, one copy
// of each name and shape for all requests.
func (w *workload) ask() error {
	length := 1 << 14
	if w.entries > 1<<17 {
		length = 1 << 17 // else the requests would touch too little of so many
	}
	ours, model := strings.Clone(session), make([]string, names)
	for i := range model {
		model[i] = nameOf(i)
	}
	dims, shapes := make([][]int64, w.groups), make([]shapegroups.Shape, w.groups)
	for g := range w.groups {
		var err error
		dims[g] = dimsOf(g)
		if shapes[g], err = shapegroups.Of(dims[g]); err != nil {
			return err
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	rank := rand.NewZipf(random, zipf, 1, uint64(w.entries-1))
	places := random.Perm(w.entries)
	for range length {
		place := places[rank.Uint64()]
		group, name := place/names, model[place%names]
		w.asked = append(w.asked, place)
		w.names = append(w.names, name)
		w.shapes = append(w.shapes, shapes[group])
		w.dims = append(w.dims, dims[group])
		w.keys = append(w.keys, key{ours, shapes[group].Key(), name})
	}
	return nil
}

// nameOf has about the length of a real operation's name. It makes a new string
// each time.
func nameOf(i int) string {
	return fmt.Sprintf("bert/encoder/layer.%02d/attention/matmul.%03d", i/43, i)
}

func dimsOf(group int) []int64 { return []int64{8, 12, int64(128 + group), 64} }

// capacity is what a bounded cache of single entries may hold.
func (w *workload) capacity() int { return (w.groups + w.room) * names }
