// Package reads is the workload of Kiln's read paths and misses, and their peer S:
// a sync.Map keyed by the full key (session, shape and name as strings). `kiln
// bench` holds ratios of these against its gates, and stress/bench shows the same
// ones beside other caches.
//
// A Requests is safe for concurrent use, but for Redraw.
package reads

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/shapegroups"
)

const (
	Session = "bench-session-00"
	Names   = 512 // of a group
	zipf    = 1.1 // exponent of the requests' distribution
)

// Key is a full key, which S and other caches are asked by.
type Key struct{ Session, Shape, Name string }

// Value is what is stored. It has its key, which a cache of digests needs.
type Value struct{ Key Key }

// Requests are keys, the values that every store holds under them, and requests
// for them in Zipf's distribution. What a request asks by is laid out in the
// requests' order. Its strings are not the stored ones, as those of a request in
// a server are not: there is one copy of each name and shape for all requests.
type Requests struct {
	Entries int
	Groups  int
	Values  []Value // by place: group, then name
	Shapes  []shapegroups.Shape

	// By request; a power of two of them.
	Places      []int
	Keys        []Key
	AskedShapes []shapegroups.Shape
	AskedDims   [][]int64
	AskedNames  []string
}

// New makes the requests for this number of entries, a multiple of Names.
func New(entries int) (*Requests, error) {
	if entries < Names || entries%Names != 0 {
		return nil, fault.Invalidf("bench: entries", "%d entries, want a multiple of %d", entries, Names)
	}
	r := &Requests{Entries: entries, Groups: entries / Names}
	for g := range r.Groups {
		r.Shapes = append(r.Shapes, ShapeOf(g))
		r.Values = append(r.Values, Group(g)...)
	}
	r.Redraw(1)
	return r, nil
}

// Redraw draws other requests in place of those that are there. Which entries are asked
// for most often is another draw too: where these lie in a table makes it faster or slower
// for as long as they are the ones.
func (r *Requests) Redraw(seed uint64) {
	r.Places, r.Keys, r.AskedShapes, r.AskedDims, r.AskedNames = nil, nil, nil, nil, nil
	length := 1 << 14
	if r.Entries > 1<<17 {
		length = 1 << 17 // else the requests would touch too few of the entries
	}
	session, names := strings.Clone(Session), make([]string, Names)
	for i := range names {
		names[i] = NameOf(i)
	}
	dims, shapes := make([][]int64, r.Groups), make([]shapegroups.Shape, r.Groups)
	for g := range r.Groups {
		dims[g], shapes[g] = DimsOf(g), ShapeOf(g)
	}
	random := rand.New(rand.NewPCG(seed, 2))
	rank := rand.NewZipf(random, zipf, 1, uint64(r.Entries-1))
	places := random.Perm(r.Entries)
	for range length {
		place := places[rank.Uint64()]
		group, name := place/Names, names[place%Names]
		r.Places = append(r.Places, place)
		r.AskedNames = append(r.AskedNames, name)
		r.AskedShapes = append(r.AskedShapes, shapes[group])
		r.AskedDims = append(r.AskedDims, dims[group])
		r.Keys = append(r.Keys, Key{session, shapes[group].Key(), name})
	}
}

// Group is the values of one group, in the order of their names.
func Group(group int) []Value {
	shape := ShapeOf(group).Key()
	values := make([]Value, Names)
	for i := range values {
		values[i] = Value{Key{Session, shape, NameOf(i)}}
	}
	return values
}

// NameOf has about the length of a real operation's name. It makes a new string
// each time.
func NameOf(i int) string {
	return fmt.Sprintf("bert/encoder/layer.%02d/attention/matmul.%03d", i/43, i)
}

// DimsOf are the dimensions of a group: attention scores of some length.
func DimsOf(group int) []int64 { return []int64{8, 12, int64(128 + group), 64} }

// ShapeOf is the shape of these dimensions, made anew each time.
func ShapeOf(group int) shapegroups.Shape {
	s, err := shapegroups.Of(DimsOf(group))
	if err != nil {
		panic(err) // a constant shape
	}
	return s
}

// A Finder asks for the requests from one place of the list up to another and
// gives how many it found. Its loop is its own: a call for each request would cost
// as much as the quickest path.
type Finder func(from, to int) (found int)

// Side asks for requests, from this one on; each slice goes on where the last one
// ended. missed is told of each slice in which some were not found.
func (r *Requests) Side(find Finder, from int, missed func(lookups int) error) measure.Side {
	at := from
	return func(n int) (time.Duration, error) {
		found := 0
		began := time.Now()
		for left := n; left > 0; {
			part := min(left, len(r.Places)-at)
			found += find(at, at+part)
			left -= part
			at = (at + part) % len(r.Places)
		}
		took := time.Since(began)
		if found < n {
			return took, missed(n - found)
		}
		return took, nil
	}
}
