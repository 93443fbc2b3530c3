package gemm

import (
	"slices"
	"strconv"
	"time"
)

// kind is a family of kernels.
type kind int

const (
	generic kind = iota
	avx2
	avx512
)

// Set is the kernels of one instruction set, with the panel layout they read.
// A Set is immutable and safe for concurrent use.
type Set struct {
	name    string
	kind    kind
	width   int  // columns of a panel
	row     int  // numbers of memory that hold a row of a panel
	maxRows int  // of a tile
	runs    bool // a call computes several tiles, one below another
	// together is how many panels a tile of 1, 2 or 3 rows takes at once.
	together [4]int
	// inPlace is how many values of k a kernel call goes through at most with A in place.
	inPlace int
	halves  bool // packed numbers are bfloat16, two in the place of one
}

var sets = append(native(), &Set{name: "generic", kind: generic, width: 4, row: 4, maxRows: 2, inPlace: depth, together: [4]int{0, 1, 1, 1}})

// Best is the fastest set that this machine runs.
func Best() *Set { return sets[0] }

// Sets lists the sets that this machine runs, best first; the portable one is
// always the last.
func Sets() []*Set { return slices.Clone(sets) }

// Name is "avx512", "avx2" or "generic".
func (s *Set) Name() string { return s.name }

// Halves is the set whose packed matrices are of bfloat16: Pack rounds each number to the
// nearest, and to even. They are widened as they are read, exactly, so that a product is
// that of the rounded matrix, bit for bit with every set.
func (s *Set) Halves() *Set {
	h := *s
	h.halves, h.row = true, s.width/2
	return &h
}

// Layout names the arrangement of packed matrices: it belongs into the key of
// a packed constant. Sets of one layout read each other's packed matrices, and
// a layout's meaning never changes.
func (s *Set) Layout() string {
	layout := "panels-" + strconv.Itoa(s.width)
	if s.halves {
		layout += "-bfloat16"
	}
	return layout
}

// Requires names what of the processor the set needs, as Linux does.
func (s *Set) Requires() []string {
	switch s.kind {
	case avx512:
		return []string{"avx512f"}
	case avx2:
		return []string{"avx2", "fma"}
	}
	return []string{}
}

// Takes is about how long one core takes for so many operations of a product, a
// multiplication or an addition each, with operands in its caches.
func (s *Set) Takes(operations int64) time.Duration {
	perNs := int64(1) // of the portable code at least, where the processor has fused multiply-adds
	switch s.kind {
	case avx512:
		perNs = 100
	case avx2:
		perNs = 60
	}
	return time.Duration(operations / perNs)
}

// panels is how many panels hold n columns.
func (s *Set) panels(n int) int { return (n + s.width - 1) / s.width }
