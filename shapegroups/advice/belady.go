package advice

import (
	"github.com/kiln-cache/kiln/internal/priority"
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
	resident := make(map[shapegroups.Shape]*use)
	farthest := priority.New(func(a, b *use) bool { return a.next > b.next }, func(u *use) *int { return &u.place })
	for i, shape := range stream {
		u := resident[shape]
		switch {
		case u != nil:
			hits++
			u.next = next[i]
			farthest.Fix(u)
			continue
		case next[i] == len(stream): // never again: keeping it gains nothing
			continue
		case len(resident) >= groups:
			if farthest.First().next <= next[i] {
				continue
			}
			delete(resident, farthest.Pop().shape)
		}
		resident[shape] = &use{shape: shape, next: next[i]}
		farthest.Push(resident[shape])
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

// use is a resident shape with its next use.
type use struct {
	shape shapegroups.Shape
	next  int
	place int
}
