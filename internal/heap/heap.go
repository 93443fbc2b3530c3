// Package heap hands out parts of a device's memory.
package heap

import (
	"math"
	"slices"
	"sync"
)

// Heap hands out parts of one memory: first fit over a sorted list of free spans
// that are joined when their neighbours come back. Device buffers are few and large
// (weights, one arena a session), so a list is enough. Safe for concurrent use.
type Heap struct {
	align int64
	mu    struct {
		sync.Mutex
		free []span // by offset, never adjacent
		high int64  // nothing from here on was ever handed out
	}
}

type span struct{ offset, bytes int64 }

// New makes the heap of a memory of so many bytes. Its parts begin at multiples of
// align, the first of them at align.
func New(bytes, align int64) *Heap {
	h := &Heap{align: align}
	h.mu.free = []span{{align, bytes - align}} // offset 0 stays unused: no buffer is at address 0
	return h
}

// Take gives the offset of a free part, and up to where it may hold what was
// written before; false if there is none of that size.
func (h *Heap) Take(bytes int64) (offset, used int64, ok bool) {
	if bytes > math.MaxInt64-h.align { // rounded up it would be negative, and fit
		return 0, 0, false
	}
	bytes = h.round(bytes)
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.mu.free, func(s span) bool { return s.bytes >= bytes })
	if i < 0 {
		return 0, 0, false
	}
	s := &h.mu.free[i]
	offset = s.offset
	s.offset, s.bytes = s.offset+bytes, s.bytes-bytes
	if s.bytes == 0 {
		h.mu.free = slices.Delete(h.mu.free, i, i+1)
	}
	used = min(bytes, max(0, h.mu.high-offset))
	h.mu.high = max(h.mu.high, offset+bytes)
	return offset, used, true
}

// Give returns a part.
func (h *Heap) Give(offset, bytes int64) {
	s := span{offset, h.round(bytes)}
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearchFunc(h.mu.free, s.offset, func(f span, at int64) int { return int(f.offset - at) })
	h.mu.free = slices.Insert(h.mu.free, i, s)
	h.joinLocked(i)
	if i > 0 {
		h.joinLocked(i - 1)
	}
}

// joinLocked joins span i with the next one if they touch.
func (h *Heap) joinLocked(i int) {
	free := h.mu.free
	if i+1 < len(free) && free[i].offset+free[i].bytes == free[i+1].offset {
		free[i].bytes += free[i+1].bytes
		h.mu.free = slices.Delete(free, i+1, i+2)
	}
}

func (h *Heap) round(bytes int64) int64 { return (bytes + h.align - 1) / h.align * h.align }
