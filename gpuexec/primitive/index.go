package primitive

import (
	"sync"
	"unsafe"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/table"
)

// index finds a live descriptor by a key that is borrowed from
// the caller's data (SPEC D4), so that a hit copies nothing: what then goes to
// the artefact cache, which may hand it to a listener, is the request's own. It
// holds no more than the descriptors that are alive and says nothing about
// residency. Readers take no lock.
type index struct {
	table *table.Table[*Descriptor]
	mu    sync.Mutex // for writers; descriptors are born and die on any goroutine
}

type indexNode = table.Node[*Descriptor]

// find gives the live descriptor of a key, or nil. It may be dying.
func (x *index) find(enc []byte) *Descriptor {
	return x.at(unsafe.String(unsafe.SliceData(enc), len(enc))) // kept by nobody
}

func (x *index) at(key string) *Descriptor {
	n := x.table.Lookup(key, 0)
	if n == nil {
		return nil
	}
	return n.Value
}

// held gives the descriptor of a key, pinned, if its entry was evicted and a caller holds it
// still (SPEC C13); else nil.
func (x *index) held(key string) *Descriptor {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.at(key)
	if d == nil || !d.claim.Holds() || !d.cell.PinBeyond(d.entries) {
		return nil
	}
	return d
}

// enters notes that one of d's pins is an entry's now, and has built hold it.
func (x *index) enters(d *Descriptor, built artefacts.Built) artefacts.Built {
	x.mu.Lock()
	d.entries++
	x.mu.Unlock()
	free := built.Free
	built.Free = func() {
		defer x.left(d)
		if free != nil {
			free()
		}
	}
	return hidden.With(built, &d.claim)
}

// left takes the pin of an entry that is freed.
func (x *index) left(d *Descriptor) {
	x.mu.Lock()
	d.entries--
	last := d.cell.Drop()
	x.mu.Unlock()
	if last {
		d.cell.Free()
	}
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
func (x *index) node(d *Descriptor) *indexNode {
	if d.request.key == "" {
		return nil
	}
	n := x.table.NewNode(d.request.key, 0)
	n.Value = d
	return n
}
