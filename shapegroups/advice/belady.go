package advice

import (
	"container/heap"

	"github.com/kiln-cache/kiln/shapegroups"
)

// belady counts the hits of the rule that keeps the shapes needed soonest: L. A.
// Belady, A study of replacement algorithms for a virtual-storage computer, IBM
// Systems Journal 5(2), 1966, with leave not to keep the newcomer.
func belady(stream []shapegroups.Shape, groups int) (hits int) {
	if groups == 0 {
		return 0
	}
	next := nextUses(stream)
	resident := make(map[shapegroups.Shape]int) // to its next use
	var last farthest                           // of residents; stale entries stay until they surface
	for i, shape := range stream {
		_, hit := resident[shape]
		switch {
		case hit:
			hits++
		case next[i] == len(stream): // never again: keeping it gains nothing
			continue
		case len(resident) >= groups:
			for last[0].next != resident[last[0].shape] {
				heap.Pop(&last)
			}
			if last[0].next <= next[i] {
				continue
			}
			delete(resident, heap.Pop(&last).(use).shape)
		}
		resident[shape] = next[i]
		heap.Push(&last, use{next[i], shape})
	}
	return hits
}

// nextUses is, for each request, the place of the next one of its shape, or the
// stream's length.
func nextUses(stream []shapegroups.Shape) []int {
	next := make([]int, len(stream))
	seen := make(map[shapegroups.Shape]int)
	for i := len(stream) - 1; i >= 0; i-- {
		next[i] = len(stream)
		if later, ok := seen[stream[i]]; ok {
			next[i] = later
		}
		seen[stream[i]] = i
	}
	return next
}

type use struct {
	next  int
	shape shapegroups.Shape
}

// farthest is a heap with the use farthest ahead on top.
type farthest []use

func (f farthest) Len() int           { return len(f) }
func (f farthest) Less(i, j int) bool { return f[i].next > f[j].next }
func (f farthest) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *farthest) Push(x any)        { *f = append(*f, x.(use)) }
func (f *farthest) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}
