package heap

import (
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// What is given out is aligned, inside and never overlaps; what is given back
// comes together again; what a part held before is known to the byte.
func TestHeap(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		const size, align = 4096, 64
		h := New(size, align)
		owner := make([]int, size) // 0 = free
		dirty := make([]bool, size)
		parts := make(map[int]span)
		next := 0
		r.Repeat(map[string]func(*rapid.T){
			"take": func(r *rapid.T) {
				bytes := rapid.Int64Range(1, 1000).Draw(r, "bytes")
				need := (bytes + align - 1) / align * align
				offset, used, ok := h.Take(bytes)
				if !ok {
					if longest(owner, align) >= need {
						r.Fatalf("%d bytes refused, %d are free together", need, longest(owner, align))
					}
					return
				}
				if offset < align || offset%align != 0 || offset+need > size {
					r.Fatalf("%d bytes at %d", need, offset)
				}
				next++
				for i := offset; i < offset+need; i++ {
					if owner[i] != 0 {
						r.Fatalf("byte %d is given out twice", i)
					}
					if dirty[i] && i >= offset+used {
						r.Fatalf("byte %d was used before, only %d bytes are said to be", i, used)
					}
					owner[i], dirty[i] = next, true
				}
				parts[next] = span{offset, bytes}
			},
			"give": func(r *rapid.T) {
				if len(parts) == 0 {
					r.Skip("none")
				}
				var ids []int
				for id := 1; id <= next; id++ {
					if _, held := parts[id]; held {
						ids = append(ids, id)
					}
				}
				id := rapid.SampledFrom(ids).Draw(r, "part")
				p := parts[id]
				delete(parts, id)
				h.Give(p.offset, p.bytes)
				for i := range owner {
					if owner[i] == id {
						owner[i] = 0
					}
				}
			},
		})
		for _, p := range parts {
			h.Give(p.offset, p.bytes)
		}
		if _, _, ok := h.Take(size - align); !ok {
			r.Fatal("what was given back did not come together")
		}
	})
}

// A part after one that is not a whole number of units begins behind it, on memory
// that nothing was written to: found by TestHeap.
func TestPartBehindASmallOne(t *testing.T) {
	h := New(4096, 64)
	first, _, _ := h.Take(1)
	second, used, ok := h.Take(98)
	if !ok || first != 64 || second != 128 || used != 0 {
		t.Errorf("parts at %d and %d, the second used for %d bytes, %t; want 64, 128, 0", first, second, used, ok)
	}
}

// longest is the longest free run behind the first unit, which stays unused.
func longest(owner []int, align int64) (most int64) {
	run := int64(0)
	for _, o := range owner[align:] {
		if run++; o != 0 {
			run = 0
		}
		most = max(most, run)
	}
	return most
}

// A heap is shared by the workers of its device.
func TestHeapHammer(t *testing.T) {
	h := New(1<<20, 64)
	owner := make([]byte, 1<<20) // written by the holder of a part: the race detector finds an overlap
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				n := int64(1 + (i*37+g*11)%5000)
				offset, _, ok := h.Take(n)
				if !ok {
					continue
				}
				for j := offset; j < offset+n; j++ {
					owner[j] = byte(g)
				}
				h.Give(offset, n)
			}
		})
	}
	wg.Wait()
	if _, _, ok := h.Take(1<<20 - 64); !ok {
		t.Error("the heap is not whole again")
	}
}
