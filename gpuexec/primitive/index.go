package primitive

import (
	"sync"
	"unsafe"

	"github.com/kiln-cache/kiln/internal/table"
)

// index finds the request of a live descriptor by a key that is borrowed from
// the caller's data (SPEC D4), so that a hit copies nothing: what then goes to
// the artefact cache, which may hand it to a listener, is the request's own. It
// holds no more than the descriptors that are alive and says nothing about
// residency. Readers take no lock.
type index struct {
	table *table.Table[*request]
	mu    sync.Mutex // for writers; descriptors are born and die on any goroutine
}

type indexNode = table.Node[*request]

// find gives the request of a live descriptor, or nil.
func (x *index) find(enc []byte) *request {
	n := x.table.Lookup(unsafe.String(unsafe.SliceData(enc), len(enc)), 0) // kept by nobody
	if n == nil {
		return nil
	}
	return n.Value
}

// enter makes d's request the one that is found under its key.
func (x *index) enter(d *Descriptor) {
	if d.node == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.table.Lookup(d.node.Key, 0) != d.node {
		x.table.Put(d.node)
	}
}

// leave takes d out, unless a younger descriptor stands in its place.
func (x *index) leave(d *Descriptor) {
	if d.node == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.table.Remove(d.node)
}

// node gives d its node; a request without a key has none.
func (x *index) node(r *request) *indexNode {
	if r.key == "" {
		return nil
	}
	n := x.table.NewNode(r.key, 0)
	n.Value = r
	return n
}
