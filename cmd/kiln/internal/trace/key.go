package trace

import (
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Key says which shape a row of a trace asks for: "exact", "multiple:N", "pow2"
// or "geometric:K" of a request's length, or "pair:" and one of these for the
// shape [batch, longest length] of a batch.
type Key struct {
	pair   bool
	bucket shapegroups.Bucketing
}

// ParseKey reads a key's text; anything else is ErrInvalid.
func ParseKey(text string) (Key, error) {
	rest, pair := strings.CutPrefix(text, "pair:")
	bucket, err := shapegroups.ParseBucketing(rest)
	if err != nil {
		return Key{}, fault.Invalidf("trace: parse key", "%.64q: want exact, multiple:N, pow2 or geometric:K, or pair: and one of these", text)
	}
	return Key{pair, bucket}, nil
}

// String is the text that ParseKey reads.
func (k Key) String() string {
	if k.pair {
		return "pair:" + k.bucket.String()
	}
	return k.bucket.String()
}

// Stream reads the stream of compiled shapes that the trace in file asks for.
func (k Key) Stream(file string) ([]shapegroups.Shape, error) {
	if k.pair {
		batches, err := Batches(file)
		if err != nil {
			return nil, err
		}
		return k.shapes(len(batches), func(i int) []int64 { return []int64{batches[i].Size, batches[i].MaxLen} })
	}
	requests, err := Requests(file)
	if err != nil {
		return nil, err
	}
	return k.shapes(len(requests), func(i int) []int64 { return []int64{requests[i].Len} })
}

func (k Key) shapes(n int, dims func(int) []int64) ([]shapegroups.Shape, error) {
	// Shapes repeat: one copy of each keeps a long stream small.
	known := make(map[shapegroups.Shape]shapegroups.Shape)
	stream := make([]shapegroups.Shape, n)
	for i := range stream {
		asked, err := shapegroups.Of(dims(i))
		if err != nil {
			return nil, err
		}
		compiled, ok := known[asked]
		if !ok {
			if compiled, err = k.bucket.Map(asked); err != nil {
				return nil, err
			}
			known[asked] = compiled
		}
		stream[i] = compiled
	}
	return stream, nil
}
