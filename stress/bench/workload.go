package main

import (
	"github.com/kiln-cache/kiln/internal/measure/reads"
)

const (
	names  = reads.Names
	lists  = 4    // of requests for new keys: how many times the room for them
	batch  = 64   // lookups between two looks at the clock or at the end
	earned = 4096 // lookups that let the writer write once for each batch of them
)

// workload is the keys that every contender holds, the requests for them, and
// the keys that a writer adds. Read-only once made.
type workload struct {
	*reads.Requests
	room  int           // groups that the bounded caches hold beyond those asked for
	fresh []reads.Value // what the writer puts, in this order, then from the start again
}

// newWorkload makes one of the entries given, a multiple of 512.
func newWorkload(entries int) (*workload, error) {
	r, err := reads.New(entries)
	if err != nil {
		return nil, err
	}
	w := &workload{Requests: r, room: max(8, r.Groups/16)}
	for g := range lists * w.room {
		w.fresh = append(w.fresh, reads.Group(r.Groups+g)...)
	}
	return w, nil
}

// capacity is what a bounded cache of single entries may hold.
func (w *workload) capacity() int { return (w.Groups + w.room) * names }
